"""Telling whether a store's broker has run since files were set aside: some of its own change by it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from storage_engine.exceptions import QuarantineError
from storage_engine.journal.journal import Run
from storage_engine.model.store.store import FileFacts
from storage_engine.retention.quarantine.records import Quarantine

_NOTHING = "no file"


def signs_of(paths: Iterable[Path]) -> dict[str, str]:
    """Return what files are by now, by path; a rename or a link changes nothing of it."""
    return {str(path): _said(str(path)) for path in paths}


def refuse_after_a_run(run: Run, quarantine: Quarantine) -> None:
    """Make sure that a store's broker hasn't run since a run set files aside, where an undo needs that.

    :raises QuarantineError: it may have run; names the file that shows it.
    """
    found = signs_of(Path(path) for path in quarantine.signs)
    for path, known in quarantine.signs.items():
        if found[path] != known:
            raise QuarantineError(
                f"{path}: expected it as run {run.run_key!r} found it, {known}, found {found[path]}: the "
                "store's broker has run since, or somebody changed its files. Nothing was changed. What is "
                "archived comes back into another directory by storage-engine restore."
            )


def _said(path: str) -> str:
    try:
        facts = FileFacts.of(path)
    except (FileNotFoundError, NotADirectoryError):
        return _NOTHING
    return f"{facts.size_bytes} bytes, inode {facts.inode} and mtime {facts.mtime_ns} ns"
