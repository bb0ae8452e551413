"""What stands for a store by its journal."""

from __future__ import annotations

from pathlib import Path

from storage_engine.core.jsonable import to_jsonable
from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.model.hold import HoldStatus
from storage_engine.model.plan import PlanRequest
from storage_engine.retention.ranges.deleted_ranges import AcceptedLoss, record_loss

NOW_MS = 1_000


def test_hold_lease_waiver_and_loss_are_those_of_the_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/journal.db"
    journal = Journal(url)
    store, other = (journal.add_store(f"/{name}", "rocketmq") for name in ("a", "b"))
    run = journal.begin_run(store.store_id, "r", PlanRequest())
    for held, ends_at_ms in ((True, 5_000), (True, 9_000)):
        status = HoldStatus(held, ends_at_ms=ends_at_ms)
        journal.record(run, Step.HOLD, Phase.RESULT, [("", {"result": to_jsonable(status)})])
    record_loss(journal, run, AcceptedLoss("log", 1, 0, 7, "ann", "the disk burnt"))
    journal.waive("0" * 64, "ann", "of no plan of theirs")
    reader = JournalReader(url)
    with journal.lease(store.store_id):
        found = reader.standing(store.store_id, NOW_MS)
        assert found.worker is not None
    assert (found.hold is not None, found.waivers, found.verified) == (True, (), None)
    assert found.hold is not None
    assert (found.hold.held, found.hold.ends_at_ms, found.hold.run_key) == (True, 9_000, "r")
    (loss,) = found.losses
    assert (loss.start_offset, loss.end_offset, loss.person, loss.reason) == (0, 7, "ann", "the disk burnt")
    assert reader.standing(store.store_id, NOW_MS).worker is None
    nothing = reader.standing(other.store_id, NOW_MS)
    assert (nothing.hold, nothing.losses, nothing.worker) == (None, (), None)
