"""Gives a lake the metadata of thousands of commits that never happened, in seconds.

What a commit reads and writes is made as PyIceberg and this project would have left it: manifests as their
merging leaves them, receipts with a whole chain in files as their merging leaves them, and a metadata file
that lists each snapshot. What no run reads is left out: the segments' data files, and the manifest lists of
older snapshots.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from typing import Any

from pyiceberg.catalog.sql import IcebergTables
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DataFile,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot, SnapshotLogEntry
from pyiceberg.types import LongType
from pyiceberg.utils.bin_packing import ListPacker
from pyiceberg.utils.properties import property_as_int
from sqlalchemy import update

from storage_engine.lake.archive import small_tables
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.identity import metadata_version
from storage_engine.lake.catalog.placed_table import location_of
from storage_engine.lake.catalog.writing import mark_commits
from storage_engine.lake.file.jobs import data_file_name, shared_file_name
from storage_engine.lake.file.scan import live_data_files
from storage_engine.lake.soundness.chain import row_hash
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.model.proof.receipt import CHAIN_START, Receipt, row_groups_text

COMMIT_EVERY_MS = 600_000
_MANIFEST_TARGET, _MANIFEST_COUNT = "commit.manifest.target-size-bytes", "commit.manifest.min-count-to-merge"
_ONE_MANIFEST_BYTES, _ENTRY_BYTES = 6_000, 250
"""What a manifest of one entry takes at least, and each further one: were the sizes here above the true ones,
the first commit would merge all of them once more."""


def write_history(
    lake: Lake, store_id: str, commits: int, snapshots: int | None = None, a_file: int = 1
) -> None:
    """Give a store so many older segments in the lake, each by a commit of its own, ten minutes apart.

    :param lake: holds the receipt of one segment, at an offset behind those of the history.
    :param snapshots: that the tables still list; None: one a commit.
    :param a_file: how many segments share a data file.
    """
    (last,) = receipts(lake, store_id)
    messages, segments = lake.messages(), lake.segments()
    (template,) = live_data_files(messages, store_id)
    field_id = messages.schema().find_field("segment_base_offset").field_id
    rows, files, kept = _receipts(last, commits, a_file), [], []
    for _, count in _receipt_files(commits + 1):
        part = [*islice(rows, count)]
        files += [
            _moved(template.entry, location_of(messages, row["data_file"]), field_id, row, a_file)
            for row in part
            if row["sequence"] % a_file == 1 % a_file and row["sequence"]
        ]
        kept.append(small_tables._write(segments, store_id, small_tables.as_table(segments, part)))
    files.append(template.entry)
    _write(lake, messages, files, _manifest_sizes(messages, len(files)), snapshots)
    _write(lake, segments, kept, _manifest_sizes(segments, len(kept)), snapshots or commits + 1)
    mark_commits(lake)


def _receipts(last: Receipt, count: int, a_file: int) -> Iterator[dict[str, Any]]:
    """Yield the store's receipt, and the history's behind it in the chain."""
    assert last.previous_hash == CHAIN_START
    row: dict[str, Any] = asdict(last)
    yield row
    directory, path = last.data_file.rpartition("/")[0], last.source_path[:-20]
    for number in range(count):
        sha256 = hashlib.sha256(b"%d" % number).hexdigest()
        base_offset = number * last.size_bytes
        identity = replace(last.identity, base_offset=base_offset, sha256=sha256)
        row = {
            **row,
            "base_offset": base_offset,
            "sha256": sha256,
            "source_path": f"{path}{base_offset:020d}",
            "source_inode": number,
            "data_file_sha256": hashlib.sha256(sha256.encode()).hexdigest(),
            "sequence": number + 1,
            "previous_hash": row["row_hash"],
            "data_file": f"{directory}/{data_file_name(identity)}",
        }
        if a_file > 1:
            file, group = divmod(number, a_file)
            row["data_file"] = f"{directory}/{shared_file_name('0' * 8, file)}"
            row["data_file_sha256"] = hashlib.sha256(row["data_file"].encode()).hexdigest()
            row["row_groups"] = row_groups_text(range(group, group + 1))
        row["row_hash"] = row_hash(row)
        yield row


def _moved(
    template: DataFile, location: str, field_id: int, first: Mapping[str, Any], a_file: int
) -> DataFile:
    """:param first: receipt of the first segment in the file."""
    base_offset, end = first["base_offset"], (a_file - 1) * first["size_bytes"]
    lower, upper = (to_bytes(LongType(), it) for it in (base_offset, base_offset + end))
    names = [field.name for field in DATA_FILE_TYPE[2].fields]
    file = DataFile(*(template[at] for at in range(len(template))))
    file[names.index("file_path")] = location
    file[names.index("lower_bounds")] = {**template.lower_bounds, field_id: lower}
    file[names.index("upper_bounds")] = {**template.upper_bounds, field_id: upper}
    file[names.index("record_count")] = template.record_count * a_file
    file.spec_id = template.spec_id
    return file


def _manifest_sizes(table: Table, commits: int) -> list[int]:
    """How many entries each manifest has after so many commits of one file, newest first: PyIceberg's own
    packing, over sizes in place of manifests."""
    target = property_as_int(table.properties, _MANIFEST_TARGET, 8 << 20)
    least = property_as_int(table.properties, _MANIFEST_COUNT, 100)
    packer = ListPacker[tuple[int, int]](target_weight=target or 0, lookback=1, largest_bin_first=False)
    manifests: list[tuple[int, int]] = []
    for number in range(commits):
        newest = (number, 1)
        bins = packer.pack_end(
            [newest, *manifests], lambda it: _ONE_MANIFEST_BYTES + (it[1] - 1) * _ENTRY_BYTES
        )
        manifests = []
        for items in bins:
            if len(items) == 1 or (newest in items and len(items) < least):
                manifests += items
            else:
                manifests.append((number, sum(count for _, count in items)))
    return [count for _, count in manifests]


def _receipt_files(rows: int) -> Iterator[tuple[int, int]]:
    """First row and number of rows of each file of receipts after so many commits of one."""
    full: list[int] = []
    sizes: list[int] = []
    for _ in range(rows):
        merged = small_tables.files_to_merge(sizes)
        size = 1 + sum(sizes[at] for at in merged)
        sizes = [size for at, size in enumerate(sizes) if at not in merged]
        # No commit looks at a full one again.
        (full if size >= small_tables.FULL_FILE_ROWS else sizes).append(size)
    first = 0
    for size in sorted([*full, *sizes], reverse=True):
        yield first, size
        first += size


def _write(
    lake: Lake, table: Table, files: Sequence[DataFile], sizes: Sequence[int], snapshots: int | None = None
) -> None:
    """Replace what the catalog knows of a table by one that has had a commit for each file."""
    count = snapshots or len(files)
    metadata = table.metadata
    ids = [metadata.new_snapshot_id() for _ in range(count)]
    manifests = _write_manifests(table, files, sizes, ids)
    location = table.location_provider().new_metadata_location(f"snap-{ids[-1]}-0-{uuid.uuid4()}.avro")
    with write_manifest_list(2, table.io.new_output(location), ids[-1], None, count, "gzip") as writer:
        writer.add_manifests(manifests)
    now_ms = time.time_ns() // 1_000_000
    first_ms = now_ms - count * COMMIT_EVERY_MS
    current = table.current_snapshot()
    assert current is not None
    entries = []
    for number, snapshot_id in enumerate(ids):
        entries.append(
            Snapshot(
                snapshot_id=snapshot_id,
                parent_snapshot_id=ids[number - 1] if number else None,
                sequence_number=number + 1,
                timestamp_ms=first_ms + number * COMMIT_EVERY_MS,
                manifest_list=location.replace(str(ids[-1]), str(snapshot_id)),
                summary=current.summary,
                schema_id=current.schema_id,
            )
        )
    folder = table.metadata_location.rpartition("/")[0]
    kept = property_as_int(table.properties, "write.metadata.previous-versions-max", 100)
    assert kept is not None
    files_before = [f"{folder}/{number:05d}-{uuid.uuid4()}.metadata.json" for number in range(count + 1)]
    # What the mark below the table names has to be among what came before.
    files_before[metadata_version(table.metadata_location)] = table.metadata_location
    log = [MetadataLogEntry(metadata_file=file, timestamp_ms=now_ms) for file in files_before[-kept:]]
    written = metadata.model_copy(
        update={
            "snapshots": entries,
            "snapshot_log": [
                SnapshotLogEntry(snapshot_id=entry.snapshot_id, timestamp_ms=entry.timestamp_ms)
                for entry in entries
            ],
            "metadata_log": log,
            "refs": {"main": SnapshotRef(snapshot_id=ids[-1], snapshot_ref_type=SnapshotRefType.BRANCH)},
            "current_snapshot_id": ids[-1],
            "last_sequence_number": count,
            "last_updated_ms": now_ms,
        }
    )
    location = f"{folder}/{count + 1:05d}-{uuid.uuid4()}.metadata.json"
    ToOutputFile.table_metadata(written, table.io.new_output(location))
    with lake.catalog.engine.begin() as connection:
        connection.execute(
            update(IcebergTables)
            .where(IcebergTables.table_name == table.name()[-1])
            .values(metadata_location=location)
        )


def _write_manifests(
    table: Table, files: Sequence[DataFile], sizes: Sequence[int], ids: Sequence[int]
) -> list[ManifestFile]:
    """:param sizes: newest first."""
    manifests = []
    first = 0
    for count in reversed(sizes):
        last = first + count
        snapshot_id = ids[last - 1] if len(ids) == len(files) else ids[-1]
        name = f"{uuid.uuid4()}-m0.avro"
        output = table.io.new_output(table.location_provider().new_metadata_location(name))
        with write_manifest(2, table.spec(), table.schema(), output, snapshot_id, "gzip") as writer:
            for at in range(first, last):
                number = at + 1 if len(ids) == len(files) else 1
                writer.existing(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.EXISTING,
                        snapshot_id=snapshot_id,
                        sequence_number=number,
                        file_sequence_number=number,
                        data_file=files[at],
                    )
                )
        manifest = writer.to_manifest_file()
        manifest.sequence_number = last
        manifests.append(manifest)
        first = last
    return list(reversed(manifests))
