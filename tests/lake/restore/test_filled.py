"""Segments of which some topics are gone, restored with filler: what stays is as it was; the rest is told."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

import pyarrow.compute as pc
import pytest

from storage_engine.exceptions import ProofError, RestoreError, StorageEngineError, StoreIdentityError
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.gc import segment_expiry
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.restore.restore_span import FILLED_FILE, Span, filled_notes, read_filled
from storage_engine.rocketmq.codec.codec import CODEC
from storage_engine.rocketmq.codec.frame_layout import FILLER_TOPIC
from tests.lake.conftest import MakeJobs
from tests.lake.gc.test_segment_expiry import STORE, every_receipt, expire, path_of
from tests.lake.gc.test_thinning import EVENTS, LEDGER, ORDERS, thin
from tests.retention.kill_runner import Moment, count_durable_operations, not_killed
from tests.rounds import ALL
from tests.services.forks import in_child
from tests.services.restoring import restore

MIB = 1 << 20


@pytest.fixture
def lake(filled: Callable[[int], Lake]) -> Lake:
    """A lake of two segments, of the first of which two topics have left."""
    lake = filled(2)
    thin(lake, every_receipt(lake)[:1], EVENTS, LEDGER)
    return lake


def check_filled(data: bytes, original: bytes, gone: Collection[str]) -> int:
    """Make sure that a segment is the original one but for some topics; return how much of it is filler."""
    filler_bytes = 0
    assert len(data) == len(original)
    for rows, damage in CODEC.decode(memoryview(data), 0):
        assert not damage
        sizes = rows.select(["topic", "size"])
        filler = sizes.filter(pc.equal(sizes["topic"], FILLER_TOPIC))
        filler_bytes += pc.sum(filler["size"]).as_py() or 0
    for rows, _ in CODEC.decode(memoryview(original), 0):
        for topic, at, size in zip(
            *(rows[name].to_pylist() for name in ("topic", "physical_offset", "size")), strict=True
        ):
            same = data[at : at + size] == original[at : at + size]
            assert same == (topic not in gone), (topic, at)
    return filler_bytes


def test_what_stays_is_as_it_was_and_a_note_tells_of_the_filler(
    lake: Lake, segments: list[Path], tmp_path: Path
) -> None:
    back = tmp_path / "back"
    done = restore(lake, STORE, back, with_filler=True)
    first, second = (path.read_bytes() for path in segments[:2])
    found = Path(done[0].path).read_bytes()
    size = check_filled(found, first, {EVENTS, LEDGER})
    assert Path(done[1].path).read_bytes() == second
    (noted,) = read_filled(back)
    assert (noted.base_offset, noted.filler_bytes) == (0, size)
    assert noted.sha256 == done[0].sha256 == hashlib.sha256(found).hexdigest()
    assert noted.archived_sha256 == done[0].archived_sha256 == hashlib.sha256(first).hexdigest()
    assert done[1].sha256 == done[1].archived_sha256
    assert filled_notes(back, {("commitlog", MIB)}) == ()
    (note,) = filled_notes(back, {("commitlog", 0)})
    assert noted.sha256 in note
    assert "in the lake in part only (partial) by policy " in note
    assert [it.existed for it in restore(lake, STORE, back, with_filler=True)] == [True, True]


def test_without_the_word_for_it_nothing_is_filled(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match="EXPIRED: in the lake in part only"):
        restore(lake, STORE, tmp_path / "back", span=Span(to_offset=MIB))
    assert [it.base_offset for it in restore(lake, STORE, tmp_path / "behind")] == [MIB]
    assert read_filled(tmp_path / "behind") == ()


def test_what_another_directory_was_filled_with_is_not_gone_on_with(lake: Lake, tmp_path: Path) -> None:
    restore(lake, STORE, tmp_path / "back", with_filler=True)
    thin(lake, every_receipt(lake)[:1], ORDERS)
    with pytest.raises(RestoreError, match="of another lineage or store, or was changed since"):
        restore(lake, STORE, tmp_path / "back", with_filler=True)


def test_a_second_lake_that_has_all_of_it_is_taken(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, tmp_path: Path
) -> None:
    second = make_lake(LakeConfig.local(tmp_path / "second"))
    archive_all(second, make_jobs(second, segments[0]))
    for first, other in ((lake, second), (second, lake)):
        back = tmp_path / f"back {first is lake}"
        done = restore(first, STORE, back, second=other, with_filler=True)
        assert [Path(it.path).read_bytes() for it in done] == [path.read_bytes() for path in segments[:2]]
        assert read_filled(back) == ()
        assert not (back / FILLED_FILE).exists()


def test_of_two_lakes_that_have_a_part_the_one_that_has_more_is_taken(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, tmp_path: Path
) -> None:
    second = make_lake(LakeConfig.local(tmp_path / "second"))
    archive_all(second, make_jobs(second, segments[0]))
    thin(second, every_receipt(second), EVENTS)
    for number, (first, other) in enumerate(((lake, second), (second, lake))):
        done = restore(first, STORE, tmp_path / f"back {number}", second=other, with_filler=True)
        check_filled(Path(done[0].path).read_bytes(), segments[0].read_bytes(), {EVENTS})
    expire(lake, every_receipt(lake)[:1])
    done = restore(lake, STORE, tmp_path / "rest", second=second, with_filler=True)
    check_filled(Path(done[0].path).read_bytes(), segments[0].read_bytes(), {EVENTS})


def test_filler_that_was_archived_is_no_topic_of_a_restored_store(
    filled: Callable[[int], Lake], make_jobs: MakeJobs, tmp_path: Path
) -> None:
    lake = filled(3)
    thin(lake, every_receipt(lake), EVENTS)
    paths = [Path(it.path) for it in restore(lake, STORE, tmp_path / "back", with_filler=True)]
    archive_all(lake, make_jobs(lake, *paths, store_id="store-2"))
    thin(lake, every_receipt(lake, "store-2")[1:2], FILLER_TOPIC)
    done = restore(lake, "store-2", tmp_path / "again", with_filler=True)
    assert [Path(it.path).read_bytes() for it in done] == [path.read_bytes() for path in paths]
    for name in ("back", "again"):
        topics = json.loads((tmp_path / name / "config" / "topics.json").read_text())["topicConfigTable"]
        assert {LEDGER, ORDERS} <= topics.keys()
        assert not {EVENTS, FILLER_TOPIC} & topics.keys()


def test_a_topic_with_a_gap_is_refused_by_name(filled: Callable[[int], Lake], tmp_path: Path) -> None:
    lake = filled(3)
    thin(lake, every_receipt(lake)[1:2], LEDGER)
    with pytest.raises(RestoreError) as refused:
        restore(lake, STORE, tmp_path / "back", with_filler=True)
    assert f"messages of topic {LEDGER!r} before and after the segment at {MIB}" in str(refused.value)
    assert f"one with --to-offset {2 * MIB}, the other with --from-offset {2 * MIB}." in str(refused.value)
    assert not (tmp_path / "back").exists()
    for number, span in enumerate((Span(to_offset=2 * MIB), Span(from_offset=2 * MIB))):
        restore(lake, STORE, tmp_path / f"side {number}", span=span, with_filler=True)


def test_what_stays_and_is_damaged_is_not_restored(lake: Lake, tmp_path: Path) -> None:
    path = path_of(lake, every_receipt(lake)[0])
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageEngineError):
        restore(lake, STORE, tmp_path / "back", with_filler=True)
    assert not (tmp_path / "back").exists()


def test_rows_that_another_engine_has_changed_are_not_restored(lake: Lake, tmp_path: Path) -> None:
    messages = lake.messages()
    rows = messages.scan().to_arrow()
    at = rows.schema.get_field_index("flag")
    changed = rows.set_column(at, rows.schema.field(at), pc.add(rows["flag"], 1).cast(rows["flag"].type))
    messages.overwrite(rows)
    restore(lake, STORE, tmp_path / "moved", with_filler=True)
    messages.overwrite(changed)
    with pytest.raises(ProofError, match="expected the root"):
        restore(lake, STORE, tmp_path / "back", with_filler=True)
    assert not (tmp_path / "back").exists()


def test_between_the_commits_of_an_expiry_the_rows_that_go_are_filler(
    filled: Callable[[int], Lake], segments: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lake = filled(1)
    with monkeypatch.context() as patch:
        patch.setattr(segment_expiry, "data_step", lambda *_: None)
        thin(lake, every_receipt(lake), LEDGER)
    (done,) = restore(lake, STORE, tmp_path / "back", with_filler=True)
    check_filled(Path(done.path).read_bytes(), segments[0].read_bytes(), {LEDGER})
    topics = json.loads((tmp_path / "back" / "config" / "topics.json").read_text())["topicConfigTable"]
    assert ORDERS in topics
    assert LEDGER not in topics


@pytest.mark.parametrize(
    "setting", ["brokerRole=SLAVE", "forceVerifyPropCRC=true", "enableLmq=true", "enableMultiDispatch=true"]
)
def test_a_broker_that_would_not_take_filler_is_named(lake: Lake, setting: str, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"{setting}\n")
    with pytest.raises(RestoreError, match=f"found {setting}: .* Nothing was written"):
        restore(lake, STORE, tmp_path / "back", serving=[conf], with_filler=True)
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("setting", ["forceVerifyPropCRC=true", "enableLmq=true"])
def test_a_broker_that_would_not_take_filler_that_was_archived_is_named(
    lake: Lake, make_jobs: MakeJobs, setting: str, tmp_path: Path
) -> None:
    paths = [Path(it.path) for it in restore(lake, STORE, tmp_path / "filled", with_filler=True)]
    archive_all(lake, make_jobs(lake, *paths, store_id="store-2"))
    conf = tmp_path / "broker.conf"
    conf.write_text(f"{setting}\n")
    with pytest.raises(RestoreError, match=f"found {setting}: .* Nothing was written"):
        restore(lake, "store-2", tmp_path / "back", serving=[conf])
    assert not (tmp_path / "back").exists()


def test_a_note_that_says_nothing_is_an_error(lake: Lake, tmp_path: Path) -> None:
    restore(lake, STORE, tmp_path / "back", with_filler=True)
    (tmp_path / "back" / FILLED_FILE).write_text("{}")
    with pytest.raises(StoreIdentityError, match="expected a record of segments with filler"):
        read_filled(tmp_path / "back")
    assert "can't be read" in filled_notes(tmp_path / "back", ())[0]


@pytest.mark.slow
def test_killed_at_a_durable_operation_no_filler_is_there_without_its_note(
    lake: Lake, tmp_path: Path
) -> None:
    back = tmp_path / "back"

    def work(kill_before: int | None) -> list[str]:
        done, at_step = count_durable_operations(
            None if kill_before is None else Moment("restore", kill_before)
        )
        at_step("restore")
        restore(open_lake(lake.config), STORE, back, with_filler=True, files_only=True)
        at_step("")
        return done

    status, operations = in_child(lambda: work(None))
    assert status == 0
    assert len(operations) >= 6
    whole = {path.relative_to(back): path.read_bytes() for path in back.rglob("*") if path.is_file()}
    assert {path.name for path in whole} == {FILLED_FILE.name, f"{0:020d}", f"{MIB:020d}"}
    few = range(len(operations) % 2, len(operations), max(1, len(operations) // 4))
    for number in range(len(operations)) if ALL else few:
        shutil.rmtree(back)
        status, _ = in_child(lambda number=number: work(number))
        assert not_killed(status) == []
        if (back / "commitlog" / f"{0:020d}").exists():
            assert len(read_filled(back)) == 1, operations[number]
        restore(lake, STORE, back, with_filler=True, files_only=True)
        assert whole == {p.relative_to(back): p.read_bytes() for p in back.rglob("*") if p.is_file()}
