"""A store keeps its identity when it gets another name, directory or host; see also ``cli/test_move.py``."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.core import host
from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import BadInputError, GateRefusedError, StoreIdentityError, WrongHostError
from storage_engine.journal.journal import Journal, Phase, Step, hold_memory
from storage_engine.lake.catalog import catalog
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.model.plan import PlanRequest
from storage_engine.retention import decisions, steps
from storage_engine.retention.decisions import move
from storage_engine.retention.plan.watching import check_watcher
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.identity import identify
from storage_engine.retention.store.known_heads import journalled_heads
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import read_stamp, stamp_path
from storage_engine.rocketmq.hold.marker import write_marker
from tests.rounds import rounds
from tests.services.runners import told_by

Make = Callable[..., ManagedStore]
GoTo = Callable[[str], None]
RUNNER = Path(__file__).with_name("move_kill_runner.py")
KILLS = rounds("STORAGE_ENGINE_MOVE_KILLS", 4, 1_000)
"""At most so many; more than there are operations means every one of them."""


@pytest.fixture
def go_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GoTo:
    """Let this be another machine from now on."""

    def go(machine: str) -> None:
        (tmp_path / "machine-id").write_text(machine)
        monkeypatch.setattr(host, "_MACHINE_ID", tmp_path / "machine-id")

    return go


@pytest.fixture
def orders(managed: Make, go_to: GoTo) -> ManagedStore:
    """A store of machine "a" that is managed by a connection, with a segment in its lake."""
    go_to("a")
    store = replace(managed("edge-frames"), name="orders", named=True)
    plan_and_archive(store, "first")
    return store


def plan_and_archive(store: ManagedStore, run_key: str) -> tuple[str, ...]:
    """Archive a segment; returns what the plan says beside its decisions."""
    plan = steps.make_plan(store, run_key, PlanRequest(manual=True, max_segments=1))
    steps.archive_planned(store, run_key, lambda jobs: steps.archive(store, run_key, jobs))
    return plan.notices


def known(store: ManagedStore) -> tuple[str, str | None, str | None]:
    """Id, name and host of a store."""
    record = identify(store, Journal(store.journal_url))
    return record.store_id, record.name, record.host


@pytest.mark.timeout(300)
def test_a_move_that_is_killed_anywhere_is_done_by_the_same_once_more(
    store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    seen, said = told_by(RUNNER, store_copy("edge-frames"), tmp_path / "work", KILLS)
    assert seen["problems"] == [], said[-4000:]
    assert seen["kills"] >= min(KILLS, 4)
    what = [operation.split()[1] for operation in seen["operations"]]
    # Intent, stamp, result; the journal's own file operations are not this process's.
    assert what.count("commit") >= 3
    assert "commit" in what[: what.index("replace" if "replace" in what else "rename")]
    assert what[-1] == "commit"
    assert seen["end"]["journal"] == ["orders", "there"]
    assert seen["end"]["stamp"] == [seen["end"]["store_id"], "there", 1]
    assert seen["end"]["results"] == [["ann", "a larger disk"]]


def test_a_store_whose_host_changed_is_followed_under_its_name_and_a_plan_says_so(
    orders: ManagedStore, go_to: GoTo
) -> None:
    store_id, _, _ = known(orders)
    go_to("b")
    check_watcher(orders)
    assert known(orders) == (store_id, "orders", "b")
    assert plan_and_archive(orders, "second")[0].startswith(
        "store orders is now on host b, no longer on host a"
    )
    assert not any("host b" in notice for notice in plan_and_archive(orders, "third"))
    stamp = read_stamp(orders.real_root)
    assert stamp is not None
    assert (stamp.store_id, stamp.machine) == (store_id, "b")
    journal = Journal(orders.journal_url)
    (moved,) = journal.store_events(store_id, Step.MOVE, Phase.RESULT)
    assert (moved.payload["from_host"], moved.payload["person"]) == ("a", "")
    # Where the connection says on which host the store lies, it is followed as well.
    go_to("c")
    assert known(replace(orders, host="c")) == (store_id, "orders", "c")


def test_a_store_that_is_followed_to_a_stated_host_waits_for_no_lake(
    orders: ManagedStore, go_to: GoTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_to("b")
    asked: list[LakeConfig] = []
    monkeypatch.setattr(catalog, "open_lake", asked.append)
    with opened(replace(orders, host="b")) as context:
        assert (context.record.host, asked) == ("b", [])


def test_a_store_on_another_host_is_not_followed_without_its_name_or_stamp(
    orders: ManagedStore, go_to: GoTo
) -> None:
    go_to("b")
    for other in (replace(orders, named=False), replace(orders, name="others")):
        with pytest.raises(WrongHostError):
            identify(other, Journal(orders.journal_url))
    with pytest.raises(WrongHostError):
        identify(replace(orders, host="elsewhere"), Journal(orders.journal_url))
    stamp_path(orders.real_root).unlink()
    for look in (check_watcher, known):
        with pytest.raises(WrongHostError):
            look(orders)
    go_to("a")
    assert Journal(orders.journal_url).find_store(orders.real_root) is not None


def test_an_older_copy_on_another_host_is_not_followed(
    orders: ManagedStore, go_to: GoTo, tmp_path: Path
) -> None:
    store_id, _, _ = known(orders)
    older = tmp_path / "older"
    shutil.copytree(orders.root, older)
    journal = Journal(orders.journal_url)
    record = journal.store_with_id(store_id)
    assert record is not None
    (head, *_) = journalled_heads(journal, store_id)
    run = journal.begin_run(store_id, "later", PlanRequest())
    said = {
        "lake": head.location,
        "lake_id": head.lake_id,
        "receipt_sequence": head.sequence + 1,
        "receipt_hash": "1" * 64,
    }
    journal.record(run, Step.SEALED, Phase.RESULT, [("commitlog/0", said)])
    shutil.rmtree(orders.root)
    older.rename(orders.root)
    go_to("b")
    with pytest.raises(WrongHostError):
        identify(orders, journal)
    assert journal.store_with_id(store_id) == record


def test_a_store_of_another_host_without_a_stamp_is_not_moved(orders: ManagedStore, go_to: GoTo) -> None:
    stamp_path(orders.real_root).unlink()
    go_to("b")
    with pytest.raises(StoreIdentityError, match="expected the stamp of the store that was moved here"):
        move(orders, "orders", "ann")


def test_a_copy_on_another_host_and_its_store_are_not_both_followed(
    orders: ManagedStore, go_to: GoTo, tmp_path: Path
) -> None:
    """Both machines see their own disk at the path."""
    root, original = Path(orders.root), tmp_path / "disk-of-a"
    store_id, _, _ = known(orders)
    shutil.copytree(root, original)
    go_to("b")
    assert known(orders)[2] == "b"
    root.rename(tmp_path / "disk-of-b")
    original.rename(root)
    go_to("a")
    with pytest.raises(WrongHostError):
        steps.make_plan(orders, "second")
    with pytest.raises(StoreIdentityError, match=r"on machine b, found .* storage-engine move orders"):
        steps.make_plan(replace(orders, host="a"), "second")
    # A person knows which of the two it is, and then the other one is refused.
    move(orders, "orders", "ann")
    assert known(orders) == (store_id, "orders", "a")
    root.rename(original)
    (tmp_path / "disk-of-b").rename(root)
    go_to("b")
    with pytest.raises(WrongHostError):
        steps.make_plan(orders, "third")


def test_a_move_to_another_host_that_was_killed_goes_on(
    orders: ManagedStore, go_to: GoTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_id, _, _ = known(orders)
    go_to("b")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "end_move", killed)
        with pytest.raises(KeyboardInterrupt):
            identify(orders, Journal(orders.journal_url))
    stamp = read_stamp(orders.real_root)
    assert stamp is not None
    assert stamp.machine == "b"
    assert known(orders) == (store_id, "orders", "b")


def test_no_move_takes_a_hold_that_its_journal_does_not_know_unasked(
    orders: ManagedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither after a kill nor in a journal that knows the store from before it was held."""
    before = tmp_path / "before.db"
    shutil.copy(orders.journal_url.removeprefix("sqlite:///"), before)
    store_id, _, _ = known(orders)
    until_ms = clock_ms() + 3_600_000
    write_marker(Path(orders.real_root), "another", until_ms)
    new, older = (
        replace(orders, journal_url=f"sqlite:///{tmp_path}/{name}.db") for name in ("new", "before")
    )
    refused = pytest.raises(GateRefusedError, match=r"another journal holds the store until .*unproven 1 ")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(decisions, "carry_out", killed)
        with pytest.raises(KeyboardInterrupt):
            move(new, "orders", "ann", "why", leave_unproven=1)
    for other in (new, older):
        assert Journal(other.journal_url).store_with_id(store_id) is not None
        for name in ("orders", "renamed"):
            with refused:
                move(replace(other, name=name), name, "ann", "no word of the hold")
        assert move(other, "orders", "ann", "why", leave_unproven=1).store_id == store_id
        (moved,) = Journal(other.journal_url).store_events(store_id, Step.MOVE, Phase.RESULT)
        assert moved.payload["reason"] == "why; at most 1 segment left to the broker unproven"
    # The journal that has the hold renews it, wherever the store lies and whatever it is called.
    hold_memory(Journal(orders.journal_url), store_id).save({"manager": "another"})
    assert move(replace(orders, name="renamed"), "renamed", "ann").name == "renamed"


def test_a_known_store_is_managed_under_the_name_that_was_stated_first(orders: ManagedStore) -> None:
    store_id, _, _ = known(orders)
    at_shell = replace(orders, name="edge-frames", named=False)
    assert known(at_shell)[:2] == (store_id, "orders")
    assert steps.sense(at_shell).store == "orders"
    other = replace(orders, name="payments")
    with pytest.raises(
        StoreIdentityError, match=r"in the journal, 'orders', found .* run storage-engine move payments on"
    ):
        steps.make_plan(other, "second")
    with pytest.raises(BadInputError, match=r"expected 'payments'.* found 'other'"):
        move(other, "other", "ann")
    assert move(other, "payments", "ann", "renamed").name == "payments"
    assert known(other)[:2] == (store_id, "payments")
    with pytest.raises(StoreIdentityError, match="move orders"):
        identify(orders, Journal(orders.journal_url))


def test_a_store_of_an_older_journal_gets_the_name_that_is_stated_next(managed: Make) -> None:
    store = managed()
    assert known(store)[1] is None
    named = replace(store, name="orders", named=True)
    assert known(named)[1] == "orders"
    assert known(store)[1] == "orders"


def test_a_name_of_another_store_is_refused(orders: ManagedStore, managed: Make) -> None:
    other = managed()
    taken = r"found 'orders', the name of store .* give it a name of its own: by --name"
    for same in (replace(other, name="orders", named=True), replace(other, name="orders")):
        with pytest.raises(StoreIdentityError, match=taken):
            steps.make_plan(same, "r")
    assert known(other)[1] is None
    with pytest.raises(StoreIdentityError, match=taken):
        move(other, "orders", "ann")
    # It has been managed before names were stated, and goes on.
    assert known(replace(other, name="orders", named=True))[1] is None
    assert known(replace(other, name="payments", named=True))[1] == "payments"


def test_a_name_that_the_lake_knows_for_another_store_is_refused_to_a_new_one(
    orders: ManagedStore, managed: Make, tmp_path: Path
) -> None:
    """Two journals share a lake."""
    other = replace(managed(), journal_url=f"sqlite:///{tmp_path}/other.db")
    taken = r"found 'orders', the name of store .*, of which the lake has segments .* --name"
    with pytest.raises(StoreIdentityError, match=taken):
        steps.make_plan(replace(other, name="orders", named=True), "r")
    assert known(replace(other, name="payments", named=True))[1] == "payments"
    # The store itself is known by its stamp.
    lost = replace(orders, journal_url=f"sqlite:///{tmp_path}/third.db")
    assert known(lost)[:2] == known(orders)[:2]


def test_a_directorys_name_that_the_lake_knows_for_another_store_is_refused_to_a_new_one(
    managed: Make, tmp_path: Path
) -> None:
    stores = []
    for number, made in enumerate((managed(), managed("edge-frames"))):
        root = tmp_path / str(number) / "data"
        root.parent.mkdir()
        stores.append(replace(made, root=str(Path(made.root).rename(root)), name="data"))
    store, other = stores
    # Before anything is archived, it is only a directory's: reports are told apart by the path.
    first = [known(one)[:2] for one in stores]
    assert [name for _, name in first] == [None, None]
    plan_and_archive(store, "r")
    assert [known(one)[:2] for one in stores] == first, "what is known goes on"
    for new in (replace(other, named=True), other):
        new = replace(new, journal_url=f"sqlite:///{tmp_path}/other.db")
        with pytest.raises(StoreIdentityError, match="of its own: by --name at a shell, in Airflow"):
            known(new)
    assert known(replace(new, name="payments", named=True))[1] == "payments"
    # Its own receipts tell the store, where stamp and journal are lost.
    shutil.rmtree(stamp_path(store.real_root).parent)
    lost = replace(store, journal_url=f"sqlite:///{tmp_path}/third.db")
    assert known(lost)[0] == first[0][0]
