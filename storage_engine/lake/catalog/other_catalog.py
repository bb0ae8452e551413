"""Whether the catalog that a mark names is still there, so that another must not take its place."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from storage_engine.exceptions import LakeIdentityError
from storage_engine.lake.catalog.identity import Mark, is_same_catalog

_SQLITE = "sqlite:"


def check_other_catalog(
    location: str, catalog_id: str, marks: Iterable[Mark], *, take_over: bool
) -> str | None:
    """Make sure that no other catalog that is in use names a lake's files.

    :param location: of the lake, for the message.
    :param catalog_id: identity of this catalog.
    :param marks: what the tables' marks say.
    :param take_over: a person says that the other catalog is not to be used any more.
    :return: the other catalog, whose place this one takes; None: there is none.
    :raises LakeIdentityError: the other one is there, or can't be looked at.
    """
    others = {mark.catalog for mark in marks if not is_same_catalog(mark.catalog, catalog_id)}
    for other in sorted(others):
        if not take_over and (there := _there(catalog_id, other)):
            raise LakeIdentityError(
                f"lake {location}: expected that the catalog {other}, which committed last, is gone, found "
                f"that it {there}. Nothing was changed. Use that one; or run this again with --take-over, "
                "after which that one is refused."
            )
    return min(others, default=None)


def _there(catalog_id: str, other: str) -> str:
    """Return what there is to be said of a catalog that may be in use; "" when it is gone."""
    if not other.startswith(_SQLITE):
        return "can't be looked at from here"
    path = Path(other.removeprefix(_SQLITE).rsplit(" ", 2)[0])
    own = catalog_id.removeprefix(_SQLITE).rsplit(" ", 2)[0]
    if not path.exists() or (Path(own).exists() and path.samefile(own)):
        return ""
    try:
        uri = f"file:{quote(str(path))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            (count,) = connection.execute("SELECT count(*) FROM iceberg_tables").fetchone()
    except sqlite3.DatabaseError:
        return ""
    return f"is there, with {count} tables" if count else ""
