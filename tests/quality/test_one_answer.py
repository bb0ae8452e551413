"""Gate, ``verify`` and validation say the same of a receipt in one and the same lake."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.types import IntegerType

from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.soundness.chain import row_hash
from storage_engine.lake.soundness.receipts import current, receipt_history
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.validation import Status, VerifyLevel, Where, receipt_name
from storage_engine.quality.facts import collect_facts
from storage_engine.retention import steps
from storage_engine.retention.proof.proofs import read_proofs
from storage_engine.retention.ranges.verification import verify_store
from storage_engine.retention.store.context import open_context
from storage_engine.retention.store.known_heads import known_heads
from tests.lakes import path_of
from tests.other_engine import change_entry, change_rows, commit_again, delete_position, file_of, rewrite
from tests.quality.cases import SEGMENT, Case
from tests.rounds import later

pytestmark = pytest.mark.slow

GONE, HERE = 1, 5
"""Segments that are archived: one was released, the other is on disk still."""


@pytest.fixture(autouse=True)
def nobody_archives_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_engine.lake.verify.verify._COMMIT_SECONDS", 0.0)
    monkeypatch.setattr("storage_engine.lake.archive.commit.OTHERS_SECONDS", 0.0)


@dataclass(frozen=True)
class Answers:
    """Which segments' receipts are unsound, by their numbers; ``proven`` are those with rows that prove them.

    :param lost: ranges that are nowhere begin with these segments.
    """

    gate: set[int]
    verify: set[int]
    validation: set[int]
    proven: tuple[set[int], set[int]]
    lost: tuple[set[int], set[int]]


def receipts_of(case: Case) -> tuple[Lake, tuple[Receipt, ...]]:
    context = open_context(case.store)
    lake = open_lake(case.store.lake)
    return lake, current(receipt_history(lake, context.record.store_id))


def ask(case: Case) -> Answers:
    context = open_context(case.store)
    _, rows = receipts_of(case)
    proofs = read_proofs(
        case.store.lakes,
        context.record,
        {(row.log, row.base_offset) for row in rows},
        known=known_heads(context.journal, context.record),
        to_delete=True,
        read_files=True,
    )
    (asked,) = proofs.asked
    (found,) = verify_store(case.store, VerifyLevel.BYTES)
    facts = collect_facts(case.store, None, full=True, with_lake=True)
    receipts = facts.tables["lake_receipts"]
    numbers = defaultdict(lambda: -1, {receipt_name(row): row.base_offset // SEGMENT for row in rows})
    said: dict[Status, set[int]] = {Status.FAILURE: set(), Status.WARNING: set()}
    every = {row.base_offset // SEGMENT for row in rows}
    for finding in found.findings:
        # Of a chain that is broken all receipts; other findings about no receipt are about the table.
        is_chain = finding.subject == "receipts" and finding.detail.startswith("receipts of store")
        said[finding.status] |= every if is_chain else {numbers[finding.subject]} & every
    sound = {
        name: {numbers[row["subject"].removeprefix("receipt ")] for row in receipts.rows if row[name]}
        for name in ("fault", "moved")
    }
    lost = tuple(
        {row.start_offset // SEGMENT for row in ranges if row.where is Where.LOST}
        for ranges in (found.ranges, facts.ranges)
    )
    return Answers(
        gate={identity.base_offset // SEGMENT for identity in asked.faults},
        verify=said[Status.FAILURE],
        validation=sound["fault"],
        proven=(said[Status.WARNING], sound["moved"]),
        lost=(lost[0], lost[1]),
    )


def commit_a_data_file_twice(lake: Lake, receipt: Receipt) -> None:
    commit_again(lake, receipt)


def count_other_rows_in_the_manifest(lake: Lake, receipt: Receipt) -> None:
    change_entry(lake, receipt, record_count=receipt.row_count - 1)


def bound_another_lineage_in_the_manifest(lake: Lake, receipt: Receipt) -> None:
    field = lake.messages().schema().find_field("lineage")
    change_entry(lake, receipt, upper_bounds={field.field_id: to_bytes(IntegerType(), receipt.lineage + 1)})


def flip_a_bit(lake: Lake, receipt: Receipt) -> None:
    path = path_of(lake, receipt)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def name_another_data_file(lake: Lake, receipt: Receipt) -> None:
    """The rows still prove the segment; the receipt says what it didn't."""
    change_rows(lake, lambda row: _changed(row, receipt, data_file="data/nothing.parquet"))


def say_what_nobody_can_parse(lake: Lake, receipt: Receipt) -> None:
    change_rows(lake, lambda row: _changed(row, receipt, moved_to="no JSON", broker="no-broker"))


def _changed(row: dict[str, Any], receipt: Receipt, **changed: Any) -> dict[str, Any]:
    return row | changed if row["base_offset"] == receipt.base_offset else row


def drop_a_column_of_what_another_engine_wrote(lake: Lake, receipt: Receipt) -> None:
    """What PyArrow raises over such a file is no error of the lake's."""
    rewrite(lake, receipt)
    path = local_path(file_of(lake, receipt).file_path)
    assert path is not None
    rows = pq.ParquetFile(path).read()
    pq.write_table(rows.drop_columns(["size"]), path)


ONE = {GONE}
UNSOUND: dict[Callable[[Lake, Receipt], None], bool] = {
    commit_a_data_file_twice: False,
    count_other_rows_in_the_manifest: False,
    bound_another_lineage_in_the_manifest: False,
    flip_a_bit: True,
    name_another_data_file: True,
    say_what_nobody_can_parse: True,
    drop_a_column_of_what_another_engine_wrote: True,
}
"""Whether the bytes are lost as well."""

ALIKE = (bound_another_lineage_in_the_manifest, flip_a_bit, say_what_nobody_can_parse)
"""Faults that another one is like, or that others' tests find."""


@pytest.mark.parametrize(
    "fault",
    [pytest.param(it, marks=pytest.mark.again if it in ALIKE else (), id=it.__name__) for it in UNSOUND],
)
def test_a_receipt_that_is_not_sound_is_so_to_all_three(
    case: Case, fault: Callable[[Lake, Receipt], None]
) -> None:
    lake, rows = receipts_of(case)
    fault(lake, rows[GONE])
    lost = ONE if UNSOUND[fault] else set()
    assert ask(case) == Answers(ONE, ONE, ONE, (set(), set()), (lost, lost))


def test_a_lake_that_is_sound_is_so_to_all_three(case: Case) -> None:
    assert ask(case) == Answers(set(), set(), set(), (set(), set()), (set(), set()))


@pytest.mark.parametrize("moved", ["rewritten", "with a delete file"])
def test_rows_that_prove_a_segment_elsewhere_are_not_lost_and_no_deletion_rests_on_the_receipt(
    case: Case, moved: str
) -> None:
    lake, rows = receipts_of(case)
    if moved == "rewritten":
        rewrite(lake, rows[GONE])
    else:
        delete_position(lake, rows[GONE], 1 << 40)
    assert ask(case) == Answers(ONE, set(), set(), (ONE, ONE), (set(), set()))


@pytest.mark.parametrize("forged", ["replaced", "removed"])
def test_no_receipt_of_a_chain_that_is_broken_is_sound_to_anybody(case: Case, forged: str) -> None:
    """Only journal and stamp know that the last receipt was another one."""
    lake, rows = receipts_of(case)
    last = max(rows, key=lambda row: row.sequence)

    def change(row: dict[str, Any]) -> dict[str, Any] | None:
        if forged == "removed":
            return None if row["sequence"] == GONE else row
        other = row | {"message_count": row["message_count"] + 1}
        return other | {"row_hash": row_hash(other)} if row["sequence"] == last.sequence else row

    change_rows(lake, change)
    every = {row.base_offset // SEGMENT for row in receipts_of(case)[1]}
    lost = ONE if forged == "removed" else set()
    found = ask(case)
    assert (found.gate, found.validation, found.lost) == (every, every, (lost, lost))
    assert every <= found.verify


def test_statistics_that_mislead_queries_are_found_by_who_lists_them(case: Case) -> None:
    """The gate lists only what names a segment, and no deletion rests on the others."""
    lake, rows = receipts_of(case)
    topic = lake.messages().schema().find_field("topic")
    bounds = file_of(lake, rows[GONE]).upper_bounds
    change_entry(lake, rows[GONE], upper_bounds=bounds | {topic.field_id: b"aaa"})
    found = ask(case)
    assert (found.gate, found.verify, found.validation) == (set(), ONE, ONE)
    assert found.lost == (set(), set())


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(commit_a_data_file_twice, marks=pytest.mark.again),
        *later(count_other_rows_in_the_manifest, name_another_data_file),
        say_what_nobody_can_parse,
    ],
)
def test_archiving_again_makes_a_sound_receipt(case: Case, fault: Callable[[Lake, Receipt], None]) -> None:
    lake, rows = receipts_of(case)
    fault(lake, rows[HERE])
    assert ask(case).gate == {HERE}
    jobs = steps.archive_jobs(case.store, "again", all_sealed=True)
    steps.archive(case.store, "again", [job for job in jobs if job.base_offset == HERE * SEGMENT])
    if fault in (name_another_data_file, say_what_nobody_can_parse):
        # The row that was changed stays in the chain, and says so; it doesn't count any more.
        assert ask(case).gate == set()
    else:
        assert ask(case) == Answers(set(), set(), set(), (set(), set()), (set(), set()))
    assert file_of(lake, rows[HERE]).record_count == rows[HERE].row_count
