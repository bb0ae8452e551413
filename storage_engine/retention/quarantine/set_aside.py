"""Removal of a run's files: they are unlinked, or moved into a quarantine if the policy allows an undo.

The gate has already let them pass. A place is recorded and made before the first file is moved. Changes to
the broker's own files show whether it has run after the deletion.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from storage_engine.brokers import find_broker
from storage_engine.commands import Command
from storage_engine.core import durable
from storage_engine.core.clock import HOUR_MS
from storage_engine.exceptions import BadInputError, QuarantineError, RunStateError
from storage_engine.journal.journal import Run
from storage_engine.journal.tables.leases import Lease
from storage_engine.model.broker.broker_store import Remove, process_of
from storage_engine.model.broker.broker_words import Aside
from storage_engine.model.store import FileFacts
from storage_engine.retention.proof.deletion_checks import check_inside
from storage_engine.retention.quarantine.places import choose_places, make_place, move_in
from storage_engine.retention.quarantine.records import (
    Quarantine,
    QuarantineState,
    quarantine_of,
    record_place,
)
from storage_engine.retention.store.context import Context

_NOTHING = "no file"


def signs_of(paths: Iterable[Path]) -> dict[str, str]:
    """Return the present facts of files, by path. A rename or a link of a file doesn't change these facts."""
    return {str(path): _facts_text(str(path)) for path in paths}


def refuse_after_a_run(run: Run, quarantine: Quarantine) -> None:
    """Make sure that a store's broker hasn't run since files were set aside, if an undo requires that.

    :raises QuarantineError: the broker may have run; the error names the file that shows it.
    """
    signs = signs_of(Path(path) for path in quarantine.signs)
    for path, sign in quarantine.signs.items():
        if signs[path] != sign:
            raise QuarantineError(
                f"{path}: expected the file as run {run.run_key!r} found it, {sign}, found {signs[path]}: "
                "the store's broker has run since, or another program changed its files. Nothing was "
                "changed. To restore the archived segments into another directory: ",
                Command("restore"),
                ".",
            )


def _facts_text(path: str) -> str:
    try:
        facts = FileFacts.of(path)
    except (FileNotFoundError, NotADirectoryError):
        return _NOTHING
    return f"{facts.size_bytes} bytes, inode {facts.inode} and mtime {facts.mtime_ns} ns"


def refuse_undone(context: Context, run: Run) -> None:
    """Make sure that a run may still delete.

    :raises RunStateError: the run was undone, or its undo has begun, so it may delete no more.
    """
    quarantine = quarantine_of(context.journal, run)
    undone = (QuarantineState.UNDOING, QuarantineState.UNDONE, QuarantineState.UNDO_ENDED)
    if quarantine is not None and quarantine.state in undone:
        raise RunStateError(
            f"run {run.run_key!r}: expected a run that can continue, found a run whose undo has begun. "
            "Nothing was changed. Begin another run."
        )


def remover(
    context: Context, run: Run, files: Iterable[FileFacts], lease: Lease, now_ms: int, *, begin: bool
) -> Remove:
    """Return the function that removes the run's files.

    Its work is durable after the caller has flushed the files' own directories.

    :param begin: set files aside if the policy requires it. Otherwise use only a quarantine that the run has.
    :raises BrokerPackageError: a file is outside of the store; nothing was deleted.
    :raises BadInputError: a directory's file system has no place for a quarantine; nothing was changed.
    :raises QuarantineError: another file is in the place of the quarantine; nothing was deleted.
    """
    files = tuple(files)
    check_inside(context.store.broker, [facts.path for facts in files], context.data_paths)
    hours = context.store.policy.undo_window_hours if begin else None
    quarantine = quarantine_of(context.journal, run)
    if quarantine is None and hours is None:
        return durable.unlink_in
    if quarantine is not None and quarantine.state in (QuarantineState.EMPTYING, QuarantineState.EMPTIED):
        # No run empties this quarantine again, so files that pass the gate now are unlinked.
        return durable.unlink_in
    until_ms = quarantine.until_ms if quarantine is not None else now_ms + (hours or 0) * HOUR_MS
    paths = (Path(facts.path) for facts in files)
    places = () if quarantine is None else quarantine.places
    chosen = choose_places(
        context.store, context.data_paths, context.record.store_id, run.run_key, paths, places
    )
    new = [place for place in dict.fromkeys(chosen.values()) if place not in places]
    signs = _signs(context, list(chosen)) if new else {}
    for place in dict.fromkeys(chosen.values()):
        if place in new:
            record_place(
                context.journal,
                run,
                place,
                lineages=context.record.lineages,
                signs=signs,
                now_ms=now_ms,
                until_ms=until_ms,
                lease=lease,
            )
            # A node may have 10,000 logs, so only the first place records the signs.
            signs = {}
        manifest = {
            "run_key": run.run_key,
            "store_id": context.record.store_id,
            "root": context.store.real_root,
            "set_aside_at_ms": now_ms,
            "until_ms": until_ms,
        }
        make_place(place, json.dumps(manifest, indent=1).encode())
    return lambda path, directory: move_in(chosen[path.parent], path, directory)


def _signs(context: Context, directories: list[Path]) -> dict[str, str]:
    """Return the present facts of files that a running broker would change.

    :raises BadInputError: an undo is only possible before the broker starts, and nothing shows if it has.
    """
    process, kind = context.broker.process, find_broker(context.store.broker)
    if process is None and kind.aside is Aside.OUTSIDE:
        raise BadInputError(
            f"{context.store.root}: expected a store that shows whether its broker has run, found a store of "
            f"{kind.words.title}. Nothing was deleted. Leave undo_window_hours and undo_directories empty."
        )
    return signs_of(process_of(context.broker).signs_of_a_run(directories))


def frees_nothing(quarantine: Quarantine | None) -> bool:
    """Return whether a run's deleted files still take up space."""
    return quarantine is not None and quarantine.state is not QuarantineState.EMPTIED
