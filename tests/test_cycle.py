"""The steps of a cleanup, one after the other, on a store that is opened once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine import cycle
from storage_engine.exceptions import LakeMissingError, StoreIdentityError
from storage_engine.journal.tables.database import JournalDatabase
from storage_engine.model.broker.broker_store import BrokerStore
from storage_engine.model.plan import PlanRequest, Reason
from storage_engine.quality.facts import collect_facts
from storage_engine.retention.report.report import Outcome
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.store.broker import RocketMQBrokerStore
from tests.retention.conftest import managed

__all__ = ["managed"]

MANUAL = PlanRequest(manual=True)
Managed = Callable[..., ManagedStore]


def test_a_cleanup_is_its_steps_one_after_the_other(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = managed()
    journals = []
    opening = JournalDatabase.__init__

    def counted(self: JournalDatabase, url: str, **how: bool) -> None:
        journals.append(url)
        opening(self, url, **how)

    monkeypatch.setattr(JournalDatabase, "__init__", counted)
    with opened(store) as once:
        cleanup = cycle.Cleanup(once, "r", MANUAL)
        results = {step: step(cleanup) for step in cycle.CLEANUP if step is not cycle.validate}
        collect_facts(once, "r", full=False, with_lake=True)
    assert len(journals) == 1
    finished = results[cycle.report]
    assert (finished.outcome, finished.ok) == (Outcome.DONE, True)
    assert [path.name for path in sorted(Path(store.root, "commitlog").iterdir())] == [f"{7 << 20:020d}"]


def test_a_second_time_every_step_finds_it_done(managed: Managed) -> None:
    store = managed()
    for _ in range(2):
        with opened(store) as once:
            cleanup = cycle.Cleanup(once, "r", MANUAL)
            released = [step(cleanup) for step in cycle.CLEANUP if step is not cycle.validate][3]
    assert len(released.deleted) == 7


def test_a_setting_that_a_person_changes_midway_counts(managed: Managed, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("fileReservedTime=72\n")
    store = managed(broker_conf=str(conf))
    with opened(store) as once:
        cleanup = cycle.Cleanup(once, "r", MANUAL)
        assert cycle.plan(cleanup).deletes == 7
        cycle.archive(cleanup)
        conf.write_text("fileReservedTime=7200\n")
        released = cycle.release(cleanup)
    assert released.deleted == ()
    assert {kept.reason for kept in released.kept} == {Reason.NOT_EXPIRED}


def test_another_store_that_takes_the_place_midway_is_refused(
    managed: Managed, store_copy: Callable[[str], Path]
) -> None:
    store, other = managed(), store_copy("clean-stop")
    root = Path(store.root)
    with opened(store) as once:
        cleanup = cycle.Cleanup(once, "r", MANUAL)
        cycle.plan(cleanup)
        cycle.archive(cleanup)
        root.rename(root.with_name("aside"))
        other.rename(root)
        with pytest.raises(StoreIdentityError, match="found no stamp: another store is here"):
            cycle.release(cleanup)
    assert len(list((root / "commitlog").iterdir())) == 8


def test_where_there_is_no_lake_no_journal_is_made(store_copy: Callable[[str], Path], tmp_path: Path) -> None:
    store = ManagedStore.local("s", str(store_copy("clean-stop")), tmp_path / "managed")
    with pytest.raises(LakeMissingError), opened(store):
        pass
    assert not (tmp_path / "managed").exists()


def test_a_step_asks_for_nothing_twice(managed: Managed) -> None:
    """Lag that is on record stands once a planned segment is gone: it is not measured again."""
    store = managed()
    measured = []

    def measure(cleanup: cycle.Cleanup, asked: object) -> object:
        measured.append(asked)
        return cycle.lag_here(cleanup, asked)

    with opened(store) as once:
        cleanup = cycle.Cleanup(once, "r", MANUAL, measure_lag=measure)
        steps = (cycle.plan, cycle.consumer_lag, cycle.archive, cycle.release)
        before = [step(cleanup) for step in steps][1]
        assert cycle.consumer_lag(cleanup) == before
    assert len(measured) == 1


def test_a_broker_that_renews_nothing_is_opened_again_at_each_step(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a third party's package is, whose settings may have changed since."""
    monkeypatch.setattr(RocketMQBrokerStore, "renewed", BrokerStore.renewed)
    test_a_setting_that_a_person_changes_midway_counts(managed, Path(managed().root).parent)
