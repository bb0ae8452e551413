"""Which store a directory is; see also ``test_stamp.py`` and ``test_host.py``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from storage_engine.exceptions import BadInputError, StoreIdentityError
from storage_engine.journal.journal import Journal, StoreRecord
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.model.plan import PlanRequest
from storage_engine.retention import steps
from storage_engine.retention.store.identity import identify
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq import RocketMQ

MANUAL = PlanRequest(manual=True)


class Clone(RocketMQ):
    name = "clone"
    is_default = False


@pytest.mark.slow
def test_a_store_that_is_known_as_another_brokers_is_left_alone(
    managed: Callable[..., ManagedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = ModuleType("storage_engine.clone")
    package.BROKER = Clone()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    store = managed()
    assert steps.make_plan(store, "r", MANUAL).deletes
    with pytest.raises(
        StoreIdentityError, match=r"broker rocketmq, which .* found clone in the settings\. Nothing"
    ):
        steps.make_plan(replace(store, broker="clone"), "another", MANUAL)
    assert steps.recorded_plan(store, "r").to_delete


@pytest.mark.slow
def test_two_first_looks_at_one_moment_find_one_store(managed: Callable[..., ManagedStore]) -> None:
    store = managed()

    class Overtaken(Journal):
        def store_named(self, name: str) -> StoreRecord | None:
            # Between the look for the store and the look for its name, another process is through.
            identify(store, Journal(store.journal_url))
            return super().store_named(name)

    record = identify(store, Overtaken(store.journal_url))
    assert [known.store_id for known in Journal(store.journal_url).all_stores()] == [record.store_id]


@pytest.mark.slow
def test_a_second_lake_of_another_broker_is_named_before_anything_goes(
    managed: Callable[..., ManagedStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = ModuleType("storage_engine.clone")
    package.BROKER = Clone()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    other = LakeConfig.local(tmp_path / "clones")
    make_lake(other, "clone")
    found = "a lake for segments of rocketmq, found one for those of clone"
    with pytest.raises(BadInputError, match=found):
        steps.make_plan(replace(managed(), second_lake=other), "r", MANUAL)
    steps.make_plan(managed(), "r", MANUAL)
    with pytest.raises(BadInputError, match=found):
        steps.archive_jobs(replace(managed(), second_lake=other), "r")
