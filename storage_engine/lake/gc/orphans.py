"""Orphans: data files that no receipt in force names. They are found, and proven without a receipt.

A data file's path has the store, lineage, log, offset and first digits of the segment's SHA-256. The file is
the segment only if the SHA-256 of its encoded rows begins with these digits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.brokers import find_broker
from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import ProofError
from storage_engine.lake.catalog.catalog import broker_in
from storage_engine.lake.catalog.placed_table import PlacedTable, live_files
from storage_engine.lake.catalog.tables import IDENTITY_COLUMNS
from storage_engine.lake.durable_io import sha256_of_file
from storage_engine.lake.file.data_file import (
    RowCounter,
    SegmentPart,
    SegmentRows,
    copy_rows,
    opened_file,
    segment_bytes,
    segments_in,
)
from storage_engine.lake.file.jobs import (
    ProvenSegment,
    data_file_name,
    is_shared_name,
    new_attempt,
    slot_prefix,
    split_data_file_name,
)
from storage_engine.lake.file.segment_tree import tree_of_file
from storage_engine.lake.file.table_entries import packed_facts
from storage_engine.lake.soundness.receipts import by_store, current, is_relative
from storage_engine.lake.storage.small_files import list_files
from storage_engine.model.broker.codec import offsets_count_bytes
from storage_engine.model.proof.receipt import Receipt, SegmentIdentity, proof_version_of, row_groups_text

_PARTITION = "store_id="


@dataclass(frozen=True, slots=True)
class Orphan:
    """A segment in a data file that no receipt in force names.

    :param slot: the result of :func:`~storage_engine.lake.file.jobs.slot_prefix` for the segment.
    :param digest: first 16 digits of the segment's SHA-256 in the file's name; "" for a shared file.
    :param part: in a shared file, the segment and its row groups.
    """

    location: str
    store_id: str
    slot: str
    digest: str
    part: tuple[SegmentIdentity, range] | None = None


@dataclass(frozen=True, slots=True)
class Orphans:
    """Orphans of a lake.

    :param found: segments without a sound receipt. Expired segments aren't among them.
    :param conflicting: data files of segments with other bytes than a counting receipt for the same offset.
    :param foreign: data files with another program's names that the table doesn't have.
    """

    found: tuple[Orphan, ...]
    conflicting: tuple[str, ...]
    foreign: tuple[str, ...]


def find_orphans(messages: PlacedTable, rows: Iterable[Receipt]) -> Orphans:
    """Compare the data files below the table of rows with those that receipts name.

    :param messages: the table of rows, in the state that counts.
    :param rows: all receipts of that state.
    :raises LakeUnavailableError: the files can't be listed, or the manifests can't be read.
    """
    live = live_files(messages)
    listed = list_files(messages.io, f"{messages.location}/data")
    present = {f"{messages.location}/data/{file.inside}" for file in listed}
    live_names = {split_data_file_name(location.rpartition("/")[2]) for location in live}
    counting: dict[tuple[str, str], str] = {}
    named: dict[str, int] = {}
    for store, of_store in by_store(rows).items():
        for row in current(of_store):
            files = {_present_location(messages, file.location) for file in row.proven_files}
            row_name = slot_prefix(row.identity), row.sha256[:16]
            # Between the two commits of an expiry of some streams, the table still has the old file.
            is_replaced = not row.is_whole and row_name in live_names
            if not row.has_rows or is_replaced or (files <= live.keys() and files <= present):
                counting[store, row_name[0]] = row_name[1]
                if row.row_groups is not None and row.moved_to is None:
                    (at,) = files
                    named[at] = named.get(at, 0) + row.row_count
    orphans: list[Orphan] = []
    conflicting, foreign = [], []
    for file in listed:
        folder, _, name = file.inside.rpartition("/")
        location = f"{messages.location}/data/{file.inside}"
        slot, digest = split_data_file_name(name)
        if is_shared_name(name) and folder.startswith(_PARTITION):
            if location not in live or live[location].record_count != named.get(location):
                try:
                    orphans += _find_shared(messages, location, folder.removeprefix(_PARTITION), counting)
                except ProofError:
                    # Its segments can't be read. ``verify`` reports those that have receipts.
                    foreign.append(location)
            continue
        if not slot:
            if name.endswith(".parquet") and location not in live:
                foreign.append(location)
            continue
        store = folder.removeprefix(_PARTITION)
        proven = counting.get((store, slot))
        if proven is None:
            orphans.append(Orphan(location, store, slot, digest))
        elif proven != digest:
            conflicting.append(location)
    # Of several files of one segment, the file that the table has comes first.
    orphans.sort(key=lambda o: (o.store_id, o.slot, o.digest, o.location not in live, o.location))
    return Orphans(tuple(orphans), tuple(sorted(conflicting)), tuple(sorted(foreign)))


def _find_shared(
    messages: PlacedTable, location: str, store: str, counting: Mapping[tuple[str, str], str]
) -> Iterator[Orphan]:
    """Yield the segments in a shared file that no sound receipt proves."""
    for identity, groups in segments_in(messages.io, location).items():
        slot = slot_prefix(identity)
        if identity.store_id == store and (store, slot) not in counting:
            yield Orphan(location, store, slot, "", (identity, groups))


def _present_location(messages: PlacedTable, name: str) -> str:
    inside = name if is_relative(name) else messages.inside(name)
    return name if inside is None else f"{messages.location}/{inside}"


def prove_orphan(
    messages: PlacedTable,
    orphan: Orphan,
    earlier: Mapping[SegmentIdentity, Receipt],
    *,
    trees: bool,
    beside: ProvenSegment | None = None,
) -> ProvenSegment:
    """Prove that a file is the segment in its name, or that a shared file has the expected segment.

    :param earlier: receipts that don't count, of any state. They describe the broker's files.
    :param beside: another segment that was just proven in the same file, which then isn't hashed again.
    :raises ProofError: the file isn't the segment, or the segment's end is known only by a receipt.
    :raises LakeUnavailableError: the file can't be read.
    """
    broker = broker_in(messages.metadata.properties)
    codec = find_broker(broker).codec
    counter, digest = RowCounter(codec.columns), hashlib.sha256()
    with opened_file(messages.io, orphan.location) as (stored, parquet):
        rows: SegmentRows = parquet
        if orphan.part is not None:
            rows = SegmentPart(parquet, *orphan.part, orphan.location)
        lineage, log, base_offset, end = _read_identity(orphan, rows)
        origin = codec.origin(base_offset)
        size_bytes = end - origin
        leaves = tree_of_file(parquet, codec.columns, orphan.location, trees=trees)
        for _, chunk in segment_bytes(rows, codec, origin, size_bytes, orphan.location, counter, tree=leaves):
            digest.update(chunk)
        identity = SegmentIdentity(orphan.store_id, lineage, log, base_offset, digest.hexdigest())
        if slot_prefix(identity) != orphan.slot or not identity.sha256.startswith(orphan.digest):
            raise ProofError(
                f"{orphan.location}: expected rows of the segment in its name, found those of "
                f"{slot_prefix(identity)}{identity.sha256[:16]}. Nothing was committed; the file is left "
                "alone."
            )
        tree = None if leaves is None else leaves.tree(base_offset, size_bytes, identity.sha256)
        facts = packed_facts(parquet.metadata, codec) if beside is None else beside.manifest_facts
        stored_sha256 = sha256_of_file(stored) if beside is None else beside.data_file_sha256
        stored_bytes = stored.size()
    receipt = earlier.get(identity)
    if receipt is None and not offsets_count_bytes(codec):
        raise ProofError(
            f"{orphan.location}: expected a receipt with the end of its segment in some state of the lake, "
            "because its broker's offsets don't count bytes; found none. Nothing was committed; the file is "
            "left alone. Archive the segment again while it is on the broker's disk."
        )
    return ProvenSegment(
        store_id=orphan.store_id,
        lineage=lineage,
        log=log,
        base_offset=base_offset,
        size_bytes=size_bytes,
        sha256=identity.sha256,
        broker=broker,
        store_root=receipt.store_root if receipt else "",
        **asdict(counter.stats()),
        # Without a receipt, the broker's file isn't known, and a release hashes the file that it finds.
        source_path=receipt.source_path if receipt else "",
        source_device=receipt.source_device if receipt else 0,
        source_inode=receipt.source_inode if receipt else 0,
        source_mtime_ns=receipt.source_mtime_ns if receipt else 0,
        source_ctime_ns=receipt.source_ctime_ns if receipt else 0,
        data_file=orphan.location,
        data_file_bytes=stored_bytes,
        data_file_sha256=stored_sha256,
        proof_version=proof_version_of(None if tree is None else tree.root),
        proven_at_ms=clock_ms(),
        staged_file=orphan.location,
        manifest_facts=facts,
        store_name=receipt.store_name if receipt else None,
        store_host=receipt.store_host if receipt else None,
        log_id=receipt.log_id if receipt else None,
        evidence=receipt.evidence if receipt else None,
        end_offset=receipt.end_offset if receipt else None,
        files=receipt.files if receipt else None,
        root=None if tree is None else tree.root,
        streams=None if tree is None else tree.streams,
        row_groups=None if orphan.part is None else row_groups_text(orphan.part[1]),
    )


def take_out_orphan(messages: PlacedTable, orphan: Orphan, proven: ProvenSegment) -> Orphan:
    """Copy a segment of a shared file into a file of its own. It isn't proven yet, and nothing refers to it.

    :raises LakeUnavailableError: the lake can't be read or written.
    """
    assert orphan.part is not None
    part, old = orphan.part, orphan.location
    location = f"{old.rpartition('/')[0]}/{data_file_name(proven.identity, new_attempt())}"
    columns = find_broker(proven.broker).codec.columns
    copy_rows(messages.io, old, location, columns, lambda parquet: SegmentPart(parquet, *part, old))
    return Orphan(location, orphan.store_id, orphan.slot, proven.sha256[:16])


def _read_identity(orphan: Orphan, parquet: SegmentRows) -> tuple[int, str, int, int]:
    """Return lineage, log, base offset and end by the rows. Raise ProofError for several segments."""
    columns = [*IDENTITY_COLUMNS.names, "physical_offset", "size"]
    rows = parquet.read_row_groups(list(range(parquet.num_row_groups)), columns=columns)
    values: list[list[Any]] = [pc.unique(rows[name]).to_pylist() for name in IDENTITY_COLUMNS.names]
    if any(len(column) != 1 for column in values) or values[0] != [orphan.store_id]:
        raise ProofError(
            f"{orphan.location}: expected rows of one segment of store {orphan.store_id}, found {values}. "
            "Nothing was committed; the file is left alone."
        )
    (_, (lineage,), (log,), (base_offset,)) = values
    ends = pc.add(rows["physical_offset"], rows["size"].cast(pa.int64()))
    end: Any = pc.max(ends).as_py()
    return int(lineage), str(log), int(base_offset), int(end)
