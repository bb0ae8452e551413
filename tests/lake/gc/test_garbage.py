from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from storage_engine.exceptions import BadInputError, LakeIdentityError, LakeUnavailableError
from storage_engine.lake.archive import small_tables
from storage_engine.lake.archive.archive import archive_all, archive_segment
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.identity import COPY_OF_PROPERTY
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.catalog.writing import TAKEN_OVER_PROPERTY
from storage_engine.lake.file.staging import publish
from storage_engine.lake.gc.garbage import FOREIGN_GRACE_MS, Collection, collect, undo
from storage_engine.lake.gc.garbage_kind import GarbageKind
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.lake.verify.reproof import reprove
from storage_engine.model.proof.receipt import ChainHead, Receipt
from tests.lake.conftest import Fingerprint, MakeJobs
from tests.lake.garbage_helpers import (
    collected,
    data_file,
    expire_snapshots,
    local,
    make_old,
    names,
    root_of,
    second_copy,
)

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000


@pytest.fixture
def lake(filled: Callable[[int], Lake]) -> Lake:
    """The first segment is archived."""
    return filled(1)


@pytest.fixture
def rows(lake: Lake) -> tuple[Receipt, ...]:
    return receipts(lake, "store-1")


def test_a_lake_in_order_has_no_garbage(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, rows: tuple[Receipt, ...], fingerprint: Fingerprint
) -> None:
    archive_all(lake, make_jobs(lake, *segments[1:]))
    collected(lake, delete=True)
    before = fingerprint(root_of(lake.messages()).parent)
    assert collected(lake, delete=True) == Collection()
    assert fingerprint(root_of(lake.messages()).parent) == before


def test_what_dead_attempts_left_goes_where_it_is_in_the_lake_already_and_is_an_orphan_where_it_is_not(
    lake: Lake,
    segments: list[Path],
    make_jobs: MakeJobs,
    rows: tuple[Receipt, ...],
    fingerprint: Fingerprint,
) -> None:
    staged, published = (archive_segment(job) for job in make_jobs(lake, *segments[1:]))
    publish([published])
    twin, other_twin = second_copy(lake, rows[0]), second_copy(lake, rows[0], "89abcdef")
    other_twin = other_twin.rename(f"{other_twin}.0123.partial")
    torn = twin.with_name(f"{Path(published.data_file).name}.4567.partial")
    torn.write_bytes(b"PAR1 that never got a footer")
    metadata = root_of(lake.messages()) / "metadata"
    failed = metadata / "00009-failed.metadata.json"
    shutil.copyfile(local(lake.messages().metadata_location), failed)
    empty, odd = metadata / "x-m0.avro", metadata / "y-m0.avro"
    empty.touch()
    readme = root_of(lake.messages()) / "data" / "README"
    readme.write_text("somebody's")
    before = fingerprint(root_of(lake.messages()))
    found = collected(lake)
    going = {
        twin.name: GarbageKind.DATA_FILE,
        other_twin.name: GarbageKind.STAGED,
        torn.name: GarbageKind.STAGED,
        failed.name: GarbageKind.METADATA,
        empty.name: GarbageKind.MANIFEST,
    }
    live = data_file_of(lake.messages(), rows[0])
    assert {Path(file.path).name: file.kind for file in found.garbage} == going
    assert {file.twins for file in found.garbage if file.path == str(twin)} == {(live,)}
    kept = {Path(file).name for file in (staged.staged_file, published.staged_file, published.data_file)}
    assert names(found.orphans) == kept
    assert all("has no receipt of it" in file.reason for file in found.orphans)
    assert (found.unknown, found.taken, found.moment) == ((str(readme),), (), "")
    clock = {".storage-engine-clock"}
    assert {k: v for k, v in fingerprint(root_of(lake.messages())).items() if k not in clock} == before

    taken = collected(lake, delete=True)
    assert taken.taken == taken.garbage == found.garbage
    assert broken_receipts(lake, rows, Depth.FILES) == {}
    assert collected(lake).waiting_count == len(going)
    assert undo(lake.config, taken.moment).moments == (taken.moment,)
    after = fingerprint(root_of(lake.messages()))
    assert {name: after[name] for name in before} == before

    odd.write_bytes(b"no Avro")
    found = collected(lake)
    assert {torn.name, failed.name} <= names(found.garbage)
    assert twin.name in names(found.orphans)
    assert any("y-m0.avro could name it, and that can't be read" in file.reason for file in found.orphans)


def test_what_is_in_the_trash_for_long_enough_goes_for_good_while_its_twin_is_sound(
    lake: Lake, rows: tuple[Receipt, ...]
) -> None:
    twin = second_copy(lake, rows[0])
    moment = collected(lake, delete=True).moment
    trashed = root_of(lake.messages()) / f".storage-engine-trash/{moment}/data/store_id=store-1/{twin.name}"
    live = data_file(lake, rows[0])
    sound = live.read_bytes()
    live.write_bytes(sound[:5000] + bytes([sound[5000] ^ 1]) + sound[5001:])
    (orphan,) = collected(lake, delete=True, trash_ms=0).orphans
    assert orphan.path == str(trashed)
    assert "SHA-256" in orphan.reason
    live.write_bytes(sound)
    assert collected(lake, delete=True, trash_ms=HOUR_MS).waiting_count == 1
    assert collected(lake, trash_ms=0).due == collected(lake, delete=True, trash_ms=0).deleted != ()
    assert not trashed.parents[2].exists()


def test_a_second_copy_stays_while_the_live_file_is_damaged_or_lost(
    lake: Lake, rows: tuple[Receipt, ...]
) -> None:
    twin, live = second_copy(lake, rows[0]), data_file(lake, rows[0])
    sound = live.read_bytes()
    for damage in (sound[:5000] + bytes([sound[5000] ^ 1]) + sound[5001:], sound[:-1], None):
        live.unlink()
        if damage is not None:
            live.write_bytes(damage)
        found = collected(lake, delete=True)
        assert (found.taken, names(found.orphans)) == ((), {twin.name})
        live.write_bytes(sound)
    assert names(collected(lake, delete=True).taken) == {twin.name}


def test_what_is_younger_than_the_grace_is_left_alone_by_the_time_of_the_place(
    lake: Lake, rows: tuple[Receipt, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, young = second_copy(lake, rows[0]), second_copy(lake, rows[0], "89abcdef")
    make_old(old)
    a_year_ahead = time.time_ns() + 365 * 24 * HOUR_MS * 1_000_000
    monkeypatch.setattr(time, "time_ns", lambda: a_year_ahead)
    monkeypatch.setattr(time, "time", lambda: a_year_ahead / 1e9)
    found = collect(lake, grace_ms=24 * HOUR_MS, delete=True)
    assert (names(found.taken), found.young_count) == ({old.name}, 1)
    assert young.exists()


def test_a_file_that_was_superseded_goes_once_no_snapshot_needs_it(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, rows: tuple[Receipt, ...]
) -> None:
    old = data_file(lake, rows[0])
    content = old.read_bytes()
    old.write_bytes(content[:-1])
    (again,) = archive_all(lake, make_jobs(lake, segments[0]))
    old.write_bytes(content)
    assert again.sequence == 1
    assert collected(lake).garbage == ()
    lists = {str(local(snapshot.manifest_list)) for snapshot in lake.messages().metadata.snapshots[:-1]}
    expire_snapshots(lake.messages())
    found = collected(lake, delete=True)
    assert {str(old), *lists} <= {file.path for file in found.taken}
    assert {file.kind for file in found.taken} == {
        GarbageKind.DATA_FILE,
        GarbageKind.MANIFEST,
        GarbageKind.MANIFEST_LIST,
    }
    assert found.orphans == ()
    assert broken_receipts(lake, [again], Depth.FILES) == {}


def test_receipts_that_were_merged_into_another_file_go_and_one_whose_row_is_nowhere_else_stays(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_tables, "MERGED_FILES", 2)
    for path in segments[1:]:
        archive_all(lake, make_jobs(lake, path))
    merged = set((root_of(lake.segments()) / "data/store_id=store-1").iterdir())
    live = {local(task.file.file_path) for task in lake.segments().scan().plan_files()}
    expire_snapshots(lake.segments())
    table = pq.read_table(min(merged - live))
    changed = table.set_column(
        table.column_names.index("row_hash"), "row_hash", [["0" * 64] * table.num_rows]
    )
    lost = min(merged).with_name("lost.parquet")
    pq.write_table(changed, lost)
    found = collected(lake, delete=True)
    assert {Path(f.path) for f in found.taken if f.kind is GarbageKind.RECEIPTS} == merged - live
    assert names(found.orphans) == {lost.name}
    assert len(receipts(lake, "store-1")) == len(segments)


def test_rows_that_another_engine_moved_free_the_old_file_once_they_are_proven_where_they_are(
    lake: Lake, rows: tuple[Receipt, ...]
) -> None:
    old = data_file(lake, rows[0])
    table = lake.messages()
    table.overwrite(table.scan().to_arrow())
    expire_snapshots(lake.messages())
    found = collected(lake)
    assert old.name in names(found.orphans)
    assert old.name not in names(found.garbage)
    (moved,) = reprove(lake, "store-1", rows)
    found = collected(lake, delete=True)
    assert old.name in names(found.taken)
    assert found.orphans == ()
    assert broken_receipts(lake, [moved], Depth.FILES) == {}


def test_a_file_of_another_engine_goes_only_with_the_very_rows_of_the_live_ones_and_after_a_day(
    lake: Lake, rows: tuple[Receipt, ...]
) -> None:
    table = lake.messages()
    table.overwrite(table.scan().to_arrow())
    (task,) = lake.messages().scan().plan_files()
    compacted = local(task.file.file_path)
    same, other = compacted.with_name("same.parquet"), compacted.with_name("other.parquet")
    shutil.copyfile(compacted, same)
    stored = pq.read_table(compacted)
    bodies = [None if body is None else body[::-1] for body in stored["body"].to_pylist()]
    column = stored.column_names.index("body")
    changed = stored.set_column(column, stored.schema.field(column), [bodies])
    pq.write_table(changed, other, store_schema=False)
    reprove(lake, "store-1", rows)
    assert collected(lake, delete=True).young_count == 2
    for path in (same, other):
        make_old(path)
    found = collect(lake, grace_ms=HOUR_MS, delete=True)
    assert "differ from the live ones" in found.orphans[0].reason
    assert (names(found.taken), names(found.orphans)) == ({same.name}, {other.name})
    assert FOREIGN_GRACE_MS == 24 * HOUR_MS


def test_a_file_that_a_link_leads_to_is_left_alone(lake: Lake, rows: tuple[Receipt, ...]) -> None:
    live = data_file(lake, rows[0])
    alias = live.parent.with_name("store_id=store-2")
    alias.symlink_to(live.parent)
    link = live.with_name(f"{live.stem}-01234567.parquet")
    link.symlink_to(live)
    found = collected(lake, delete=True)
    assert (found.taken, found.orphans) == ((), ())
    assert set(found.unknown) == {str(link), *(str(alias / path.name) for path in live.parent.iterdir())}
    assert broken_receipts(lake, rows, Depth.FILES) == {}


def test_a_file_of_a_table_that_cannot_be_read_is_never_taken(
    lake: Lake, rows: tuple[Receipt, ...], fingerprint: Fingerprint
) -> None:
    second_copy(lake, rows[0])
    (manifest,) = (root_of(lake.messages()) / "metadata").glob("*-m0.avro")
    manifest.write_bytes(manifest.read_bytes()[:100])
    before = fingerprint(root_of(lake.messages()) / "data")
    with pytest.raises(LakeUnavailableError):
        collected(lake, delete=True)
    assert fingerprint(root_of(lake.messages()) / "data") == before


def test_a_warehouse_that_is_not_where_the_catalog_says_is_refused(
    lake: Lake, rows: tuple[Receipt, ...]
) -> None:
    current = local(lake.messages().metadata_location)
    current.rename(current.with_name("elsewhere"))
    with pytest.raises(LakeUnavailableError):
        collected(lake, delete=True)


def test_a_file_that_the_catalog_names_again_is_kept_in_the_trash_and_put_back(
    lake: Lake, rows: tuple[Receipt, ...]
) -> None:
    """Putting back needs no table that can be read."""
    moment = "20260101T000000Z-00000000"
    current = local(lake.messages().metadata_location)
    trashed = root_of(lake.messages()) / f".storage-engine-trash/{moment}/metadata/{current.name}"
    trashed.parent.mkdir(parents=True)
    current.rename(trashed)
    with pytest.raises(LakeUnavailableError):
        lake.messages()
    assert undo(lake.config).paths == (str(current),)
    assert broken_receipts(lake, rows) == {}
    with pytest.raises(BadInputError, match=f"expected a pass {moment}"):
        undo(lake.config, moment)


def test_a_copy_that_nobody_promoted_is_listed_and_not_changed(lake: Lake, rows: tuple[Receipt, ...]) -> None:
    twin = second_copy(lake, rows[0])
    with lake.segments().transaction() as transaction:
        transaction.set_properties({COPY_OF_PROPERTY: "another lake"})
    assert names(collected(lake).garbage) == {twin.name}
    with pytest.raises(LakeIdentityError, match="copy of another lake"):
        collected(lake, delete=True)
    assert twin.exists()


def test_for_a_grace_after_an_older_lake_got_its_identity_nothing_is_taken(
    lake: Lake, rows: tuple[Receipt, ...]
) -> None:
    twin = second_copy(lake, rows[0])
    make_old(twin)
    now_ms = time.time_ns() // 1_000_000
    with lake.segments().transaction() as transaction:
        transaction.set_properties({TAKEN_OVER_PROPERTY: str(now_ms - 23 * HOUR_MS)})
    with pytest.raises(LakeUnavailableError, match="taken over"):
        collect(lake, grace_ms=24 * HOUR_MS, delete=True)
    assert names(collect(lake, grace_ms=22 * HOUR_MS, delete=True).taken) == {twin.name}


def test_receipts_that_end_before_what_somebody_knows_are_refused(
    lake: Lake, rows: tuple[Receipt, ...]
) -> None:
    twin = second_copy(lake, rows[0])
    for head in (ChainHead(1, "0" * 64), ChainHead(0, "0" * 64)):
        with pytest.raises(LakeIdentityError, match="lake rebuild"):
            collect(lake, grace_ms=0, delete=True, known_heads={"store-1": [head]})
    assert twin.exists()
    known = ChainHead(0, rows[0].row_hash)
    assert collect(lake, grace_ms=0, delete=True, known_heads={"store-1": [known]}).taken


def test_where_there_is_no_lock_a_file_is_left_alone_for_a_day(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_engine.lake.gc.trash.local_path", lambda _: None)
    with pytest.raises(BadInputError, match="expected a grace of at least 24 hours, found 23"):
        collect(lake, grace_ms=23 * HOUR_MS, delete=True)
    assert collect(lake, grace_ms=24 * HOUR_MS, delete=True).taken == ()
    assert collect(lake, grace_ms=0, delete=False).garbage == ()
