"""A real store whose archived segments expire in the lake: the same bytes need a new proof before they go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError, GateRefusedError
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.soundness.receipts import list_stores, receipt_history, receipts
from storage_engine.model.report.validation import Status, VerifyLevel, Where
from storage_engine.quality.validate import validate_store
from storage_engine.retention import steps
from storage_engine.retention.decisions import adopt
from storage_engine.retention.proof.gate import Passage
from storage_engine.retention.ranges.verification import verify_store
from storage_engine.retention.steps import monitor
from storage_engine.retention.store.managed_store import ManagedStore
from tests.lake.expiry import ACT, Expire, expire, expire_receipts
from tests.lakes import damage

pytestmark = pytest.mark.slow

MIB = 1 << 20
GONE = f"expired by act {ACT[:12]}"


def lake_of(store: ManagedStore) -> tuple[Lake, str]:
    lake = open_lake(store.lakes[0])
    (known,) = list_stores(lake)
    return lake, known.store_id


@pytest.mark.parametrize(
    "expire_rows", [pytest.param(expire_receipts, marks=pytest.mark.again), expire], ids=["begun", "done"]
)
def test_what_expired_is_archived_again_before_it_goes(
    archived: Callable[..., ManagedStore], refuses: Callable[..., str], expire_rows: Expire
) -> None:
    store = archived(max_segments=2)
    lake, store_id = lake_of(store)
    old = receipts(lake, store_id)
    assert len(old) == 2
    expire_rows(lake, old)
    refuses(store, GateRefusedError)
    jobs = steps.archive_jobs(store, "r")
    assert [job.base_offset for job in jobs] == [0, MIB]
    steps.archive(store, "r", jobs)
    new = receipts(lake, store_id)
    assert [row.identity for row in new] == [row.identity for row in old]
    released = steps.release(store, "r").deleted
    assert [one.passage for one in released] == [Passage.PROVEN] * 2
    assert [one.receipt_hash for one in released] == [row.row_hash for row in new]
    assert len(receipt_history(lake, store_id)) == 6


def test_store_and_lake_call_what_expired_so(archived: Callable[..., ManagedStore]) -> None:
    store = archived(max_segments=3)
    steps.release(store, "r")
    steps.clean_dependents(store, "r")
    steps.flush_checkpoint(store, "r")
    lake, store_id = lake_of(store)
    expire_receipts(lake, receipts(lake, store_id)[:1])
    expire(lake, receipts(lake, store_id)[:1])
    wanted = [
        (0, 2 * MIB, Where.EXPIRED, Status.OK, GONE),
        (2 * MIB, 3 * MIB, Where.ARCHIVED, Status.OK, "in the lake only, with a valid receipt"),
    ]
    (found,) = verify_store(store, VerifyLevel.STORE)
    assert (found.overall, found.findings) == (Status.OK, ())
    result = validate_store(store, None, full=True)
    assert [check for check in result.checks if check.status is Status.FAILURE] == []
    for ranges in (found.ranges, result.ranges):
        told = [(one.start_offset, one.end_offset, one.where, one.status, one.detail) for one in ranges]
        assert told[:2] == wanted
        assert {one.where for one in ranges[2:]} == {Where.LOCAL}
    monitor(store, "look")
    reader = JournalReader(store.journal_url)
    findings = reader.findings(store_id)
    assert findings is not None
    assert (findings.found["page_errors"], findings.found["alarms"]) == ([], [])
    recorded = [
        (one["start_offset"], one["end_offset"], one["where"], one["detail"], one["size_bytes"])
        for one in findings.found["ranges"]
    ]
    assert recorded[0] == (0, 2 * MIB, "expired", GONE, 0)
    assert recorded[1][:3] == (2 * MIB, 3 * MIB, "archived")


@pytest.mark.again
def test_other_bytes_where_something_expired_can_be_adopted(archived: Callable[..., ManagedStore]) -> None:
    store = archived(max_segments=1)
    lake, store_id = lake_of(store)
    expire(lake, receipts(lake, store_id))
    with pytest.raises(BadInputError, match="found none: there is nothing to adopt"):
        adopt(store, "ann", "the broker recovered")
    damage(Path(store.root) / "commitlog" / f"{0:020d}")
    assert adopt(store, "ann", "the broker recovered").lineage == 2
