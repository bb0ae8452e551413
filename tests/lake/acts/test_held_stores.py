"""What a hold covers stays in the trash of a lake until it is lifted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from storage_engine.exceptions import LakeIdentityError
from storage_engine.lake.acts.act_files import HeldStores, newest_last, read_acts, record_act
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.gc.garbage import Collection, collect
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.model.keep.acts import decide_hold, decide_lift
from storage_engine.model.keep.keep_rules import Hold, Scope
from tests.lake.garbage_helpers import root_of, second_copy

GC = partial(collect, grace_ms=0, trash_ms=0)


def hold(lake: Lake, **scope: str) -> str:
    return record_act(lake, lambda acts: decide_hold(acts, Scope(**scope), "case 7"))[-1].sha256


@pytest.fixture
def trashed(filled: Callable[[int], Lake]) -> tuple[Lake, Path]:
    """A lake with a second copy of a segment in its trash, and where it lies there."""
    lake = filled(1)
    twin = second_copy(lake, receipts(lake, "store-1")[0])
    (taken,) = GC(lake, delete=True).taken
    assert taken.path == str(twin)
    (there,) = (root_of(lake.messages()) / ".storage-engine-trash").rglob("*.parquet")
    return lake, there


def deleted(found: Collection) -> int:
    return len([file for file in found.deleted if file.path.endswith(".parquet")])


@pytest.mark.parametrize(
    "scope", [{}, {"topic": "orders"}, {"store": "store-1", "log": "commitlog"}, {"store": "store"}]
)
def test_what_is_held_stays_in_the_trash_until_the_hold_is_lifted(
    trashed: tuple[Lake, Path], scope: dict[str, str]
) -> None:
    lake, twin = trashed
    hold_id = hold(lake, **scope)
    listed, done = GC(lake, delete=False), GC(lake, delete=True)
    assert [file.path for file in (*listed.due, *done.due) if file.path.endswith(".parquet")] == []
    assert deleted(done) == 0
    assert (listed.waiting_count, done.waiting_count) == (1, 1)
    assert twin.exists()
    record_act(lake, lambda acts: decide_lift(acts, hold_id))
    assert deleted(GC(lake, delete=True)) == 1
    assert not twin.exists()


def test_a_hold_of_another_store_keeps_nothing_of_this_one(trashed: tuple[Lake, Path]) -> None:
    lake, twin = trashed
    hold(lake, store="other")
    assert deleted(GC(lake, delete=True)) == 1
    assert not twin.exists()


def test_nothing_is_removed_while_acts_are_no_chain(trashed: tuple[Lake, Path]) -> None:
    lake, twin = trashed
    hold(lake, store="other")
    (act,) = read_acts(lake)
    Path(
        f"{lake.segments().location().removeprefix('file://')}/_storage-engine/acts/{act.sha256}.json"
    ).unlink()
    with pytest.raises(LakeIdentityError, match=rf"expected the act {act.sha256}.*nothing is removed"):
        GC(lake, delete=True)
    assert twin.exists()


def test_a_file_is_held_by_its_store_and_one_of_no_known_store_by_any_hold() -> None:
    names = newest_last((("1", "first"), ("2", None), ("1", "second"), ("1", "first")))
    assert names == {"1": ("second", "first"), "2": ()}
    held = HeldStores((Hold("h", Scope(store="second"), "why", "ann", 0),), names)
    assert held.holds_file("data/store_id=1/x.parquet")
    assert not held.holds_file("data/store_id=2/x.parquet")
    assert held.holds_file("data/x.parquet")
    assert not held.holds_file("metadata/x.avro")
    assert not HeldStores((), names).holds_file("data/x.parquet")
