"""The proof that a segment is in the lake."""

from __future__ import annotations

from dataclasses import dataclass

PROOF_VERSION = 1
"""Raised when what "proven" means changes; a receipt with a higher one is not trusted by older code."""


@dataclass(frozen=True, slots=True)
class SegmentIdentity:
    """A segment is these five; the same again is done already, other bytes under it are a conflict."""

    store_id: str
    lineage: int
    log: str
    base_offset: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """One row of the lake's ``segments`` table.

    ``source_*`` are the file's facts when it was proven. ``previous_hash`` is the ``row_hash`` of
    the store's previous row (64 zeros for the first): the chain shows tampering. Timestamps in
    milliseconds since the epoch; first/last store timestamps are None when the segment has no message.
    """

    store_id: str
    lineage: int
    log: str
    base_offset: int
    size_bytes: int
    sha256: str
    broker: str
    store_root: str
    message_count: int
    row_count: int
    damaged_bytes: int
    first_store_timestamp_ms: int | None
    last_store_timestamp_ms: int | None
    source_path: str
    source_device: int
    source_inode: int
    source_mtime_ns: int
    source_ctime_ns: int
    data_file: str
    data_file_bytes: int
    data_file_sha256: str
    proof_version: int
    proven_at_ms: int
    previous_hash: str
    row_hash: str

    @property
    def identity(self) -> SegmentIdentity:
        return SegmentIdentity(self.store_id, self.lineage, self.log, self.base_offset, self.sha256)

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.size_bytes
