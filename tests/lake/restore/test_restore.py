from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from storage_engine.exceptions import ProofError, RestoreError
from storage_engine.lake.archive.archive import SegmentJob, archive_all
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.restore.restore_span import LineageRange, Span, choose, other_lineages
from storage_engine.lake.soundness.chain import row_hash
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.model.proof.receipt import Receipt
from tests.lakes import path_of
from tests.rounds import ALL
from tests.services.restoring import restore

KILLED_RESTORES = """
import os, signal, sys, time
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from tests.services.restoring import restore
from storage_engine.rocketmq.codec.codec import CODEC
for target, moment in zip(sys.argv[2::2], map(float, sys.argv[3::2])):
    child = os.fork()
    if child == 0:
        restore(open_lake(LakeConfig.local(sys.argv[1])), "store-1", target)
        os._exit(0)
    time.sleep(moment)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""
"""Arguments: a lake, then directories to restore into, each with the seconds after which that is killed."""

MakeJobs = Callable[..., tuple[SegmentJob, ...]]


@pytest.fixture
def lake(filled: Callable[[int], Lake]) -> Lake:
    return filled(3)


@pytest.fixture
def archived(lake: Lake) -> tuple[Receipt, ...]:
    return receipts(lake, "store-1")


@pytest.mark.slow
def test_a_store_comes_back_as_files_that_a_broker_opens(
    lake: Lake, segments: list[Path], archived: tuple[Receipt, ...], tmp_path: Path
) -> None:
    started_ns = time.time_ns() - 10**9
    done: list[int] = []
    restored = restore(lake, "store-1", tmp_path / "new" / "store", progress=done.append)
    assert sum(done) == 3 << 20
    assert [Path(segment.path).relative_to(tmp_path / "new" / "store") for segment in restored] == [
        Path("commitlog") / path.name for path in segments
    ]
    for segment, original in zip(restored, segments, strict=True):
        path = Path(segment.path)
        assert path.read_bytes() == original.read_bytes()
        assert path.stat().st_mtime_ns >= started_ns
        assert not segment.existed
    assert sorted(path.name for path in (tmp_path / "new" / "store" / "commitlog").iterdir()) == [
        path.name for path in segments
    ]


def test_the_old_mtime_comes_back_on_request(
    lake: Lake, segments: list[Path], archived: tuple[Receipt, ...], tmp_path: Path
) -> None:
    restored = restore(lake, "store-1", tmp_path / "restored", keep_mtime=True)
    assert [Path(segment.path).stat().st_mtime_ns for segment in restored] == [
        path.stat().st_mtime_ns for path in segments
    ]


def test_an_interrupted_restore_goes_on_and_keeps_what_is_right(
    lake: Lake, segments: list[Path], archived: tuple[Receipt, ...], tmp_path: Path
) -> None:
    target = tmp_path / "restored" / "commitlog"
    restore(lake, "store-1", target.parent, files_only=True)
    (target / segments[1].name).unlink()
    (target / f".{segments[1].name}.restoring").write_bytes(b"torn")
    again = restore(lake, "store-1", target.parent, files_only=True)
    assert [segment.existed for segment in again] == [True, False, True]
    assert sorted(path.name for path in target.iterdir()) == [path.name for path in segments]
    assert (target / segments[1].name).read_bytes() == segments[1].read_bytes()


def test_what_is_there_already_is_on_disk_when_a_restore_ends(
    lake: Lake, archived: tuple[Receipt, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, flush, flushed = tmp_path / "restored", os.fsync, set[int]()
    restore(lake, "store-1", target, files_only=True)

    def noted(descriptor: int) -> None:
        flushed.add(os.fstat(descriptor).st_ino)
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    assert all(segment.existed for segment in restore(lake, "store-1", target, files_only=True))
    assert {path.stat().st_ino for path in (target, *target.rglob("*"))} <= flushed


@pytest.mark.parametrize(
    "stranger", ["commitlog/00000000000009437184", "checkpoint", "consumequeue/orders/0/00000000000000000000"]
)
def test_a_directory_that_holds_something_else_is_refused(
    stranger: str,
    lake: Lake,
    archived: tuple[Receipt, ...],
    tmp_path: Path,
    fingerprint: Callable[[Path], dict[str, str]],
) -> None:
    target = tmp_path / "restored"
    (target / stranger).parent.mkdir(parents=True)
    (target / stranger).write_bytes(b"of somebody else")
    before = fingerprint(target)
    with pytest.raises(RestoreError, match="expected an empty directory"):
        restore(lake, "store-1", target)
    assert fingerprint(target) == before


def test_a_file_with_other_bytes_is_left_alone(
    lake: Lake, segments: list[Path], archived: tuple[Receipt, ...], tmp_path: Path
) -> None:
    target = tmp_path / "restored" / "commitlog" / segments[0].name
    target.parent.mkdir(parents=True)
    target.write_bytes(b"other")
    with pytest.raises(RestoreError, match="found a file with"):
        restore(lake, "store-1", target.parents[1])
    assert target.read_bytes() == b"other"


def test_a_target_that_is_a_file_is_refused(
    lake: Lake, archived: tuple[Receipt, ...], tmp_path: Path
) -> None:
    (tmp_path / "restored").touch()
    with pytest.raises(RestoreError, match="found a file"):
        restore(lake, "store-1", tmp_path / "restored")


def test_a_full_target_disk_is_one_clear_error_and_the_rest_can_follow(
    lake: Lake, archived: tuple[Receipt, ...], mount_tmpfs: Callable[[int], Path]
) -> None:
    target = mount_tmpfs(5 << 18) / "restored"
    with pytest.raises(RestoreError, match="No space left on device"):
        restore(lake, "store-1", target)
    left = [path for path in target.rglob("*") if path.is_file()]
    assert all(path.stat().st_size == 1 << 20 for path in left)


def test_bytes_that_are_not_the_receipts_are_not_restored(
    lake: Lake, archived: tuple[Receipt, ...], tmp_path: Path
) -> None:
    path = path_of(lake, archived[0])
    rows = pq.read_table(path)
    bodies = rows["body"].to_pylist()
    broken = next(number for number, body in enumerate(bodies) if body)
    bodies[broken] = bytes([bodies[broken][0] ^ 1]) + bodies[broken][1:]
    index = rows.schema.get_field_index("body")
    pq.write_table(rows.set_column(index, rows.schema.field(index), [bodies]), path)
    with pytest.raises(RestoreError, match="The lake is damaged"):
        restore(lake, "store-1", tmp_path / "restored", span=Span(to_offset=1))
    assert list((tmp_path / "restored" / "commitlog").iterdir()) == []


def test_a_torn_data_file_is_not_restored(lake: Lake, archived: tuple[Receipt, ...], tmp_path: Path) -> None:
    path = path_of(lake, archived[0])
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ProofError, match="expected a whole Parquet file"):
        restore(lake, "store-1", tmp_path / "restored")


@pytest.mark.slow
def test_rows_that_another_engine_rewrote_come_back_all_the_same(
    lake: Lake, segments: list[Path], archived: tuple[Receipt, ...], tmp_path: Path
) -> None:
    table = lake.messages()
    table.overwrite(table.scan().to_arrow())
    assert {data_file_of(table, row) for row in archived}.isdisjoint(
        task.file.file_path for task in lake.messages().scan().plan_files()
    )
    restored = restore(lake, "store-1", tmp_path / "restored")
    assert [Path(segment.path).read_bytes() for segment in restored] == [
        path.read_bytes() for path in segments
    ]


def test_a_span_of_offsets_takes_every_segment_it_touches(archived: tuple[Receipt, ...]) -> None:
    def bases(span: Span) -> list[int]:
        return [receipt.base_offset >> 20 for receipt in choose(archived, span, "store-1", "x")]

    size = 1 << 20
    assert bases(Span()) == [0, 1, 2]
    assert bases(Span(from_offset=size)) == [1, 2]
    assert bases(Span(from_offset=size - 1)) == [0, 1, 2]
    assert bases(Span(to_offset=size)) == [0]
    assert bases(Span(to_offset=size + 1)) == [0, 1]
    assert bases(Span(from_offset=size + 5, to_offset=size + 6)) == [1]


def test_a_span_of_time_takes_every_segment_with_a_message_in_it(archived: tuple[Receipt, ...]) -> None:
    def bases(**span: int) -> list[int]:
        return [receipt.base_offset >> 20 for receipt in choose(archived, Span(**span), "store-1", "x")]

    first, last = archived[1].first_store_timestamp_ms, archived[1].last_store_timestamp_ms
    assert first is not None
    assert last is not None
    assert 1 in bases(from_ms=first, to_ms=first + 1)
    assert 1 in bases(from_ms=last, to_ms=last + 1)
    assert bases(from_ms=0) == [0, 1, 2]
    with pytest.raises(RestoreError, match="found none; the first and the last that it has are: lineage 0 c"):
        bases(to_ms=1)


def test_segments_are_restored_by_their_names(archived: tuple[Receipt, ...]) -> None:
    size = 1 << 20

    def bases(*segments: int) -> list[int]:
        return [r.base_offset for r in choose(archived, Span(segments=segments), "store-1", "x")]

    assert bases(size) == [size]
    assert bases(2 * size, size) == [size, 2 * size]
    with pytest.raises(
        RestoreError, match=rf"expected segments of store store-1 at the offsets \[{size + 1}\]"
    ):
        bases(size, size + 1)
    with pytest.raises(RestoreError, match=f"expected a segment at offset {size}, the next one is"):
        bases(0, 2 * size)
    with pytest.raises(RestoreError, match="found none"):
        bases(5)


def test_the_configuration_of_a_broker_is_there_once_the_segments_are(
    lake: Lake, archived: tuple[Receipt, ...], tmp_path: Path, fingerprint: Callable[[Path], dict[str, str]]
) -> None:
    target = tmp_path / "restored"
    restore(lake, "store-1", target)
    before = fingerprint(target / "config")
    topics = json.loads((target / "config" / "topics.json").read_text())["topicConfigTable"]
    assert topics["orders"]["readQueueNums"] == 8
    for path in target.iterdir():
        if path.name not in ("commitlog", "config"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (target / "config" / "topics.json").unlink()
    (target / "config" / ".topics.json.restoring").write_bytes(b"torn")
    restore(lake, "store-1", target)
    assert fingerprint(target / "config") == before


def test_a_configuration_that_somebody_changed_is_left_alone(
    lake: Lake, archived: tuple[Receipt, ...], tmp_path: Path
) -> None:
    target = tmp_path / "restored"
    restore(lake, "store-1", target)
    (target / "config" / "topics.json").write_text("{}")
    with pytest.raises(RestoreError, match=r"topics.json: expected SHA-256 .* restore would write"):
        restore(lake, "store-1", target)
    assert (target / "config" / "topics.json").read_text() == "{}"


@pytest.mark.slow
def test_a_restore_that_is_killed_at_any_instant_goes_on(
    lake: Lake,
    archived: tuple[Receipt, ...],
    tmp_path: Path,
    fingerprint: Callable[[Path], dict[str, str]],
) -> None:
    restore(lake, "store-1", tmp_path / "whole")
    whole = _identical(fingerprint(tmp_path / "whole"))
    targets = {tmp_path / f"killed-{number}": number / 8 for number in range(0, 10, 1 if ALL else 5)}
    words = [str(word) for target, moment in targets.items() for word in (target, moment)]
    subprocess.run([sys.executable, "-c", KILLED_RESTORES, str(tmp_path / "lake"), *words], check=True)
    for target in targets:
        for name, sha256 in fingerprint(target).items() if target.exists() else ():
            is_copy = Path(name).parts[0] in ("commitlog", "config")
            assert not is_copy or name.endswith(".restoring") or whole[name] == sha256, name
        restore(lake, "store-1", target)
        assert _identical(fingerprint(target)) == whole


def _identical(found: dict[str, str]) -> dict[str, str]:
    """Leave out the name of the index file, which is the time at which it was made, and the times."""
    return {
        "index" if name.startswith("index") else name: digest
        for name, digest in found.items()
        if name != "checkpoint"
    }


def test_a_hole_in_the_span_is_refused(archived: tuple[Receipt, ...]) -> None:
    with pytest.raises(RestoreError, match=f"expected a segment at offset {1 << 20}") as refused:
        choose((archived[0], archived[2]), Span(), "store-1", "x")
    for start in (0, 2 << 20):
        options = f"--from-offset {start} --to-offset {start + (1 << 20)}"
        assert options in str(refused.value)
        span = Span(from_offset=start, to_offset=start + (1 << 20))
        assert [r.base_offset for r in choose((archived[0], archived[2]), span, "store-1", "x")] == [start]
    assert choose((archived[0], archived[2]), Span(to_offset=1), "store-1", "x") == archived[:1]


def test_a_hole_that_went_without_a_copy_names_the_rule(archived: tuple[Receipt, ...]) -> None:
    left, middle, right = archived[:3]
    rule = "not archived, by rule 0123456789ab of topic a"
    gone = LineageRange(middle.lineage, middle.log, middle.base_offset, middle.end, rule)
    said = rf"commitlog \[{middle.base_offset}, {middle.end}\) NOT ARCHIVED: {rule}\."
    with pytest.raises(RestoreError, match=said):
        choose((left, right), Span(), "store-1", "x", unarchived=(gone,))
    elsewhere = (replace(gone, log="other"), replace(gone, lineage=7), replace(gone, end_offset=left.end))
    with pytest.raises(RestoreError, match="verify says what became of the bytes in between"):
        choose((left, right), Span(), "store-1", "x", unarchived=elsewhere)


def test_a_hole_that_another_store_may_fill_names_it(archived: tuple[Receipt, ...]) -> None:
    first, middle, last = (replace(row, log_id="named:c/b") for row in archived[:3])
    # An older version's receipt has no identity of its log.
    for before in (first, archived[0]):
        with pytest.raises(RestoreError, match="restore the bytes by --store-id store-2"):
            choose((before, last), Span(), "store-1", "x", [replace(middle, store_id="store-2")])
    other = replace(middle, store_id="store-2", log_id="named:c/d")
    with pytest.raises(RestoreError) as refused:
        choose((first, last), Span(), "store-1", "x", [other])
    assert "store-2" not in str(refused.value)


def test_an_unknown_store_is_refused(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match="found none of this store, log and lineage at all"):
        restore(lake, "store-9", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


@pytest.mark.slow
def test_the_newest_lineage_is_restored_unless_another_is_named(
    lake: Lake, segments: list[Path], archived: tuple[Receipt, ...], make_jobs: MakeJobs, tmp_path: Path
) -> None:
    old = segments[0].read_bytes()
    segments[0].write_bytes(old[:-1] + b"\x01")
    archive_all(lake, make_jobs(lake, segments[0], lineage=1, accept_damage=True))
    assert len(receipts(lake, "store-1")) == 4
    (newest,) = restore(lake, "store-1", tmp_path / "newest")
    assert Path(newest.path).read_bytes() == segments[0].read_bytes()
    named = restore(lake, "store-1", tmp_path / "named", lineage=0)
    assert Path(named[0].path).read_bytes() == old


def test_what_other_lineages_hold_is_known(archived: tuple[Receipt, ...]) -> None:
    first, second, third = archived
    rows = (first, replace(second, lineage=1), replace(third, lineage=1), replace(first, lineage=2), third)
    size = 1 << 20
    assert other_lineages(rows, rows[3:4]) == (
        LineageRange(0, "commitlog", 0, size),
        LineageRange(0, "commitlog", 2 * size, 3 * size),
        LineageRange(1, "commitlog", size, 3 * size),
    )
    assert other_lineages(archived, archived) == ()
    another = replace(third, log="another", lineage=3)
    assert other_lineages((another, *rows), rows[3:4]) == other_lineages(rows, rows[3:4])


def test_a_receipt_that_was_changed_after_it_was_written_is_not_restored_by(
    lake: Lake, archived: tuple[Receipt, ...], tmp_path: Path
) -> None:
    table = lake.segments()
    rows = table.scan().to_arrow()
    column = rows.schema.get_field_index("sha256")
    changed = [hashlib.sha256(value.as_py().encode()).hexdigest() for value in rows["sha256"]]
    table.overwrite(rows.set_column(column, rows.schema.field(column), [changed]))
    with pytest.raises(RestoreError, match="it was changed after it was written"):
        restore(lake, "store-1", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize("log", ["../../elsewhere", "/elsewhere"])
def test_a_forged_receipt_does_not_lead_out_of_the_target(
    lake: Lake, archived: tuple[Receipt, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str
) -> None:
    changed = replace(archived[0], log=log)
    forged = replace(changed, row_hash=row_hash(asdict(changed)))
    monkeypatch.setattr("storage_engine.lake.restore.restore.receipts", lambda *_, **__: (forged,))
    with pytest.raises(RestoreError, match="expected the name of a log"):
        restore(lake, "store-1", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()
