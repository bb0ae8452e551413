"""What a store or a kind of broker doesn't have permits nothing, and each command says what it lacks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from storage_engine.brokers import find_broker
from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import (
    BadInputError,
    BrokerPackageError,
    GateRefusedError,
    StorageEngineError,
    UnsupportedLayoutError,
)
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.model.broker.broker_store import ALWAYS, BrokerStore, hold_of, watch_of
from storage_engine.model.broker.broker_words import Aside
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.plan import PlanRequest
from storage_engine.model.settings.policy import ApprovalPolicy, ArchiveMode, LagPolicy, PendingPolicy, Policy
from storage_engine.model.store import Archivable, StoreSnapshot
from storage_engine.retention import shield, steps
from storage_engine.retention.archive import gone
from storage_engine.retention.doctor.doctor import diagnose
from storage_engine.retention.hold.holding import unheld_by
from storage_engine.retention.plan.cleanup_due import look_for_due
from storage_engine.retention.plan.deciding import pending_by
from storage_engine.retention.store import brokers, context
from storage_engine.retention.store.broker_answers import PARTS, asked
from storage_engine.retention.store.context import open_context
from storage_engine.retention.store.managed_store import ManagedStore
from tests.lakes import make_lakes
from tests.services import toy
from tests.services.command_line import run_command

Managed = Callable[..., ManagedStore]

SMALL = PlanRequest(manual=True, max_segments=3)
POLICIES = {
    "ignore": Policy(lag_policy=LagPolicy.IGNORE, pending_policy=PendingPolicy.IGNORE),
    "block": Policy(lag_policy=LagPolicy.BLOCK, pending_policy=PendingPolicy.BLOCK),
    "unarchived": Policy(archive=ArchiveMode.OFF, lag_policy=LagPolicy.IGNORE),
    "approved": Policy(lag_policy=LagPolicy.IGNORE, approval=ApprovalPolicy.FORCED),
    "kept for an hour": Policy(lag_policy=LagPolicy.IGNORE, minimum_retention_hours=1),
}
ALL = tuple(sorted(PARTS))
CASES = [
    *((policy, ()) for policy in POLICIES),
    *(("unarchived", (part,)) for part in ALL),
    *((policy, ALL) for policy in POLICIES),
    *(("ignore", (part,)) for part in ("identities", "process", "replicas")),
    ("block", ("consumers",)),
    ("kept for an hour", ("course",)),
    ("approved", ("course",)),
]


class Without:
    """A store of a package that lacks some parts."""

    def __init__(self, store: BrokerStore, absent: Collection[str]) -> None:
        self._store, self._absent = store, absent

    def __getattr__(self, name: str) -> Any:
        return None if name in self._absent else getattr(self._store, name)


def leave_out(monkeypatch: pytest.MonkeyPatch, absent: Collection[str]) -> None:
    for module in (brokers, context):
        monkeypatch.setattr(
            module,
            "asked",
            lambda store, broker: asked(Without(store, absent), broker),  # type: ignore[arg-type]
        )


def went(store: ManagedStore) -> set[str]:
    """Run the whole job as far as it goes; what is gone of the store then."""
    root = Path(store.root)
    before = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    with suppress(StorageEngineError):
        steps.make_plan(store, "r", SMALL)
        if store.policy.archive is not ArchiveMode.OFF:
            steps.archive(store, "r", steps.archive_jobs(store, "r"))
        steps.release(store, "r")
        steps.clean_dependents(store, "r")
        steps.flush_checkpoint(store, "r")
    return before - {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def most(store: ManagedStore) -> set[str]:
    """What goes where nothing is absent: three segments, and what points into them alone."""
    broker, root = brokers.open_store(store), Path(store.root)
    *going, stays = broker.snapshot(0).logs[0].segments[:4]
    assert broker.dependents is not None
    files = [*(one.facts for one in going)]
    files += [one.facts for one in broker.dependents.find({"commitlog": stays.base_offset})]
    return {str(Path(facts.path).relative_to(root)) for facts in files}


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "absent"), CASES)
def test_no_absence_has_more_deleted(
    managed: Managed, monkeypatch: pytest.MonkeyPatch, policy: str, absent: tuple[str, ...]
) -> None:
    store = managed(policy=POLICIES[policy])
    goes = most(store)
    leave_out(monkeypatch, absent)
    gone = went(store)
    assert gone <= goes
    if not absent:
        assert gone == (set() if policy == "block" else goes)
    if "dependents" in absent:
        assert all(name.startswith("commitlog/") for name in gone)
    if ("consumers" in absent and policy == "block") or ("course" in absent and policy == "approved"):
        assert not gone


def test_what_is_absent_is_unknown_or_refuses(managed: Managed, monkeypatch: pytest.MonkeyPatch) -> None:
    store = managed()
    leave_out(monkeypatch, PARTS)
    broker = brokers.open_store(store)
    assert not hold_of(broker).status(0).held
    assert hold_of(broker).holds("commitlog")
    assert unheld_by(broker, 0, 1).unknown
    assert all(one.count is None for one in pending_by(broker, broker.snapshot(0), PendingPolicy.BLOCK))
    assert pending_by(broker, broker.snapshot(0), PendingPolicy.BLOCK)
    with pytest.raises(BadInputError, match="expected a store that can have a shield"):
        shield.tend_shield(store)


def test_doctor_says_what_is_unknown_of_messages(managed: Managed, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out(monkeypatch, ["consumers"])
    found = {one.kind: one for one in diagnose(managed(), clock_ms(), has_lake=True).findings}
    assert "it is unknown whether" in found["pending-unknown"].what


@pytest.mark.parametrize("said", [None, True, "when-due"])
def test_a_kind_that_does_not_say_when_it_cleans_up_is_no_kind_that_never_does(
    managed: Managed, monkeypatch: pytest.MonkeyPatch, said: object
) -> None:
    store = managed()
    monkeypatch.setattr(type(find_broker("rocketmq")), "cleanups", lambda *_: said)
    for asks in (brokers.refuse_cleanup, brokers.may_clean_now, attrgetter("cleans_up", "archives_ahead")):
        with pytest.raises(BrokerPackageError, match=f"expected cleanups to be one of .*, found {said!r}"):
            asks(store)


def test_a_store_that_is_archived_alone_keeps_all_though_it_does_not_say_so(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = managed(policy=POLICIES["unarchived"], overrides={"storeType": "defaultRocksDB"})
    with pytest.raises(UnsupportedLayoutError, match="RocksDB"):
        steps.make_plan(store, "r", SMALL)
    leave_out(monkeypatch, ["limit"])
    assert steps.make_plan(store, "s", SMALL).deletes == 0
    assert went(store) == set()


def test_without_causes_one_always_holds_and_the_plan_alone_says_what_goes(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    young = {"fileReservedTime": "999999", "deleteWhen": "99", "diskMaxUsedSpaceRatio": "95"}
    store = managed(overrides=young, policy=POLICIES["unarchived"])
    assert not brokers.open_store(store).causes.watch(0).triggers  # type: ignore[union-attr]
    leave_out(monkeypatch, ["causes"])
    assert watch_of(brokers.open_store(store), 0).triggers == (ALWAYS,)
    assert look_for_due(store).deletes == 0


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ManagedStore]:
    """A store of a broker of which neither the kind nor the store has any part."""
    with toy.registered(tmp_path / "broker") as module:
        monkeypatch.setattr(module.ToyStore, "dependents", None)
        monkeypatch.setattr(module.Toy, "aside", None)
        toy.make_store(tmp_path / "store")
        yield toy.managed(tmp_path)


def test_a_broker_without_any_part_is_cleaned_by_its_files_alone(bare: ManagedStore) -> None:
    policy = Policy(archive=ArchiveMode.OFF, lag_policy=LagPolicy.IGNORE)
    gone = went(replace(bare, policy=policy))
    assert gone
    assert not any(name.endswith(".index") for name in gone)


@pytest.mark.parametrize(
    "policy",
    [
        Policy(archive=ArchiveMode.OFF, lag_policy=LagPolicy.BLOCK),
        Policy(archive=ArchiveMode.OFF, lag_policy=LagPolicy.IGNORE, pending_policy=PendingPolicy.BLOCK),
    ],
    ids=["unread", "pending"],
)
def test_what_is_unknown_of_such_a_broker_blocks_where_the_policy_says_so(
    bare: ManagedStore, policy: Policy
) -> None:
    assert went(replace(bare, policy=policy)) == set()


def test_such_a_broker_sets_nothing_aside(bare: ManagedStore) -> None:
    policy = Policy(archive=ArchiveMode.OFF, lag_policy=LagPolicy.IGNORE, undo_window_hours=1)
    with pytest.raises((BadInputError, GateRefusedError), match="expected no undo_window_hours with Toy"):
        steps.make_plan(replace(bare, policy=policy), "r", SMALL)


def test_such_a_broker_is_not_cleaned_while_it_runs(
    bare: ManagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_class = type(find_broker("toy").open_store(brokers.settings_of(bare), None))
    monkeypatch.setattr(store_class, "is_live", True)
    policy = Policy(archive=ArchiveMode.OFF, lag_policy=LagPolicy.IGNORE)
    store = replace(bare, policy=policy, live=LiveBroker("h:1", allow_same_disk=True))
    with pytest.raises(GateRefusedError, match="nothing keeps this kind of broker from deleting"):
        steps.make_plan(store, "r", SMALL)
    assert len([*Path(store.root).glob("*/*.txt")]) == 6


def test_nothing_is_set_aside_where_nothing_tells_that_the_broker_has_run(
    bare: ManagedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(find_broker("toy")), "aside", Aside.OUTSIDE)
    (tmp_path / "aside").mkdir()
    policy = Policy(
        archive=ArchiveMode.OFF,
        lag_policy=LagPolicy.IGNORE,
        undo_window_hours=1,
        undo_directories=(str(tmp_path / "aside"),),
    )
    store = replace(bare, policy=policy)
    steps.make_plan(store, "r", SMALL)
    with pytest.raises(BadInputError, match="expected a store that shows whether its broker has run"):
        steps.release(store, "r")
    assert len([*Path(store.root).glob("*/*.txt")]) == 6


COMMANDS = {
    "plan": ((), ""),
    "inspect": ((), ""),
    "doctor": ((), ""),
    "recover": ((), "recovered only by their broker"),
    "rebuild-queues": ((), "recovered only by their broker"),
    "index-lookup": (("t", "k"), "expected a broker with an index of keys"),
    "flush": ((), "expected a kind of broker with an engine in this package"),
    "serve": ((), "written only by their broker"),
    "simulate": ((), "expected a broker with rules that can be simulated"),
    "lag": ((), ""),
    "shield": (("--lake", "LAKE"), "expected a store that can have a shield"),
    "hold": (
        ("--lake", "LAKE", "--broker", "h:1"),
        "expected a broker whose stores are managed while it runs",
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_answers_or_says_what_such_a_broker_lacks(bare: ManagedStore, name: str) -> None:
    words, said = COMMANDS[name]
    lake = Path(bare.root).parent / "managed"
    if "LAKE" in words:
        assert run_command("init-lake", "--lake", lake, "--broker-type", "toy").exit_code == 0
    done = run_command(name, bare.root, *(lake if word == "LAKE" else word for word in words))
    assert "Traceback" not in done.err
    assert done.exit_code in ((0, 1) if not said else (1, 2)), done.err
    assert said in done.err + done.out


@pytest.mark.parametrize("said", ["kept_out", "refused"])
def test_what_a_store_keeps_out_of_the_default_answer_stays_out(
    bare: ManagedStore, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """A package may take what the contract answers by itself, and leave a log out of that."""
    store_class = type(find_broker("toy").open_store(brokers.settings_of(bare), None))

    def archivable(self: BrokerStore, snapshot: StoreSnapshot) -> Archivable:
        found = BrokerStore.archivable(self, snapshot)
        left = tuple(one for one in found.segments if one.log != "errors")
        return replace(found, segments=left, **{said: {"errors": "it isn't complete"}})

    monkeypatch.setattr(store_class, "archivable", archivable)
    store = make_lakes(bare)
    steps.make_plan(store, "r", PlanRequest(manual=True))
    with suppress(StorageEngineError):
        steps.archive_planned(store, "r", lambda jobs: steps.archive(store, "r", jobs))
    rows = receipts(open_lake(store.lake), open_context(store).record.store_id)
    assert {row.log for row in rows} == {"access"}


class Leaving:
    """A store whose lock is given up once somebody has seen who has it."""

    def __init__(self) -> None:
        self.process = self
        self._users = ["a process has its lock"]

    def user(self) -> str:
        return self._users.pop() if self._users else ""

    def is_user_ours(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return None

    def close(self) -> None:
        """Leave nothing open."""


def test_a_lock_may_be_given_up_between_two_looks(
    managed: Managed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = ManagedStore.local("n", "/nowhere", tmp_path / "managed", broker="kafka")
    monkeypatch.setattr(brokers, "open_to_look", lambda store: Leaving())
    assert not brokers.may_clean_now(node)
    there = replace(open_context(managed()), broker=Leaving())
    assert gone._broker_may_delete(there, "commitlog")
