"""How many files this process may have open: each mapped file of a log takes descriptors."""

from __future__ import annotations

import resource
from pathlib import Path

from storage_engine.exceptions import BadInputError

_A_FILE = 2
"""The file's own, and the one that Python's mapping keeps."""
_OTHERS = 512
"""Queues, index, sockets, and files of the log that are yet to be written."""


def allow_open_files(directory: Path, files: int) -> None:
    """Raise the soft limit of open files to the hard one, as a JVM does, where a log needs it.

    :param files: of the log.
    :raises BadInputError: the hard limit is too low.
    """
    needed = _A_FILE * files + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise BadInputError(
            f"{directory}: expected a limit of at least {needed} open files for {files} files of the log, "
            f"found {hard}. Nothing was changed. Raise it: ulimit -Hn, or LimitNOFILE of a service."
        )
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
