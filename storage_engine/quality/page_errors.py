"""What Great Expectations swallows while it writes pages: it logs a trace, and goes on without the page."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOGGER = "great_expectations"


class _Swallowed(logging.Handler):
    """Keeps the first error of a file that is logged where it was caught; hands on all else."""

    def __init__(self) -> None:
        super().__init__()
        self.error: OSError | None = None

    def emit(self, record: logging.LogRecord) -> None:
        caught = sys.exc_info()[1]
        if isinstance(caught, OSError):
            self.error = self.error or caught
        else:
            logging.getLogger().handle(record)


@contextmanager
def files_written(directory: Path) -> Iterator[None]:
    """Raise as one error what keeps Great Expectations from writing into a directory, and log none of it.

    :raises OSError: a file couldn't be written, as on a full disk; it names a file or the directory.
    """
    logger, swallowed = logging.getLogger(_LOGGER), _Swallowed()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(swallowed)
    try:
        yield
    except OSError as error:
        swallowed.error = error
    except Exception:
        # What it comes to that a file couldn't be written.
        if swallowed.error is None:
            raise
    finally:
        logger.removeHandler(swallowed)
        logger.propagate = propagate
    if swallowed.error is not None:
        raise _named(swallowed.error, directory) from swallowed.error


def _named(error: OSError, directory: Path) -> OSError:
    """Return an error with the path that it is about: a write to an open file tells none."""
    return OSError(error.errno, error.strerror or str(error), error.filename or str(directory))
