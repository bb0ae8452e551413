"""What a broker's package answers is checked before anything is decided or recorded by it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.commands import Command, Text
from storage_engine.exceptions import BrokerPackageError, FileGoneError, StoreBusyError
from storage_engine.model.broker.broker_store import FORMER_MEMBERS, BrokerStore, LockedStore
from storage_engine.model.disk import DiskUsage
from storage_engine.model.plan import Decision, DependentFile, LogPlan, Plan, PlanRequest, Reason
from storage_engine.model.store import FileFacts, LogSnapshot, Segment, SegmentState, StoreSnapshot
from storage_engine.retention.proof.deletion_checks import check_gone
from storage_engine.retention.store.broker_answers import (
    PARTS,
    QUESTIONS,
    asked,
    list_dependents,
    propose,
    take_sealed_files,
    take_snapshot,
    take_triggers,
    take_watch,
    wrap_lock,
)

NOW_MS = 1_700_000_000_000
REQUEST = PlanRequest(manual=True)
SIZE = 10


class _Says:
    """A store whose package says whatever it was given."""

    def __init__(self, root: Path, **answers: Any) -> None:
        self.data_paths = (root,)
        self._answers = answers

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answer = self._answers[name]

        def say(*_: Any, **__: Any) -> Any:
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return say


def _file(root: Path, name: str) -> FileFacts:
    path = root / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(SIZE))
    return FileFacts.of(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    path.mkdir()
    return path


@pytest.fixture
def snapshot(root: Path) -> StoreSnapshot:
    """Two logs of three segments, the last of which is active."""
    logs = []
    for log in ("left", "right"):
        *sealed, last = (
            Segment(log, base, _file(root / log, f"{base}.log"), SegmentState.SEALED)
            for base in (0, SIZE, 2 * SIZE)
        )
        segments = (*sealed, replace(last, state=SegmentState.ACTIVE))
        logs.append(LogSnapshot(log, segments, 3 * SIZE, 3 * SIZE))
    disk = DiskUsage.of(root)
    return StoreSnapshot("says", str(root), NOW_MS, tuple(logs), (disk,), disk, crashed=False)


def _taken(root: Path, answer: Any) -> StoreSnapshot:
    return take_snapshot(_Says(root, snapshot=answer), NOW_MS, "says")  # type: ignore[arg-type]


def _with_left(snapshot: StoreSnapshot, **changes: Any) -> StoreSnapshot:
    left, *others = snapshot.logs
    return replace(snapshot, logs=(replace(left, **changes), *others))


def _with_segment(snapshot: StoreSnapshot, number: int, **changes: Any) -> StoreSnapshot:
    segments = list(snapshot.logs[0].segments)
    segments[number] = replace(segments[number], **changes)
    return _with_left(snapshot, segments=tuple(segments))


def _with_facts(snapshot: StoreSnapshot, number: int, **changes: Any) -> StoreSnapshot:
    facts = snapshot.logs[0].segments[number].facts
    return _with_segment(snapshot, number, facts=replace(facts, **changes))


def test_a_snapshot_that_can_be_true_is_taken_as_it_is(root: Path, snapshot: StoreSnapshot) -> None:
    assert _taken(root, snapshot) is snapshot


def test_offsets_that_are_missing_are_for_who_needs_them(root: Path, snapshot: StoreSnapshot) -> None:
    first, _, last = snapshot.logs[0].segments
    assert _taken(root, _with_left(snapshot, segments=(first, last))).logs[0].segments == (first, last)


LIES: Mapping[str, tuple[Callable[[StoreSnapshot], Any], str]] = {
    "nothing": (lambda _: None, "type StoreSnapshot, found None"),
    "another broker": (lambda s: replace(s, broker="kafka"), "the broker's name 'says', found 'kafka'"),
    "a crash that is text": (lambda s: replace(s, crashed="no"), "crashed: expected type bool, found 'no'"),
    "a level that is text": (
        lambda s: replace(s, log_disks=(replace(s.log_disks[0], used_percent="9"),)),
        "used_percent: expected type NoneType or int, found '9'",
    ),
    "a list of logs": (lambda s: replace(s, logs=list(s.logs)), "logs: expected type tuple"),
    "a log twice": (lambda s: replace(s, logs=(s.logs[0], s.logs[0])), "log left: expected each log once"),
    "a log's name that leads away": (
        lambda s: _with_left(s, name="../x"),
        r"'\.\./x' of a log: expected no /",
    ),
    "an end that is text": (
        lambda s: _with_left(s, max_offset="30"),
        "log left: max_offset: expected type int",
    ),
    "another log's segment": (
        lambda s: _with_left(s, segments=s.logs[1].segments),
        "log left, offset 0: expected a segment of that log, found one of log 'right'",
    ),
    "an offset that is a bool": (
        lambda s: _with_segment(s, 0, base_offset=False, end=SIZE),
        "base_offset: expected type int, found False",
    ),
    "an offset below 0": (lambda s: _with_segment(s, 0, base_offset=-1), "expected offsets from 0 to"),
    "an offset beyond 64 bits": (
        lambda s: _with_segment(s, 2, end=1 << 63),
        "offset 20: expected offsets from 0 to 9223372036854775807",
    ),
    "an overlap": (
        lambda s: _with_segment(s, 0, end=SIZE + 1),
        "log left, offset 10: expected segments that are sorted.* so the next one at 11 or after it",
    ),
    "the newest first": (
        lambda s: _with_left(s, segments=s.logs[0].segments[::-1]),
        "log left, offset 10: expected segments that are sorted, oldest first",
    ),
    "a segment twice": (
        lambda s: _with_left(s, segments=(s.logs[0].segments[0], *s.logs[0].segments)),
        "log left, offset 0: expected segments that are sorted, oldest first",
    ),
    "an end before the base": (
        lambda s: _with_facts(s, 1, size_bytes=-5),
        "offset 10: expected an end at its",
    ),
    "a size below 0": (
        lambda s: _with_segment(s, 0, facts=replace(s.logs[0].segments[0].facts, size_bytes=-1), end=SIZE),
        "expected a size in bytes",
    ),
    "a state that is text": (
        lambda s: _with_segment(s, 2, state="active"),
        "offset 20: state: expected type SegmentState, found 'active'",
    ),
    "sealed behind active": (
        lambda s: _with_segment(s, 0, state=SegmentState.ACTIVE),
        "log left, offset 10: expected an active segment",
    ),
    "an inode that is text": (lambda s: _with_facts(s, 0, inode="7"), "inode: expected type int, found '7'"),
    "another log's file": (
        lambda s: _with_segment(s, 0, facts=s.logs[1].segments[0].facts),
        "right/0.log: expected each file once",
    ),
    "a file elsewhere": (lambda s: _with_facts(s, 0, path="/etc/passwd"), "/etc/passwd: expected a file in "),
    "a way out": (
        lambda s: _with_facts(s, 0, path=f"{s.root}/left/../../x"),
        r"left/\.\./\.\./x: expected a file in ",
    ),
    "our own file": (
        lambda s: _with_facts(s, 0, path=f"{s.root}/.storage-engine/stamp.json"),
        "stamp.json: expected a file in ",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_snapshot_that_can_t_be_true_is_refused(root: Path, snapshot: StoreSnapshot, lie: str) -> None:
    tell, said = LIES[lie]
    with pytest.raises(BrokerPackageError, match=said) as refused:
        _taken(root, tell(snapshot))
    assert str(refused.value).endswith("Nothing was changed. Mend the package that brings the broker.")


def test_a_link_out_of_the_store_is_seen_through(root: Path, snapshot: StoreSnapshot, tmp_path: Path) -> None:
    facts = _file(tmp_path / "elsewhere", "0.log")
    (root / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BrokerPackageError, match=r"link/0\.log: expected a file in "):
        _taken(root, _with_segment(snapshot, 0, facts=replace(facts, path=str(root / "link" / "0.log"))))
    # A store whose root is itself a link has its files behind that.
    (tmp_path / "named").symlink_to(root)
    assert _taken(tmp_path / "named", snapshot) is snapshot


@pytest.mark.parametrize(
    "error", [KeyError("half"), SystemExit(3), AssertionError(), NotImplementedError("x")]
)
def test_whatever_a_package_raises_is_one_error(
    root: Path, snapshot: StoreSnapshot, error: BaseException
) -> None:
    found = f"broker says: expected its package to .*, found {type(error).__name__}"
    store: Any = _Says(root, snapshot=error, plan=error)
    store.dependents = _Says(root, find=error)
    store.causes = _Says(root, triggers=error)
    store.shield = _Says(root, sealed_files=error)
    for ask in (
        lambda: take_snapshot(store, NOW_MS, "says"),
        lambda: propose(store, snapshot, NOW_MS, REQUEST),
        lambda: list_dependents(store, snapshot, {"left": SIZE}),
        lambda: take_triggers(store, snapshot, NOW_MS, REQUEST),
        lambda: take_sealed_files(store, "says"),
    ):
        with pytest.raises(BrokerPackageError, match=found):
            ask()


@pytest.mark.parametrize("error", [StoreBusyError("held"), PermissionError("not yours")])
def test_errors_of_the_contract_stay_what_they_are(root: Path, error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        _taken(root, error)


def _plan(snapshot: StoreSnapshot, *going: int, log: int = 0) -> Plan:
    seen = snapshot.logs[log]
    decisions = tuple(
        Decision(one, Reason.EXPIRED if number in going else Reason.NOT_EXPIRED, "said")
        for number, one in enumerate(seen.segments)
    )
    return Plan(snapshot.root, NOW_MS, (), (LogPlan(seen.name, decisions),))


def _proposed(root: Path, snapshot: StoreSnapshot, plan: Any) -> Plan:
    return propose(_Says(root, plan=plan), snapshot, NOW_MS, REQUEST)  # type: ignore[arg-type]


def test_a_plan_for_the_snapshot_is_taken(root: Path, snapshot: StoreSnapshot) -> None:
    for going in ((), (0,), (0, 1)):
        plan = _plan(snapshot, *going)
        assert _proposed(root, snapshot, plan) is plan
    named = _altered(_plan(snapshot, 0), 0, detail=Text("said, see ", Command("doctor")))
    assert _proposed(root, snapshot, named) is named


def _altered(plan: Plan, number: int, **changes: Any) -> Plan:
    (log,) = plan.logs
    decisions = list(log.decisions)
    decisions[number] = replace(decisions[number], **changes)
    return replace(plan, logs=(LogPlan(log.log, tuple(decisions)),))


def _without(plan: Plan, number: int) -> Plan:
    (log,) = plan.logs
    return replace(plan, logs=(LogPlan(log.log, log.decisions[:number] + log.decisions[number + 1 :]),))


PLANS: Mapping[str, tuple[Callable[[StoreSnapshot], Any], str]] = {
    "nothing": (lambda _: None, "expected type Plan, found None"),
    "another store's": (
        lambda s: replace(_plan(s, 0), store_root="/x"),
        "expected one for .*, found one for /x",
    ),
    "the active one": (
        lambda s: _plan(s, 0, 1, 2),
        "offset 20: expected that only sealed segments are deleted, found an active",
    ),
    "out of the middle": (lambda s: _plan(s, 1), "offset 0: expected the oldest segments to be deleted"),
    "around the middle": (lambda s: _plan(s, 0, 2), "offset 10: expected the oldest segments to be deleted"),
    "a log that isn't there": (
        lambda s: replace(_plan(s), logs=(LogPlan("none", ()),)),
        "expected decisions on the store's logs, found one on log 'none'",
    ),
    "a segment that isn't there": (
        lambda s: _altered(_plan(s, 0), 0, segment=replace(s.logs[0].segments[0], base_offset=3)),
        "offset 3: expected a segment of the snapshot, once",
    ),
    "another file": (
        lambda s: _altered(_plan(s, 0), 0, segment=replace(s.logs[0].segments[0], end=4)),
        "offset 0: expected a segment of the snapshot, once",
    ),
    "a reason that is text": (
        lambda s: _altered(_plan(s, 0), 0, reason="expired"),
        "reason: expected type Reason, found 'expired'",
    ),
    "a beginning behind what stays": (
        lambda s: _without(_plan(s, 0), 1),
        "the log to begin between 10 and 10, found 20",
    ),
    "notices that are text": (lambda s: replace(_plan(s), notices="x"), "notices: expected type tuple"),
}


@pytest.mark.parametrize("lie", PLANS)
def test_a_plan_for_anything_else_is_refused(root: Path, snapshot: StoreSnapshot, lie: str) -> None:
    tell, said = PLANS[lie]
    with pytest.raises(BrokerPackageError, match=said):
        _proposed(root, snapshot, tell(snapshot))


def _listed(root: Path, snapshot: StoreSnapshot, *files: Any) -> tuple[DependentFile, ...]:
    says = _Says(root)
    says.dependents = _Says(root, find=files)  # type: ignore[attr-defined]
    return list_dependents(says, snapshot, {"left": SIZE})  # type: ignore[arg-type]


def test_dependents_are_ordinary_files_of_the_store(root: Path, snapshot: StoreSnapshot) -> None:
    fine = DependentFile("index", _file(root / "left", "0.index"), "of what is gone")
    gone = DependentFile("index", replace(fine.facts, path=f"{root}/left/1.index"), "gone by now")
    assert _listed(root, snapshot, fine, gone) == (fine, gone)


def test_dependents_that_are_anything_else_are_refused(
    root: Path, snapshot: StoreSnapshot, tmp_path: Path
) -> None:
    fine = DependentFile("index", _file(root / "left", "0.index"), "of what is gone")
    (root / "out").symlink_to(tmp_path)
    (root / "left" / "link.index").symlink_to(root / "left" / "0.index")
    os.link(root / "left" / "20.log", root / "left" / "second.index")
    outside = _file(tmp_path / "other", "0.index")

    def at(path: object) -> DependentFile:
        return replace(fine, facts=replace(fine.facts, path=str(path)))

    companion = _file(root / "left", "0.count")
    for wrong, said in (
        (at(outside.path), "expected a file in"),
        (at(root / "out" / "other" / "0.index"), "expected a file in"),
        (at(root / ".." / "other" / "0.index"), "expected a file in"),
        (at(root / "left" / "link.index"), "expected an ordinary file"),
        (at(root / "right"), "expected an ordinary file"),
        (at(root / "right" / "20.log"), "expected a file of no segment"),
        (at(root / "left" / ".." / "right" / "20.log"), "expected a file of no segment"),
        (at(companion.path), "expected a file of no segment"),
        (at(root / "left" / "second.index"), "found another name of a segment's file"),
        (fine, "or a file a second time"),
        (replace(fine, kind=7), "expected words for each file's kind"),
        ("0.index", "found '0.index'"),
    ):
        segment = snapshot.logs[0].segments[0]
        seen = _with_segment(snapshot, 0, companions=(companion,), facts=segment.facts)
        with pytest.raises(BrokerPackageError, match=said):
            _listed(root, seen, fine, wrong)


def test_what_is_there_is_not_gone(snapshot: StoreSnapshot) -> None:
    first = snapshot.logs[0].segments[0]
    with pytest.raises(BrokerPackageError, match=r"0\.log: log left, offset 0: expected no file, since"):
        check_gone("says", [first])
    Path(first.facts.path).unlink()
    check_gone("says", [first])


ALL_PARTS: Mapping[str, type] = {**PARTS, "lock": LockedStore}


def test_each_question_of_the_contract_is_asked_by_the_adapter() -> None:
    members = _members(BrokerStore) - PARTS.keys()
    of_parts = {f"{name}.{one}" for name, part in ALL_PARTS.items() for one in _members(part)}
    changing = {"lock", "delete_segments", "dependents.delete", "tasks.delete_left_over", "close"}
    assert (members | of_parts) - changing == {*QUESTIONS}


def _members(of: type) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_")}


def _saying(root: Path, question: str, error: Exception) -> tuple[Any, str]:
    """A store, or a part of one, that raises an error where it is asked, and the name of the question."""
    part, _, name = question.rpartition(".")
    says = _Says(root, **{name: error})
    if not part:
        return asked(says, "says"), name  # type: ignore[arg-type]

    def say(*_: Any, **__: Any) -> Any:
        raise error

    of = type("Part", (ALL_PARTS[part],), {name: say, "__init__": lambda _: None})
    of.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    if part == "lock":
        locked: Any = wrap_lock(LockedStore(), "says")
        locked._asked = of()
        return locked, name
    setattr(says, part, of())
    return getattr(asked(says, "says"), part), name  # type: ignore[arg-type]


def test_a_part_is_none_or_of_its_class(root: Path) -> None:
    says = _Says(root)
    for part in PARTS:
        setattr(says, part, None)
        assert getattr(asked(says, "says"), part) is None  # type: ignore[arg-type]
        setattr(says, part, "something else")
        with pytest.raises(BrokerPackageError, match=f"{part}: expected type .*, or None"):
            getattr(asked(says, "says"), part)  # type: ignore[arg-type]


def test_what_a_lock_gives_is_of_the_contract() -> None:
    """A package of an older one gives what has notices alone, and is asked nothing before a deletion."""
    with pytest.raises(BrokerPackageError, match="lock: expected type LockedStore, found"):
        wrap_lock(_Says(Path("/x"), notices=()), "says")


@pytest.mark.parametrize("size", [0, -1, True, "2", 2.0])
def test_how_many_go_at_once_is_a_number_or_any(size: Any) -> None:
    """By 0 all would go, and by less than that no batch would ever end."""
    assert wrap_lock(LockedStore(max_delete_batch=1), "says").max_delete_batch == 1
    with pytest.raises(
        BrokerPackageError, match="max_delete_batch: expected a number of at least 1, or None"
    ):
        wrap_lock(LockedStore(max_delete_batch=size), "says")


def test_what_a_lock_could_not_check_is_told_before_anything_goes() -> None:
    wrong: Any = None
    with pytest.raises(BrokerPackageError, match="notices: expected a tuple of str, found None"):
        wrap_lock(LockedStore(wrong), "says")


@pytest.mark.parametrize("found", [None, "text"])
def test_a_look_at_what_is_no_snapshot_is_the_same_error(root: Path, found: Any) -> None:
    says: Any = _Says(root, snapshot=found)
    says.causes = None
    with pytest.raises(BrokerPackageError, match="expected its package to look at clock and disks"):
        take_watch(asked(says, "says"), 0, "says")


def _class_with(member: str, value: object) -> type:
    return type("Older", (BrokerStore,), {member: value})


@pytest.mark.parametrize("member", sorted(FORMER_MEMBERS))
def test_a_store_of_an_older_contract_is_refused_by_what_it_defines(member: str) -> None:
    where = FORMER_MEMBERS[member].replace(".", "[.]")
    with pytest.raises(TypeError, match=f"Older defines {member}, which is {where} since 0.2"):
        _class_with(member, lambda *_: None)
    if where != member and not where.startswith(f"{member}["):
        for value in (False, property(lambda _: False)):
            with pytest.raises(TypeError, match=f"Older defines {member}"):
                _class_with(member, value)
        with pytest.raises(TypeError, match=f"Older defines {member}"):
            type("Older", (BrokerStore,), {"__annotations__": {member: "bool"}})
        mixed_in = type("Mixin", (), {member: None})
        with pytest.raises(TypeError, match=f"Mixin defines {member}"):
            type("Older", (mixed_in, BrokerStore), {})
        older: Any = type("Older", (), {})()
        setattr(older, member, False)
        with pytest.raises(BrokerPackageError, match=f"Older defines {member}, which is {where} since 0.2"):
            asked(older, "says")


@pytest.mark.parametrize("name", sorted(QUESTIONS))
def test_what_a_package_raises_in_an_answer_is_one_error(root: Path, name: str) -> None:
    if name == "data_paths":
        return
    store, member = _saying(root, name, KeyError("x"))
    busy, _ = _saying(root, name, StoreBusyError("x"))
    with pytest.raises(BrokerPackageError, match=f"expected its package to .*{QUESTIONS[name]}"):
        getattr(store, member)()
    with pytest.raises(StoreBusyError):
        getattr(busy, member)()


@pytest.mark.parametrize("name", ["lock.deleted", "hold.end"])
def test_an_error_says_of_the_store_only_what_is_known(root: Path, name: str) -> None:
    """A question may follow a deletion; what changes the store may have begun."""
    known = {"lock.deleted": "Asking changed nothing.", "hold.end": "A part of it may be done"}[name]
    store, member = _saying(root, name, KeyError("x"))
    with pytest.raises(BrokerPackageError, match=known) as refused:
        getattr(store, member)()
    assert "Nothing was changed" not in str(refused.value)
    gone, _ = _saying(root, name, FileNotFoundError(2, "gone", "/x"))
    with pytest.raises(FileGoneError, match=f"meanwhile. {known}.*Run it again"):
        getattr(gone, member)()


def test_a_property_that_fails_is_the_same_error(root: Path) -> None:
    store = asked(_Says(root), "says")  # type: ignore[arg-type]
    with pytest.raises(BrokerPackageError, match="say whether its broker runs, found KeyError: 'is_live'"):
        _ = store.is_live
