"""Where a demo works: a directory that it wipes each time, and that must be nobody else's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from demo.dag_run import Say
from storage_engine.exceptions import BadInputError
from storage_engine.project.init import Project
from storage_engine.project.up import Interrupted, directory_lock, interruptible

_MARKER = ".storage-engine-demo"


def refuse_foreign(directory: Path, names: tuple[str, ...]) -> None:
    """A demo wipes what an earlier one left, and must not wipe anything else.

    :param names: what the demo makes there beside a project.
    :raises BadInputError: the directory holds some of it, and no demo made that.
    """
    taken = [path for path in _own_paths(directory, names) if path.exists()]
    if taken and not (directory / _MARKER).exists():
        raise BadInputError(
            f"{directory}: expected an empty directory or an earlier demo's, found {taken[0].name} of "
            "something else. Nothing was changed. Name another directory."
        )


def run_demo_in(directory: Path, names: tuple[str, ...], say: Say, run: Callable[[Path], int]) -> int:
    """Run a demo in a directory of its own, once it is certain that nothing else lies there.

    :param names: what the demo makes there beside a project.
    :param say: hears that it was interrupted.
    :param run: the demo, which returns its exit status.
    :return: that status, or 128 + signal number when interrupted.
    :raises BadInputError: the directory holds something that is not an earlier demo.
    """
    try:
        with interruptible():
            refuse_foreign(directory, names)
            with directory_lock(directory):
                return run(directory.resolve())
    except Interrupted as interrupted:
        say(f"interrupted by {interrupted}; nothing is left running")
        return interrupted.exit_status


def clear(directory: Path, names: tuple[str, ...]) -> None:
    """Remove what an earlier demo made, and mark the directory as a demo's."""
    (directory / _MARKER).write_text("Made by a demo of storage-engine, which makes it new each time.\n")
    for path in _own_paths(directory, names):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _own_paths(directory: Path, names: tuple[str, ...]) -> list[Path]:
    return [*Project(directory).made_by_us(), *(directory / name for name in names)]
