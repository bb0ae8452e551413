"""Writing a table's metadata for another place: the one writer that relocate, copy and rebuild share.

The current snapshot's manifests are written again with the files' names at the new place. Then one manifest
list and one metadata file are written. Data files stay as they are, byte for byte; older snapshots are
dropped. The written files count only once a catalog's row names them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestFile, write_manifest, write_manifest_list
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import MetadataLogEntry, Operation, Snapshot, SnapshotLogEntry

from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.catalog.identity import LAKE_ID_PROPERTY, metadata_version
from storage_engine.lake.catalog.placed_table import FORMER_LOCATIONS_PROPERTY, PlacedTable, live_manifests
from storage_engine.lake.catalog.tables import SCHEMA_VERSION_PROPERTY, version_to_write
from storage_engine.lake.storage.errors import lake_errors

_FORMAT_VERSION: Literal[2] = 2
_COMPRESSION: Any = "gzip"


@dataclass(frozen=True, slots=True)
class Target:
    """The place that a table's metadata is written for.

    :param location: location of the table there, without a final slash.
    :param attempt: a UUID that is part of the name of every written file.
    :param after: names of the earlier metadata files there, the newest last.
    :param table_uuid: UUID of the table there; None if the table keeps its UUID.
    """

    location: str
    io: FileIO
    attempt: str
    after: tuple[str, ...] = ()
    table_uuid: UUID | None = None


def write_table(
    source: PlacedTable,
    target: Target,
    properties: Mapping[str, str | None],
    keep: Callable[[DataFile], bool] = lambda _file: True,
) -> PlacedTable:
    """Write a table's current state for another place. Nothing refers to it yet.

    :param properties: table properties to set; those with None are removed.
    :param keep: returns whether the table has a data file at the new place.
    :raises LakeUnavailableError: the table can't be read or written, or has another format version.
    """
    metadata = source.metadata
    if metadata.format_version != _FORMAT_VERSION:
        raise LakeUnavailableError(
            f"{source.metadata_location}: expected a table of Iceberg format version {_FORMAT_VERSION}, "
            f"found {metadata.format_version}. Nothing was changed. Use a later release of storage-engine."
        )
    with lake_errors(target.location, "write a table's metadata"):
        snapshot = _write_snapshot(source, target, keep)
        now_ms = max(time.time_ns() // 1_000_000, metadata.last_updated_ms)
        version = 1 + max((metadata_version(name) for name in target.after), default=-1)
        log = [
            MetadataLogEntry.model_validate(
                {"metadata-file": f"{target.location}/metadata/{name}", "timestamp-ms": now_ms}
            )
            for name in target.after
        ]
        new = metadata.model_copy(
            update={
                "location": target.location,
                "table_uuid": target.table_uuid or metadata.table_uuid,
                "last_updated_ms": now_ms,
                "properties": _properties(source, target, properties),
                "metadata_log": log,
                "statistics": [],
                "partition_statistics": [],
                **_with_snapshot(snapshot),
            }
        )
        name = f"{version:05d}-{target.attempt}.metadata.json"
        ToOutputFile.table_metadata(new, target.io.new_output(f"{target.location}/metadata/{name}"))
    return PlacedTable(source.name, new, name, target.location, target.io)


def _with_snapshot(snapshot: Snapshot | None) -> dict[str, Any]:
    if snapshot is None:
        return {"snapshots": [], "snapshot_log": [], "current_snapshot_id": None, "refs": {}}
    reference = SnapshotRef.model_validate(
        {"snapshot-id": snapshot.snapshot_id, "type": SnapshotRefType.BRANCH}
    )
    entry = SnapshotLogEntry.model_validate(
        {"snapshot-id": snapshot.snapshot_id, "timestamp-ms": snapshot.timestamp_ms}
    )
    return {
        "snapshots": [snapshot],
        "snapshot_log": [entry],
        "current_snapshot_id": snapshot.snapshot_id,
        "refs": {MAIN_BRANCH: reference},
        "last_sequence_number": snapshot.sequence_number,
    }


def _properties(source: PlacedTable, target: Target, properties: Mapping[str, str | None]) -> dict[str, str]:
    former = [
        place
        for place in dict.fromkeys((*source.former_locations, source.location))
        if place != target.location
    ]
    added = {FORMER_LOCATIONS_PROPERTY: json.dumps(former) if former else None, **properties}
    if LAKE_ID_PROPERTY in properties:
        # A lake that gets a UUID is of version 2 or later.
        added[SCHEMA_VERSION_PROPERTY] = version_to_write(source.metadata.properties)
    return {key: value for key, value in {**source.metadata.properties, **added}.items() if value is not None}


def _write_snapshot(source: PlacedTable, target: Target, keep: Callable[[DataFile], bool]) -> Snapshot | None:
    metadata = source.metadata
    current = metadata.snapshot_by_id(metadata.current_snapshot_id or -1)
    if current is None:
        return None
    snapshot_id = metadata.new_snapshot_id()
    written: list[ManifestFile] = []
    kept: list[DataFile] = []
    for spec_id, entries in live_manifests(source):
        chosen = [entry for entry in entries if keep(entry.data_file)]
        if not chosen:
            continue
        output = target.io.new_output(f"{target.location}/metadata/{target.attempt}-m{len(written)}.avro")
        spec = metadata.specs()[spec_id]
        with write_manifest(
            _FORMAT_VERSION, spec, metadata.schema(), output, snapshot_id, _COMPRESSION
        ) as manifest:
            for entry in chosen:
                location = source.here(entry.data_file.file_path)
                inside = location.removeprefix(f"{source.location}/")
                # The second field is the path. Files outside of the table stay where they are.
                entry.data_file[1] = location if inside == location else f"{target.location}/{inside}"
                manifest.existing(entry)
                kept.append(entry.data_file)
        written.append(manifest.to_manifest_file())
    sequence_number = metadata.next_sequence_number()
    manifest_list = f"{target.location}/metadata/snap-{snapshot_id}-0-{target.attempt}.avro"
    with write_manifest_list(
        _FORMAT_VERSION, target.io.new_output(manifest_list), snapshot_id, None, sequence_number, _COMPRESSION
    ) as listed:
        listed.add_manifests(written)
    return Snapshot.model_validate(
        {
            "snapshot-id": snapshot_id,
            "sequence-number": sequence_number,
            "timestamp-ms": max(time.time_ns() // 1_000_000, current.timestamp_ms),
            "manifest-list": manifest_list,
            "summary": {"operation": Operation.REPLACE, **_totals(kept)},
            "schema-id": metadata.current_schema_id,
        }
    )


def _totals(files: Collection[DataFile]) -> dict[str, str]:
    return {
        "total-data-files": str(len(files)),
        "total-files-size": str(sum(file.file_size_in_bytes for file in files)),
        "total-records": str(sum(file.record_count for file in files)),
        "total-delete-files": "0",
        "total-equality-deletes": "0",
        "total-position-deletes": "0",
    }
