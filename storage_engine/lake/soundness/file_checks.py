"""Looking at every file of a lake, where it lies, before anything is built on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile

from storage_engine.commands import Command
from storage_engine.core.long_work import told
from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.catalog.placed_table import PlacedTable, live_files, rows_of
from storage_engine.lake.catalog.tables import SEGMENTS
from storage_engine.lake.durable_io import open_data_file, sha256_of_file
from storage_engine.lake.soundness.receipts import current
from storage_engine.lake.storage.errors import LAKE_FAILURES, lake_unavailable
from storage_engine.model.proof.receipt import Receipt

_THREADS = 2
_NAMED = 3


def proven_hashes(messages: PlacedTable, rows: Iterable[Receipt]) -> dict[str, str]:
    """Return the SHA-256 of each file that a receipt rests on, by the place where it lies now."""
    hashes = {}
    by_store: dict[str, list[Receipt]] = {}
    for row in rows:
        by_store.setdefault(row.store_id, []).append(row)
    for of_store in by_store.values():
        counting = current(of_store)
        partial = {row.identity for row in counting if row.has_rows and not row.is_whole}
        # Between the two commits of an expiry in part the table has the file before it.
        for row in (*counting, *(row for row in of_store if row.identity in partial)):
            for file in row.proven_files:
                inside = file.location if is_relative(file.location) else messages.inside(file.location)
                if inside is not None:
                    hashes[f"{messages.location}/{inside}"] = file.sha256
    return hashes


def is_relative(name: str) -> bool:
    """Return whether a receipt names a file relative to the table's location."""
    return "://" not in name and not name.startswith("/")


def check_files(tables: Mapping[str, PlacedTable], rows: Iterable[Receipt]) -> tuple[int, int]:
    """Make sure that every file of a lake is there, has its size, and its SHA-256 where a receipt has one.

    :param rows: every receipt.
    :return: how many data files there are, and their bytes.
    :raises LakeUnavailableError: some aren't, or can't be read.
    """
    messages = rows_of(tables)
    hashes = proven_hashes(messages, rows)
    files = [
        (table.io, location, file)
        for table in (tables[SEGMENTS], messages)
        for location, file in live_files(table).items()
    ]

    total_bytes = sum(file.file_size_in_bytes for _, _, file in files)
    with (
        told("Checking data files", total_bytes) as advance,
        ThreadPoolExecutor(_THREADS, thread_name_prefix="look") as pool,
    ):

        def look(item: tuple[FileIO, str, DataFile]) -> str:
            file_io, location, file = item
            fault = file_fault(file_io, location, file.file_size_in_bytes, hashes.get(location))
            advance(file.file_size_in_bytes)
            return fault

        faults = [fault for fault in pool.map(look, files) if fault]
    if faults:
        more = f"; and {len(faults) - _NAMED} more" if len(faults) > _NAMED else ""
        raise LakeUnavailableError(
            f"{messages.location}: expected {len(files)} data files as they were archived; "
            f"{'; '.join(faults[:_NAMED])}{more}. Nothing was changed. Bring these files from the place "
            "where the lake was or from a second lake; or run ",
            Command("lake rebuild"),
            ", which goes on with what is left.",
        )
    return len(files), total_bytes


def file_fault(file_io: FileIO, location: str, size_bytes: int, sha256: str | None) -> str:
    """Return what is wrong with a file; "" where nothing is.

    :param sha256: in hex; None: nobody recorded it, and only the size is looked at.
    :raises LakeUnavailableError: it can't be read.
    """
    try:
        found = len(file_io.new_input(location))
        if found != size_bytes:
            return f"{location} has {found} bytes, expected {size_bytes}"
        if sha256 is None:
            return ""
        with open_data_file(file_io, location) as stored:
            found_sha256 = sha256_of_file(stored)
    except FileNotFoundError:
        return f"{location} is missing"
    except LAKE_FAILURES as error:
        raise lake_unavailable(location, "check a data file", error) from error
    return "" if found_sha256 == sha256 else f"{location} has SHA-256 {found_sha256}, expected {sha256}"
