"""Transactions on tables with many snapshots."""

from __future__ import annotations

from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableUpdate


class _Transaction(Transaction):
    """PyIceberg's, which copies the whole metadata at each of a commit's twenty looks at it; here it is
    copied where something was staged since the last look. Nobody changes what they look at."""

    _seen: tuple[tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        if not self._updates:
            return self._table.metadata
        if self._seen is None or self._seen[0] is not self._updates:
            self._seen = (self._updates, super().table_metadata)
        return self._seen[1]


def begin(table: Table) -> Transaction:
    """Return a transaction on a loaded table."""
    return _Transaction(table)
