"""Which store a directory is; see also ``test_stamp.py`` and ``test_host.py``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest

from storage_engine.exceptions import StoreIdentityError
from storage_engine.model.plan import PlanRequest
from storage_engine.retention import steps
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.rocketmq import RocketMQ

MANUAL = PlanRequest(manual=True)


class Clone(RocketMQ):
    name = "clone"
    title = "Clone"
    is_default = False


def test_a_store_that_is_known_as_another_brokers_is_left_alone(
    managed: Callable[..., ManagedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = ModuleType("storage_engine.clone")
    package.BROKER = Clone()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    store = managed()
    assert steps.make_plan(store, "r", MANUAL).deletes
    with pytest.raises(StoreIdentityError, match=r"a store of rocketmq, as .* as one of clone\. Nothing"):
        steps.make_plan(replace(store, broker="clone"), "another", MANUAL)
    assert steps.recorded_plan(store, "r").to_delete
