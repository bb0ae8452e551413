"""Making a copy a lake of its own, which may be written: what a person decides when the original is gone."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass

from pyiceberg.table import Table

from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.exceptions import BadInputError, LakeUnavailableError
from storage_engine.lake.catalog.catalog import CHANGE_LOCK, Lake
from storage_engine.lake.catalog.commit_lock import nobody_commits
from storage_engine.lake.catalog.deletions_table import mark_deletions
from storage_engine.lake.catalog.identity import (
    ANCESTORS_PROPERTY,
    COPY_OF_PROPERTY,
    PROMOTED_PROPERTY,
    ancestors_of,
    lake_id_of,
)
from storage_engine.lake.catalog.tables import DELETIONS
from storage_engine.lake.catalog.writing import mark_commits
from storage_engine.lake.storage.errors import lake_errors


@dataclass(frozen=True, slots=True)
class Promotion:
    """:param copy_of: UUID of the lake that it was a copy of.
    :param lake_id: its own.
    """

    lake_id: str
    copy_of: str
    person: str
    reason: str
    at_ms: int


def promote(lake: Lake, person: str, reason: str) -> Promotion:
    """Make a copy writable, and record who decided that, and why. Its UUID stays.

    Killed at any instant and run again, it goes on; a promoted one is left as it is.

    :raises BadInputError: it is no copy, and never was one; or nobody, or no reason, is named.
    :raises LakeUnavailableError: it can't be written.
    """
    if not person.strip() or not reason.strip():
        raise BadInputError(
            "lake promote: expected a person and a reason, found an empty one. Nothing was changed: the lake "
            "keeps who decided that, and why."
        )
    with CHANGE_LOCK, nobody_commits(lake):
        messages, segments = lake.tables()
        text = segments.properties.get(PROMOTED_PROPERTY) or messages.properties.get(PROMOTED_PROPERTY)
        original = segments.properties.get(COPY_OF_PROPERTY)
        if original is None and text is None:
            raise BadInputError(
                f"lake {lake.location}: expected a copy, found a lake that is none. Nothing was changed. It "
                "may be written as it is."
            )
        if text is None or (original is not None and PROMOTED_PROPERTY not in messages.properties):
            lake_id = lake_id_of(segments)
            assert lake_id is not None
            assert original is not None
            text = json.dumps(
                to_jsonable(Promotion(lake_id, original, person, reason, time.time_ns() // 1_000_000))
            )
        deletions = [table for table in lake.every_table() if table.name()[-1] == DELETIONS]
        for table in deletions:
            with suppress(LakeUnavailableError):
                _promote(lake, table, text)
                mark_deletions(lake)
        # What is asked before each writing comes last.
        for table in (messages, segments):
            _promote(lake, table, text)
        mark_commits(lake)
        return from_jsonable(Promotion, json.loads(text), lake.location)


def _promote(lake: Lake, table: Table, text: str) -> None:
    if COPY_OF_PROPERTY in table.properties:
        with lake_errors(lake.location, "promote the copy"), table.transaction() as change:
            change.remove_properties(COPY_OF_PROPERTY)
            change.set_properties(
                {PROMOTED_PROPERTY: text, ANCESTORS_PROPERTY: _ancestors(table, json.loads(text))}
            )


def _ancestors(table: Table, promotion: dict[str, str]) -> str:
    """Return the lakes that this one goes on for: what is known of their receipts holds for its own."""
    return json.dumps(list(dict.fromkeys((*ancestors_of(table), promotion["copy_of"]))))
