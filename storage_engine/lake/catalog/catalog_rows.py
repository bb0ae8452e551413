"""What a SQL catalog's rows say, asked of the database itself: no metadata file is opened."""

from __future__ import annotations

from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from sqlalchemy import select
from sqlalchemy.orm import Session


def metadata_locations(catalog: SqlCatalog, namespace: str) -> dict[str, str]:
    """Return the location of each table's metadata file, by the table's name: of all in a namespace.

    :raises SQLAlchemyError: the catalog can't be read, or lacks its own tables.
    """
    with Session(catalog.engine) as session:
        rows = session.execute(
            select(IcebergTables.table_name, IcebergTables.metadata_location).where(
                IcebergTables.catalog_name == catalog.name,
                IcebergTables.table_namespace == namespace,
            )
        ).all()
    return {str(name): str(location) for name, location in rows if location}
