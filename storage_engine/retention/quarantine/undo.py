"""Undo of a run's deletions: exactly the same files come back under the same names.

Everything is checked before the first file is moved. Dependents come back first, then segments, the newest
first and each after its companions. So a killed undo leaves the store as a cleanup does, and
may be run again.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from storage_engine.commands import Command, Text
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import from_jsonable
from storage_engine.core.long_work import report_work
from storage_engine.core.wording import time_text
from storage_engine.exceptions import BadInputError, QuarantineError, RunStateError
from storage_engine.journal.journal import Phase, Run, Step
from storage_engine.journal.tables.leases import Lease
from storage_engine.model.plan import DependentFile
from storage_engine.model.store import FileFacts, LogSnapshot
from storage_engine.retention.proof.history import SegmentRelease, releases
from storage_engine.retention.proof.unseen_writes import Reading, digest
from storage_engine.retention.quarantine.places import Place, move_back, remove_empty_below, renames, stat_in
from storage_engine.retention.quarantine.records import (
    WHOLE,
    Quarantine,
    QuarantineState,
    quarantine_of,
    quarantines,
    record_undo_ended,
)
from storage_engine.retention.quarantine.set_aside import refuse_after_a_run
from storage_engine.retention.store.context import AnyStore, Context, open_context
from storage_engine.retention.store.managed_store import ManagedStore

_ELSEWHERE = Text("To restore the archived segments into another directory: ", Command("restore"), ".")


@dataclass(frozen=True, slots=True)
class UndoResult:
    """Result of a run's undo.

    :param segments: number of segments that came back; ``dependents`` likewise.
    :param min_offset: where the log begins now; of several logs the lowest offset.
    :param min_offsets: by the name of each log that got segments back, where it begins now.
    :param notices: checks that could not be made while the store was locked.
    """

    run_key: str
    segments: int
    dependents: int
    size_bytes: int
    min_offset: int
    person: str
    notices: tuple[str, ...]
    min_offsets: Mapping[str, int] = field(default_factory=dict)


def undo(store: ManagedStore, run_key: str, person: str, now_ms: int | None = None) -> UndoResult:
    """Bring back the segments and dependents that a run set aside.

    :param now_ms: the present time, or None for this machine's clock.
    :raises BadInputError: the store's broker runs.
    :raises RunStateError: there is no such run, or it set nothing aside.
    :raises QuarantineError: the quarantine was emptied or changed, or the store has changed so that the files
        don't fit any more. Nothing was moved by this call.
    :raises OSError: a file in the quarantine can't be read.
    :raises StoreBusyError: a broker or another run has the store.
    :raises StoreCrashedError: the broker has to recover the store first.
    """
    if store.is_live:
        raise BadInputError(
            f"{store.root}: expected a store whose broker is stopped, found settings of a running broker. "
            "Nothing was changed. Stop the broker, and leave out the options that name it."
        )
    context = open_context(store)
    run = context.run(run_key)
    done = context.result(run, Step.UNDO, UndoResult)
    if done is not None:
        return done
    quarantine = _read_quarantine(context, run)
    if quarantine.state is QuarantineState.KEPT:
        # A crashed store is refused below, but after its recovery no file could come back.
        refuse_after_a_run(run, quarantine)
    started_ns = time.monotonic_ns()
    with context.changing(clock_ms() if now_ms is None else now_ms) as held:
        quarantine = _read_quarantine(context, run)
        deleted, dependents = _read_deleted(context, run)
        facts = [*(file for r in deleted for file in r.segment.files), *(d.facts for d in dependents)]
        companions = {file.path for release in deleted for file in release.companions}
        if not all(_is_same(file, _lstat(Path(file.path))) for file in facts):
            _check_unchanged(context, run, quarantine, held.lease)
        aside = _find_aside(run, quarantine, facts, companions)
        segments = [release for release in deleted if release.facts.path in aside]
        _check_log(context, run, segments, held.snapshot.logs)
        files = [Path(dependent.facts.path) for dependent in dependents if dependent.facts.path in aside]
        _check_directories(run, segments, files)
        _check_moves(aside)
        _check_bytes(segments, aside, lambda: context.journal.renew(held.lease))
        if quarantine.state is not QuarantineState.UNDOING:
            entries = [(WHOLE, {"detail": person})]
            context.journal.record(run, Step.UNDO, Phase.INTENT, entries, lease=held.lease)
        back = (Path(file.path) for release in reversed(deleted) for file in reversed(release.segment.files))
        for path in (*sorted(files, reverse=True), *(path for path in back if str(path) in aside)):
            held.store.check()
            move_back(aside[str(path)], path)
            context.journal.renew(held.lease)
        for place in quarantine.places:
            remove_empty_below(place)
        logs = {log.name: log.min_offset for log in context.snapshot(clock_ms()).logs}
        result = UndoResult(
            run_key=run_key,
            segments=len(deleted),
            dependents=len(dependents),
            size_bytes=sum(file.size_bytes for file in facts),
            min_offset=min(logs.values()),
            person=person,
            notices=held.notices,
            min_offsets={release.log: logs[release.log] for release in deleted if release.log in logs},
        )
        context.save(run, Step.UNDO, result, started_ns)
    return result


def undone_before(store: AnyStore, run_key: str) -> UndoResult | None:
    """Return the result of a run's finished undo, or None without such a run or result."""
    context = open_context(store)
    run = context.journal.find_run(context.record.store_id, run_key)
    return None if run is None else context.result(run, Step.UNDO, UndoResult)


def _refusal(text: str) -> QuarantineError:
    return QuarantineError(f"{text}. Nothing was changed. ", _ELSEWHERE)


def _read_quarantine(context: Context, run: Run) -> Quarantine:
    """Return a run's quarantine, whose files may come back.

    :raises RunStateError: the run has no quarantine.
    :raises QuarantineError: the quarantine was emptied, or its undo can't be continued.
    """
    quarantine = quarantine_of(context.journal, run)
    if quarantine is None:
        raise RunStateError(
            f"run {run.run_key!r}: expected a run that set files aside, found a run without a quarantine: "
            "it deleted nothing, or its policy had no undo_window_hours. Nothing was changed. ",
            _ELSEWHERE,
        )
    if quarantine.state in (QuarantineState.EMPTYING, QuarantineState.EMPTIED):
        raise _refusal(
            f"run {run.run_key!r}: expected its quarantine, found it emptied at "
            f"{time_text(quarantine.state_at_ms)} ({quarantine.detail})"
        )
    if quarantine.state is QuarantineState.UNDO_ENDED:
        raise QuarantineError(quarantine.detail)
    return quarantine


def _check_unchanged(context: Context, run: Run, quarantine: Quarantine, lease: Lease) -> None:
    """Make sure that the broker hasn't run since the deletion. If it has, end an undo that was begun.

    :raises QuarantineError: the broker has run.
    """
    try:
        refuse_after_a_run(run, quarantine)
    except QuarantineError as error:
        if quarantine.state is QuarantineState.UNDOING:
            record_undo_ended(context.journal, run, str(error), lease)
        raise


def _check_moves(aside: Mapping[str, Place]) -> None:
    """Make sure that files can be renamed from the quarantine to their former places.

    :raises QuarantineError: a file can't be renamed, for example because a directory was mounted elsewhere
        later.
    """
    for place, directory in {(place, Path(path).parent) for path, place in aside.items()}:
        if not renames(directory, Path(place.base)):
            raise QuarantineError(
                f"{directory}: expected the same mounted file system as that of {place.directory}, found "
                "another file system: files can't be moved back without a copy. Nothing was changed. Mount "
                "these directories as they were."
            )


def _check_bytes(
    segments: Iterable[SegmentRelease], aside: Mapping[str, Place], renew: Callable[[], None]
) -> None:
    """Make sure that segments have the proven bytes: a write may be hidden by an old time.

    Segments that were deleted without a receipt can't be compared.

    :param renew: renews the lease on the store; called now and then.
    :raises QuarantineError: a segment has other bytes.
    :raises OSError: a segment can't be read.
    """
    proven = [release for release in segments if release.sha256 is not None]
    with report_work("Reading segments", sum(release.facts.size_bytes for release in proven)) as advance:
        for release in proven:
            place, path = aside[release.facts.path], Path(release.facts.path)
            inside = place.directory.joinpath(*place.names(path))
            if (sha256 := digest(str(inside), Reading(advance, renew))) != release.sha256:
                raise _refusal(
                    f"{inside}: expected SHA-256 {release.sha256}, which its receipt proves, found {sha256}: "
                    "a process wrote to the file after the deletion"
                )


def _read_deleted(context: Context, run: Run) -> tuple[list[SegmentRelease], list[DependentFile]]:
    """Return the segments, by log and offset, and dependents that the run deleted or was about to delete."""
    done, intended = releases(context.journal.events(run, Step.RELEASE))
    removed = {subject: row for subject, row in intended.items() if not Path(row.facts.path).exists()}
    deleted = sorted({**removed, **done}.values(), key=lambda release: (release.log, release.base_offset))
    results = {e.subject for e in context.journal.events(run, Step.DEPENDENTS, Phase.RESULT)}
    dependents = [
        from_jsonable(DependentFile, event.payload)
        for event in context.journal.events(run, Step.DEPENDENTS, Phase.INTENT)
        if event.subject in results or not Path(event.subject).exists()
    ]
    return deleted, dependents


def _find_aside(
    run: Run, quarantine: Quarantine, files: Iterable[FileFacts], companions: Collection[str]
) -> dict[str, Place]:
    """Find each file in the quarantine or at its former path: a killed call may have brought it back.

    :param companions: paths of companions, which a killed run may have left in place.
    :return: by former path, the place of each file that isn't back yet.
    :raises QuarantineError: a file is in neither place, in both, or isn't the deleted file.
    """
    places = {}
    for facts in files:
        path = Path(facts.path)
        place, status = _find_in(quarantine.places, path)
        status_here = _lstat(path)
        if status is None or place is None:
            may_be_here = quarantine.state is QuarantineState.UNDOING or facts.path in companions
            if may_be_here and _is_same(facts, status_here):
                continue
            raise QuarantineError(
                f"run {run.run_key!r}: expected {path} in its quarantine, found "
                f"{'nothing there' if status_here is None else 'another file at its old place'}. Nothing was "
                "changed. The quarantine was emptied or moved, or files were moved back by hand. ",
                _ELSEWHERE,
            )
        if status_here is not None:
            raise _refusal(
                f"{path}: expected no file after the deletion by run {run.run_key!r}, found a file: "
                "it was written later"
            )
        if not _is_same(facts, status):
            raise _refusal(
                f"{place.directory.joinpath(*place.names(path))}: expected the file that was deleted, of "
                f"{facts.size_bytes} bytes, inode {facts.inode} and mtime {facts.mtime_ns} ns, found "
                f"{status.st_size} bytes, inode {status.st_ino} and mtime {status.st_mtime_ns} ns: the file "
                "was touched or copied later"
            )
        places[facts.path] = place
    return places


def _find_in(places: Sequence[Place], path: Path) -> tuple[Place | None, os.stat_result | None]:
    """Return the place that has a file, by its former path, and the file's status there."""
    for place in places:
        if place.covers(path) and (status := stat_in(place, path)) is not None:
            return place, status
    return None, None


def _check_log(
    context: Context, run: Run, aside: Sequence[SegmentRelease], logs: Sequence[LogSnapshot]
) -> None:
    """Make sure that in each log the quarantined segments end where the log begins now.

    :raises QuarantineError: a log begins elsewhere, or is missing.
    """
    if missing := sorted({release.log for release in aside} - {log.name for log in logs}):
        raise _refusal(
            f"{context.store.real_root}: expected log {missing[0]}, from which run {run.run_key!r} "
            "deleted, found none"
        )
    for log in logs:
        of_log = [release for release in aside if release.log == log.name]
        ends = [release.end_offset for release in of_log]
        begins = [*(release.base_offset for release in of_log[1:]), log.min_offset]
        wrong = next((pair for pair in zip(ends, begins, strict=False) if pair[0] != pair[1]), None)
        if wrong is None:
            continue
        end, begin = wrong
        later = _later_runs(context, run, log.name, end)
        why = (
            f"run {later[-1]} deleted further segments later. Nothing was changed. Undo the newest run first"
            if later and begin > end
            else Text(
                "the store has changed after the deletion. Nothing was changed. ",
                _ELSEWHERE.removesuffix("."),
            )
        )
        raise QuarantineError(
            f"{context.store.real_root}: expected log {log.name} to begin at {end}, where run "
            f"{run.run_key!r} left it, found {begin}: ",
            why,
            ".",
        )


def _later_runs(context: Context, run: Run, log: str, end_offset: int) -> list[str]:
    """Return keys of runs that deleted segments of a log at ``end_offset`` or above, the newest last."""
    store_id = context.record.store_id
    undone = {
        quarantine.run_key
        for quarantine in quarantines(context.journal, store_id)
        if quarantine.state is QuarantineState.UNDONE or quarantine.run_key == run.run_key
    }
    results = context.journal.store_events(store_id, Step.RELEASE, Phase.RESULT)
    return list(
        dict.fromkeys(
            event.run_key
            for event in results
            if event.subject
            and event.run_key not in undone
            and event.payload["log"] == log
            and event.payload["base_offset"] >= end_offset
        )
    )


def _check_directories(run: Run, segments: Sequence[SegmentRelease], dependents: Sequence[Path]) -> None:
    """Make sure that each directory still exists, and that its deleted dependents precede its present files.

    A directory that also lost segments isn't compared: the segments' offsets decide.

    :raises QuarantineError: a directory is missing, or a queue or the index was begun again.
    """
    names: dict[Path, list[str]] = defaultdict(list)
    of_segments = {Path(release.facts.path).parent for release in segments}
    for path in dependents:
        if path.parent not in of_segments:
            names[path.parent].append(path.name)
    for directory in {*names, *of_segments}:
        last = max(names.get(directory, ()), default=None)
        if not directory.is_dir():
            expected, actual = "the directory of the deleted files", "none"
        elif last is None:
            continue
        else:
            first = min((path.name for path in directory.iterdir()), default="")
            if first > last:
                continue
            expected, actual = f"a file after {last}", first or "none"
        raise _refusal(
            f"{directory}: expected {expected}, as run {run.run_key!r} left it, found {actual}: it was "
            "removed, or begun again, since then"
        )


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_same(facts: FileFacts, status: os.stat_result | None) -> bool:
    """Return whether device, inode, size and mtime agree. The ctime isn't compared: a rename moves it."""
    recorded = (facts.device, facts.inode, facts.size_bytes, facts.mtime_ns)
    return status is not None and recorded == (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
    )
