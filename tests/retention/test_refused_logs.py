"""A release of several logs ends for each log as a release of that log alone does."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase as Phases
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage_engine.exceptions import FileGoneError, LakeConflictError, ProofError, StorageEngineError
from storage_engine.journal.journal import Journal, Phase, Run, Step
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.model.broker.broker_store import StoreConsumers
from storage_engine.model.lag import LagSummary, Unread, UnreadMessages
from storage_engine.model.plan import PlanRequest, Reason
from storage_engine.model.settings.policy import LagPolicy, Policy
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.quality.validate import write_page
from storage_engine.retention import steps
from storage_engine.retention.archive.archiving import ArchiveResult, archive_each_log
from storage_engine.retention.lag.unread_losses import join_losses
from storage_engine.retention.quarantine.undo import undo
from storage_engine.retention.report.finishing import finish
from storage_engine.retention.report.report import Outcome, build_report
from storage_engine.retention.report.report_text import report_text
from storage_engine.retention.store.managed_store import ManagedStore
from tests.rounds import rounds
from tests.services import toy
from tests.services.toy_faults import FAULTS, POLICY, UNARCHIVED, Fault, files_of, make_store
from tests.toy_broker import toy_broker

ALONE, *_ = LOGS = ("a", "b", "c", "d")
EXAMPLES = rounds("STORAGE_ENGINE_REFUSED_LOGS", 0, 60)


@dataclass(frozen=True)
class LogEnd:
    """What a release comes to for one log.

    :param files: of its directory, with the SHA-256 of what they hold but for the log's name.
    """

    files: Mapping[str, str]
    deleted: tuple[tuple[int, str], ...] = ()
    kept: tuple[tuple[int, str], ...] = ()
    error: str = ""
    missing: tuple[int, ...] = ()


@dataclass(frozen=True)
class End:
    """:param error: that the release ended with; "" where it has a result."""

    logs: Mapping[str, LogEnd]
    error: str


class Stores:
    """Stores of the toy broker that share a journal and a lake."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.known: dict[Fault, End] = {}

    def alone(self, fault: Fault) -> End:
        """Return how the release of a store of one log ends."""
        if fault not in self.known:
            self.known[fault] = self.end({ALONE: fault})
        return self.known[fault]

    def end(self, faults: Mapping[str, Fault]) -> End:
        """Plan, archive and release a new store of these logs."""
        root = Path(tempfile.mkdtemp(dir=self.directory))
        store = make_store(root, self.directory / "managed", faults)
        try:
            result = steps.release(store, "r")
        except (StorageEngineError, OSError) as error:
            return End({log: LogEnd(files_of(root, log)) for log in faults}, type(error).__name__)
        refused = {one.log: one for one in result.refused}
        ends = {
            log: LogEnd(
                files_of(root, log),
                tuple((one.base_offset, one.passage.value) for one in result.deleted if one.log == log),
                tuple((one.base_offset, one.reason.value) for one in result.kept if one.log == log),
                refused[log].error if log in refused else "",
                refused[log].missing if log in refused else (),
            )
            for log in faults
        }
        return End(ends, "")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    with toy.registered(tmp_path_factory.mktemp("broker")):
        yield Stores(tmp_path_factory.mktemp("stores"))


@settings(
    max_examples=max(EXAMPLES, 1), deadline=None, phases=tuple(Phases) if EXAMPLES else (Phases.explicit,)
)
@example(
    {"a": ("nothing", 0), "b": ("missing", 1), "c": ("other bytes", 1), "d": ("unreadable dependents", 0)}
)
@given(
    st.dictionaries(
        st.sampled_from(LOGS), st.tuples(st.sampled_from(list(FAULTS)), st.integers(0, 1)), min_size=2
    )
)
def test_a_release_ends_for_each_log_as_one_of_that_log_alone_does(
    stores: Stores, faults: dict[str, Fault]
) -> None:
    together = stores.end(faults)
    alone = {log: stores.alone(fault) for log, fault in faults.items()}
    for log, end in together.logs.items():
        (expected,) = alone[log].logs.values()
        assert end.files == expected.files
        if not together.error:
            assert (end.deleted, end.error) == (expected.deleted, alone[log].error)
        if not (together.error or alone[log].error):
            assert end == expected
    passing = {log for log, end in alone.items() if not end.error and end.logs[ALONE].deleted}
    refused = [end.error for end in alone.values() if end.error]
    assert bool(together.error) == bool(refused and not passing)
    assert together.error in {"", *refused}


Make = Callable[..., ManagedStore]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Make]:
    """Make a store as :func:`make_store` does: made(a=("nothing", 0), b=("missing", 1))."""

    def make(policy: Policy = POLICY, **faults: Fault) -> ManagedStore:
        return make_store(tmp_path / "store", tmp_path / "managed", faults, policy)

    with toy.registered(tmp_path / "broker"):
        yield make


def logs_deleted(result: steps.ReleaseResult) -> set[str]:
    return {one.log for one in result.deleted}


def logs_refused(result: steps.ReleaseResult) -> dict[str, str]:
    return {one.log: one.error for one in result.refused}


@pytest.mark.again
def test_an_undone_run_has_nothing_to_fail_for(made: Make) -> None:
    store = made(replace(POLICY, undo_window_hours=1), a=("nothing", 0), b=("other bytes", 0))
    before = {log: files_of(Path(store.root), log) for log in "ab"}
    assert logs_deleted(steps.release(store, "r")) == {"a"}
    steps.clean_dependents(store, "r")
    assert finish(store, "r").refused
    undo(store, "r", "somebody")
    assert {log: files_of(Path(store.root), log) for log in "ab"} == before
    done = finish(store, "r")
    assert (done.outcome, done.refused) == (Outcome.UNDONE, "")


def check_no_class(store: ManagedStore, refused: str) -> None:
    """Make sure that nothing which a person reads of a run tells why by a class of Python."""
    page = write_page(store, "r").read_text()
    for text in (refused, report_text(build_report(store, "r")), unescape(re.sub(r"<[^>]+>", " ", page))):
        assert re.findall(r"\b[A-Z]\w+Error\b", text) == [], text


def test_a_file_that_changes_meanwhile_stops_its_log_alone(
    made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made(a=("nothing", 0), b=("nothing", 0), c=("nothing", 0))
    changed = Path(steps.recorded_plan(store, "r").logs[1].to_delete[1].facts.path)
    record = Journal.record

    def change_then_record(journal: Journal, run: Run, *args: Any, **options: Any) -> None:
        if args[:2] == (Step.RELEASE, Phase.INTENT):
            changed.touch()
        record(journal, run, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "record", change_then_record)
        result = steps.release(store, "r")
    assert [(one.log, one.base_offset > 0) for one in result.deleted] == [
        ("a", False), ("a", True), ("b", False), ("c", False), ("c", True),
    ]  # fmt: skip
    assert logs_refused(result) == {"b": "ChangedUnderUsError"}
    assert [(one.log, one.reason) for one in result.kept] == [("b", Reason.REFUSED)]
    assert changed.exists()
    steps.clean_dependents(store, "r")
    done = finish(store, "r")
    assert not done.ok
    check_no_class(store, done.refused)


def test_what_can_not_be_archived_of_one_log_keeps_no_other_out_of_the_lake(made: Make) -> None:
    store = made(a=(UNARCHIVED, 0), b=("other bytes", 0), c=("missing", 1), d=(UNARCHIVED, 1))
    Path(steps.recorded_plan(store, "r").logs[1].to_delete[0].facts.path).chmod(0o600)
    done = steps.archive_planned(store, "r", lambda jobs: archive_all(open_lake(store.lake), jobs))
    assert [(one.log, one.base_offset > 0) for one in done.receipts] == [("a", False), ("d", True)]
    assert [word in " ".join(done.notices) for word in ("log b was not archived", "/c/")] == [True, True]
    result = steps.release(store, "r")
    assert logs_deleted(result) == {"a", "d"}
    assert logs_refused(result) == {"b": "LakeConflictError", "c": "GateRefusedError"}
    steps.clean_dependents(store, "r")
    assert finish(store, "r").outcome is Outcome.RELEASED_IN_PART


def test_a_log_that_is_gone_already_is_followed_up_though_the_other_can_not_be_archived(made: Make) -> None:
    store = made(a=("nothing", 0), b=("other bytes", 0))
    assert logs_deleted(steps.release(store, "r")) == {"a"}
    Path(steps.recorded_plan(store, "r").logs[1].to_delete[0].facts.path).chmod(0o600)
    done = steps.archive_planned(store, "r", lambda jobs: archive_all(open_lake(store.lake), jobs))
    assert (done.receipts, [one.log for one in done.refused]) == ((), ["b"])


def test_a_plan_of_which_no_log_can_be_archived_fails(made: Make) -> None:
    store = made(a=("missing", 1), b=("other bytes", 0))
    with pytest.raises(LakeConflictError):
        steps.archive_planned(store, "r", lambda jobs: archive_all(open_lake(store.lake), jobs))


@pytest.mark.again
def test_a_waiver_does_without_a_proof_and_not_against_what_the_lake_has(made: Make) -> None:
    store = made(a=(UNARCHIVED, 0), b=("other bytes", 0))
    plan = steps.recorded_plan(store, "r")
    Path(plan.logs[1].to_delete[0].facts.path).chmod(0o600)
    Journal(store.journal_url).waive(plan.digest, "ann", "a test")
    with pytest.raises(LakeConflictError):
        steps.archive_planned(store, "r", lambda jobs: archive_all(open_lake(store.lake), jobs))
    done = finish(store, "r")
    assert done.outcome is Outcome.FAILED
    check_no_class(store, done.refused)


@pytest.mark.again
def test_a_log_that_could_not_be_archived_fails_its_run_though_nothing_of_it_goes_any_more(
    made: Make,
) -> None:
    store = made(a=("nothing", 0), b=(UNARCHIVED, 0))
    Path(steps.recorded_plan(store, "r").logs[1].to_delete[0].facts.path).write_bytes(b"")
    steps.archive_planned(store, "r", lambda jobs: archive_all(open_lake(store.lake), jobs))
    result = steps.release(store, "r")
    assert (logs_deleted(result), result.refused) == ({"a"}, ())
    assert {one.log for one in result.kept} == {"b"}
    steps.clean_dependents(store, "r")
    done = finish(store, "r")
    assert (done.outcome, done.ok) == (Outcome.RELEASED_IN_PART, False)
    assert "log b was refused" in done.refused


def test_a_plan_refuses_a_log_whose_dependents_can_not_be_told(made: Make) -> None:
    store = made(a=("nothing", 0), b=("unreadable dependents", 0))
    assert steps.make_plan(store, "next", PlanRequest(manual=True)).deletes == 2
    kept = [one for one in steps.recorded_plan(store, "next").logs[1].decisions if not one.deletes]
    assert [one.reason for one in kept] == [Reason.REFUSED, Reason.REFUSED, Reason.NOT_EXPIRED]
    assert steps.release(store, "next").refused == ()
    steps.clean_dependents(store, "next")
    done = finish(store, "next")
    assert (done.outcome, "log b was refused" in done.refused) == (Outcome.RELEASED_IN_PART, True)
    with pytest.raises(FileGoneError):
        steps.make_plan(store, "alone", PlanRequest(manual=True))


def test_a_log_is_found_among_those_that_can_not_be_archived_together() -> None:
    def archive(segments: Sequence[Segment]) -> ArchiveResult:
        if any(one.log in ("3", "6") for one in segments):
            raise ProofError(f"{len(segments)} segments")
        return ArchiveResult((), lake=segments[0].log)

    def planned(count: int) -> list[Segment]:
        facts = FileFacts("/s", 1, 1, 1, 1, 1)
        return [Segment(str(log), 0, facts, SegmentState.SEALED) for log in range(count)]

    done, failed = archive_each_log(planned(8), archive)
    assert (done.lake, list(failed)) == ("0", ["3", "6"])
    assert [list(part) for part in archive_each_log(planned(4)[3:], archive)[1:]] == [["3"]]


def test_a_log_that_consumers_have_not_read_stays_alone_where_the_policy_blocks(
    made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(self: Any, snapshot: Any, ends: Mapping[str, int], *, deleted: bool = False) -> Unread:
        asked.append(tuple(ends))
        return Unread((UnreadMessages("g", "t", 5, 1, 7),) if "b" in ends else ())

    def unread_by_log(self: Any, snapshot: Any, ends: Mapping[str, int]) -> Mapping[str, Unread]:
        return {log: Unread((UnreadMessages("g", "t", 5, 1, 7),) if log == "b" else ()) for log in ends}

    asked: list[tuple[str, ...]] = []
    told = type("Told", (StoreConsumers,), {"unread": unread, "unread_by_log": unread_by_log})
    monkeypatch.setattr(toy_broker.ToyStore, "consumers", told())
    store = made(Policy(lag_policy=LagPolicy.BLOCK), a=("nothing", 0), b=("nothing", 0), c=("missing", 1))
    steps.record_lag(store, "r", LagSummary(0, 0, 0, 0, 0, (), 0), [])
    result = steps.release(store, "r")
    assert logs_deleted(result) == {"a"}
    assert logs_refused(result) == {"b": "GateRefusedError", "c": "GateRefusedError"}
    assert (result.unread.rows, result.unread.logs) == ((), ("a",))
    # Of all logs together, and of those that may go: never log by log.
    assert asked == [("a", "b"), ("a",)]


def test_what_consumers_lose_of_more_logs_is_added_up() -> None:
    one, other = UnreadMessages("g", "t", 5, 1, 7), UnreadMessages("g", "u", None, 1, 3)
    both = join_losses(Unread((one,), logs=("a",)), Unread((one, other), error="why", logs=("b",)))
    assert both.rows == (UnreadMessages("g", "t", 10, 2, 7), other)
    assert (both.logs, both.error) == (("a", "b"), "why")
    assert both.logs_beyond({"b": 1, "c": 2}) == {"c": 2}
    assert join_losses(Unread(), Unread(logs=("b",))).logs_beyond({"c": 2}) == {}
