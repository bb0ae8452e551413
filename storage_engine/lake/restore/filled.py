"""A restored store's record of segments that differ from the archived ones: filler replaces deleted
messages.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from storage_engine.commands import Text
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.own_directory import DIRECTORY
from storage_engine.core.untrusted import MALFORMED, read_file
from storage_engine.core.wording import bytes_text, reason_text
from storage_engine.exceptions import BadInputError, StoreIdentityError

FILLED_FILE = Path(DIRECTORY, "filled.json")
"""Below a restored store's root. It is there before the first of these segments is."""

_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class FilledSegment:
    """A restored segment with filler. No receipt is of its bytes.

    :param sha256: of the file as it was restored.
    :param archived_sha256: of the file that was archived.
    :param filler_bytes: how much of it stands for messages that are gone.
    :param why: their end, as a clause.
    """

    log: str
    lineage: int
    base_offset: int
    size_bytes: int
    sha256: str
    archived_sha256: str
    filler_bytes: int
    why: str

    def __str__(self) -> str:
        """Return the differences as text."""
        return (
            f"{self.log}/{self.base_offset:020d} was restored with {bytes_text(self.filler_bytes)} of "
            f"filler, as it is {self.why}. Its SHA-256 was {self.sha256}, that of the archived segment "
            f"{self.archived_sha256}"
        )


@dataclass(frozen=True, slots=True)
class FilledSegments:
    """The file's content."""

    store_id: str
    segments: tuple[FilledSegment, ...]

    @property
    def content(self) -> bytes:
        """Return it as it is written: the same again for the same segments."""
        return json.dumps(to_jsonable(self), indent=1).encode()


def filled_notes(root: str | PathLike[str], there: Collection[tuple[str, int]]) -> tuple[str, ...]:
    """Name the present segments that were restored with filler, or why that is unknown.

    :param there: logs and base offsets.
    """
    try:
        return tuple(str(one) for one in read_filled(root) if (one.log, one.base_offset) in there)
    except StoreIdentityError as error:
        return (Text(error).removesuffix("."),)


def read_filled(root: str | PathLike[str]) -> tuple[FilledSegment, ...]:
    """Return the segments of a store that were restored with filler; (): there are none.

    :raises StoreIdentityError: the record of it can't be read.
    """
    path = Path(root) / FILLED_FILE
    try:
        data = read_file(path, _MAX_BYTES, follow_links=False)
        return from_jsonable(FilledSegments, json.loads(data), str(path)).segments
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except (OSError, BadInputError, *MALFORMED) as error:
        raise StoreIdentityError(
            f"{path}: expected which segments a restore has filled, found something that can't be read "
            f"({reason_text(error)}). Nothing was changed. Restore again into a new directory."
        ) from error
