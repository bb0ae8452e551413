"""Who works beside a broker has to be able to read what it writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage_engine.exceptions import BadInputError


@contextmanager
def as_who_may_read(root: Path | str) -> Iterator[None]:
    """Say what to do where a file of the store may not be read.

    :param root: the store's.
    :raises BadInputError: in place of PermissionError.
    """
    try:
        yield
    except PermissionError as error:
        raise BadInputError(
            f"{error.filename or root}: expected a store that this process may read, found "
            f"{error.strerror}; it runs as uid {os.geteuid()}. Nothing was changed. Let the connection's "
            "queue lead to a worker that runs as the broker's user, or run this command as that user."
        ) from error
