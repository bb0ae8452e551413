"""Where a demo works: a directory that it wipes each time, and that must be nobody else's."""

from __future__ import annotations

import shutil
from pathlib import Path

from storage_engine.exceptions import BadInputError
from storage_engine.project.init import Project

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
