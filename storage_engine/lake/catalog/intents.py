"""The intent of a command that makes a lake's metadata, kept beside the tables until the command is done.

A command that was killed and is run again finds here which UUID it gave, and which files its earlier attempts
wrote. Those are removed only after the catalog names another attempt's. What was meant is over once the mark
below the table says that somebody committed since: then the place is a lake by its own right.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pyiceberg.io import FileIO

from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.exceptions import BadInputError, LakeUnavailableError
from storage_engine.lake.catalog.identity import known_mark_at
from storage_engine.lake.storage.small_files import (
    HIDDEN_PREFIX,
    delete_small_file,
    list_files,
    read_small_file,
    replace_small_file,
)

INTENT_NAME = f"{HIDDEN_PREFIX}intent.json"


@dataclass(frozen=True, slots=True)
class Intent:
    """:param command: ``relocate``, ``copy`` or ``rebuild``.
    :param lake_id: the UUID that the lake has when the command is done.
    :param copy_of: UUID of the lake that it is a copy of then; None: it is none.
    :param attempts: UUIDs in the names of the files that were written for it, the last one last.
    :param began_at: name of the metadata file that the mark of ``segments`` named then; "" without one.
    """

    command: str
    lake_id: str | None
    copy_of: str | None
    attempts: tuple[str, ...] = ()
    began_at: str = ""

    @property
    def attempt(self) -> str:
        return self.attempts[-1]


def read_intent(file_io: FileIO, location: str) -> Intent | None:
    """Return the intent of a command that was killed.

    :raises LakeUnavailableError: it can't be read.
    """
    path = f"{location}/{INTENT_NAME}"
    data = read_small_file(file_io, path)
    if data is None:
        return None
    try:
        return from_jsonable(Intent, json.loads(data), path)
    except (ValueError, BadInputError) as error:
        raise LakeUnavailableError(
            f"{path}: expected what a command meant to do, as JSON, found something else ({error}). Nothing "
            "was changed. Move the file away and run the command again."
        ) from error


def open_intent(file_io: FileIO, location: str) -> Intent | None:
    """Return the intent of a killed command, unless another one has committed there since.

    :raises LakeUnavailableError: it can't be read.
    """
    intent = read_intent(file_io, location)
    return intent if intent is not None and intent.began_at == _marked(file_io, location) else None


def may_have_landed(file_io: FileIO, location: str, intent: Intent, named: str) -> bool:
    """Return whether the catalog's state may be an attempt's work: no other commit came after it.

    :param named: name of the metadata file that the catalog names.
    :raises LakeUnavailableError: it can't be read.
    """
    by_attempt = any(attempt in named for attempt in intent.attempts)
    return by_attempt and _marked(file_io, location) in (intent.began_at, named)


def begin(file_io: FileIO, location: str, intent: Intent) -> Intent:
    """Record durably what is to be done by a new attempt.

    :return: the same with the new attempt.
    """
    attempts = (*intent.attempts, str(uuid.uuid4()))
    intent = replace(intent, attempts=attempts, began_at=_marked(file_io, location))
    replace_small_file(
        file_io, f"{location}/{INTENT_NAME}", json.dumps(to_jsonable(intent), indent=1).encode()
    )
    return intent


def _marked(file_io: FileIO, location: str) -> str:
    """Name of the metadata file that a mark names; "" where there is none, or none that can be understood."""
    mark = known_mark_at(file_io, location)
    return "" if mark is None else mark.metadata


def end(file_io: FileIO, location: str, intent: Intent) -> None:
    """Forget the intent: it is carried out.

    :raises LakeUnavailableError: the record can't be removed.
    """
    delete_small_file(file_io, f"{location}/{INTENT_NAME}")


def sweep_attempts(file_io: FileIO, tables: Iterable[str], intent: Intent, named: Iterable[str]) -> None:
    """Remove files of attempts that failed.

    To be called before anybody else can commit: then what the catalog names tells which attempt counts. Where
    it names none of them, nothing is removed.

    :param tables: locations of the tables.
    :param named: names of the metadata files that the catalog has now.
    """
    named = tuple(named)
    landed = {attempt for attempt in intent.attempts if any(attempt in name for name in named)}
    if not landed:
        return
    for table in tables:
        for file in list_files(file_io, f"{table}/metadata"):
            if any(attempt in file.inside for attempt in set(intent.attempts) - landed):
                delete_small_file(file_io, f"{table}/metadata/{file.inside}")
