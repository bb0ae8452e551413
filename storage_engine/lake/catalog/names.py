"""Names of data files: relative to the location of the table of rows in receipts, whole where one is opened.

A receipt can't be rewritten when its lake moves, for the name stands inside the row's hash. So names are
relative; older receipts have whole locations, which are read against the places where the table lay before.
"""

from __future__ import annotations

import json

from pyiceberg.table import Table

from storage_engine.model.proof.receipt import Receipt, StoredFile

FORMER_LOCATIONS_PROPERTY = "storage-engine.former-locations"
"""Table property: JSON list of the locations that the table had before its lake was relocated."""


def relative_name(table: Table, location: str) -> str:
    """Return a location below a table's location as a receipt names it; any other location as it is."""
    return location.removeprefix(f"{_root(table)}/")


def location_of(table: Table, name: str) -> str:
    """Return where a file lies now.

    :param table: the table below whose location the file lies.
    :param name: the name in a receipt: relative, or a whole location of this table, now or before.
    """
    if "://" not in name and not name.startswith("/"):
        return f"{_root(table)}/{name}"
    for former in former_locations(table):
        if name.startswith(f"{former}/"):
            return f"{_root(table)}/{name.removeprefix(f'{former}/')}"
    return name


def data_file_of(table: Table, receipt: Receipt) -> str:
    """Return where a receipt's own data file lies now.

    :param table: that of rows.
    """
    return location_of(table, receipt.data_file)


def proven_files(table: Table, receipt: Receipt) -> tuple[StoredFile, ...]:
    """Return the files that a receipt's proof rests on, by the locations that they have now.

    :param table: that of rows.
    """
    return tuple(
        StoredFile(location_of(table, file.location), file.size_bytes, file.sha256)
        for file in receipt.proven_files
    )


def former_locations(table: Table) -> tuple[str, ...]:
    """Return the locations that a table had before its lake was relocated, without a final slash."""
    return tuple(json.loads(table.properties.get(FORMER_LOCATIONS_PROPERTY, "[]")))


def _root(table: Table) -> str:
    return table.location().rstrip("/")
