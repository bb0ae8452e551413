"""Our directory in a store's root: opened without following a symbolic link, whoever may write the store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from storage_engine import durable

DIRECTORY = ".storage-engine"

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def own_directory(root: str | os.PathLike[str], *, makes: bool = False) -> Iterator[int]:
    """Open it, for calls that take the descriptor of a directory.

    :param root: the store's.
    :param makes: a missing one is made, durably.
    :raises OSError: it is missing, can't be opened or made, or is a symbolic link.
    """
    path = Path(root) / DIRECTORY
    if makes:
        with suppress(FileExistsError):
            # Whoever may look at the store may read the stamp, or reports and checks would need its owner.
            durable.make_dir(path, shared=True)
            durable.fsync_path(root)
    fd = os.open(path, _FLAGS)
    try:
        yield fd
    finally:
        os.close(fd)
