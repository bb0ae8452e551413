"""Verifying a lake in turns, with a journal that remembers them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pytest

from storage_engine.core.long_work import Advance, LongWork, listening
from storage_engine.exceptions import JournalUnavailableError
from storage_engine.lake.archive.archive import archive_all, segment_jobs
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.chain import row_hash
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.validation import Status, StoreVerification, VerifyLevel
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.retention.ranges.verification import verify_lake
from tests.lakes import path_of

pytestmark = pytest.mark.slow

MIB = 1 << 20
SEGMENTS = 4


@pytest.fixture
def lake(tmp_path: Path, store_copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setattr("storage_engine.lake.verify.verify._COMMIT_SECONDS", 0.0)
    root = store_copy("clean-stop")
    lake = make_lake(LakeConfig.local(tmp_path / "lake"))
    chosen = [
        Segment("commitlog", number * MIB, FileFacts.of(path), SegmentState.SEALED)
        for number, path in enumerate(sorted((root / "commitlog").iterdir())[:SEGMENTS])
    ]
    jobs = segment_jobs(lake, chosen, store_id="store", lineage=0, broker="rocketmq", store_root=str(root))
    archive_all(lake, jobs)
    return lake


@pytest.fixture
def turn(lake: Lake, tmp_path: Path) -> Callable[..., StoreVerification]:
    def verify(max_bytes: int | None = None, level: VerifyLevel = VerifyLevel.FILES, **more: object):
        journal_url = f"sqlite:///{tmp_path / 'journal.db'}"
        (found,) = verify_lake(lake.config, journal_url, level, max_bytes=max_bytes, **more)
        return found

    return verify


def test_turns_under_a_budget_walk_round_the_whole_lake(
    turn: Callable[..., StoreVerification], lake: Lake
) -> None:
    rows = receipts(lake, "store")
    budget = max(row.data_file_bytes for row in rows)
    covered = []
    for _ in range(SEGMENTS):
        found = turn(budget)
        assert (found.overall, found.checked_count) == (Status.OK, 1)
        covered.append(found.coverage)
    assert [row.verified_bytes for row in covered] == [MIB, 2 * MIB, 3 * MIB, 4 * MIB]
    assert [row.never_count for row in covered] == [3, 2, 1, 0]
    later = turn(budget)
    assert later.coverage.verified_bytes == 4 * MIB
    assert (later.coverage.since_ms or 0) > (covered[-1].since_ms or 0)
    # A closer look is another matter.
    assert turn(budget, VerifyLevel.BYTES).coverage.verified_bytes == MIB


def test_a_fault_stands_until_it_is_healed_and_is_looked_at_again_before_others(
    turn: Callable[..., StoreVerification], lake: Lake
) -> None:
    rows = receipts(lake, "store")
    path, sound = path_of(lake, rows[0]), path_of(lake, rows[0]).read_bytes()
    path.write_bytes(sound[:-10] + bytes(10))
    assert turn(1).overall is Status.FAILURE
    path.write_bytes(sound)
    unseen = turn(1)
    assert unseen.overall is Status.FAILURE
    assert "not looked at since" in unseen.findings[0].detail
    assert unseen.coverage.verified_bytes == MIB
    healed = turn(2 * max(row.data_file_bytes for row in rows))
    assert (healed.overall, healed.findings) == (Status.OK, ())


def test_an_interrupted_turn_goes_on_where_it_stopped(
    turn: Callable[..., StoreVerification], lake: Lake
) -> None:
    @contextmanager
    def interrupted(_work: LongWork) -> Iterator[Advance]:
        def advance(_done_bytes: int) -> None:
            raise KeyboardInterrupt

        yield advance

    with listening(interrupted), pytest.raises(KeyboardInterrupt):
        turn()
    assert turn(1).coverage.verified_bytes == 2 * MIB


def _edit_last(lake: Lake, rows: tuple[Receipt, ...]) -> None:
    edited = replace(rows[-1], source_path="/elsewhere")
    edited = replace(edited, row_hash=row_hash(asdict(edited)))
    table = lake.segments()
    content = [asdict(row) for row in (*rows[:-1], edited)]
    table.overwrite(pa.Table.from_pylist(content, schema=table.schema().as_arrow()))


def _remove_last(lake: Lake, rows: tuple[Receipt, ...]) -> None:
    where = f"segment_base_offset = {rows[-1].base_offset}"
    lake.messages().delete(where)
    lake.segments().delete(where.removeprefix("segment_"))


def _remove_all(lake: Lake, _rows: tuple[Receipt, ...]) -> None:
    lake.messages().delete()
    lake.segments().delete()


@pytest.mark.parametrize(
    ("tamper", "expected"),
    [
        (_edit_last, "found another one in its place"),
        (_remove_last, "found none"),
        (_remove_all, "found none"),
    ],
)
def test_memory_shows_what_no_chain_can(
    tamper: Callable[[Lake, tuple[Receipt, ...]], None],
    expected: str,
    turn: Callable[..., StoreVerification],
    lake: Lake,
) -> None:
    """That a chain has lost its end, or that its last row was changed along with its hash."""
    assert turn(level=VerifyLevel.RECEIPTS).overall is Status.OK
    tamper(lake, receipts(lake, "store"))
    found = turn(level=VerifyLevel.RECEIPTS)
    assert found.overall is Status.FAILURE
    assert expected in found.findings[0].detail


def test_a_lake_whose_journal_cannot_be_written_is_verified_but_not_in_turns(
    lake: Lake, tmp_path: Path
) -> None:
    nowhere = f"sqlite:///{tmp_path}"
    (found,) = verify_lake(lake.config, nowhere, VerifyLevel.FILES)
    assert (found.overall, found.checked_count) == (Status.WARNING, SEGMENTS)
    assert [one.detail[:42] for one in found.findings] == ["its record of deletions was not compared: "]
    with pytest.raises(JournalUnavailableError):
        verify_lake(lake.config, nowhere, VerifyLevel.FILES, max_bytes=1)
