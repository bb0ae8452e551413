"""Segments whose bytes are not those that the lakes have under their offset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from storage_engine.brokers import has_companions
from storage_engine.journal.journal import StoreRecord
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.coverage.local_spans import companion_fault
from storage_engine.lake.file.jobs import file_name, slot_prefix, split_data_file_name
from storage_engine.lake.file.live_files import live_data_files
from storage_engine.lake.file.staging import sha256_of
from storage_engine.model.proof.companions import files_fault
from storage_engine.model.proof.receipt import Receipt, SegmentIdentity
from storage_engine.model.settings.policy import ArchiveMode
from storage_engine.model.store.store import LogSnapshot, Segment
from storage_engine.retention.proof.current_receipts import current_receipts
from storage_engine.retention.proof.gate import is_proven_file
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.same_bytes.own_acts import OwnActs, read_own_acts


def contradictions(
    store: ManagedStore, record: StoreRecord, logs: Iterable[LogSnapshot]
) -> Iterator[Segment]:
    """Yield segments of logs that differ from their receipt, or from a data file committed without one.

    A run that was killed between the commits of data and of receipts leaves such a file; archive refuses
    other bytes in its place as well.

    :raises LakeUnavailableError: a lake can't be read.
    """
    acts = read_own_acts(store.real_root)
    segments = {
        slot_prefix(SegmentIdentity(record.store_id, record.lineage_of(s.log), s.log, s.base_offset, "")): s
        for log in logs
        for s in log.segments
    }
    for config in store.lakes if store.policy.archive is not ArchiveMode.OFF else ():
        lake = open_lake(config)
        rows = {slot_prefix(row.identity): row for row in current_receipts(lake, record, with_ended=True)}
        for slot, segment in segments.items():
            if slot in rows and _contradicts(segment, rows[slot], acts):
                yield segment
        for slot, digits in _contents(lake, record.store_id):
            if (
                slot in segments
                and slot not in rows
                and not sha256_of(segments[slot].facts.path).startswith(digits)
            ):
                yield segments[slot]


def _contents(lake: Lake, store_id: str) -> set[tuple[str, str]]:
    """Slots of a store's live data files, with the first 16 digits of the SHA-256 that their names say."""
    files = live_data_files(lake.messages(), store_id)
    return {split_data_file_name(file_name(file.location)) for file in files}


def _contradicts(segment: Segment, row: Receipt, acts: OwnActs) -> bool:
    # Of a receipt whose companions can't be believed, archiving again makes another.
    if is_proven_file(segment, row, acts) or files_fault(row.files):
        return False
    proven = {one.name: one for one in row.companions}
    there = {path.name: path for path in (Path(file.path) for file in segment.companions)}
    return (
        (sha256_of(segment.facts.path), segment.end_offset) != (row.sha256, row.end)
        or not has_companions(row.broker, proven, there)
        or any(companion_fault(row.broker, proven[name], path) for name, path in there.items())
    )
