"""The comments of the lake's columns, which other engines show beside them.

Those of a broker's own columns its codec has (``Columns.comments``).
"""

from __future__ import annotations

from collections.abc import Mapping

_MS = "in milliseconds since the epoch"

IDENTITY_COMMENTS: Mapping[str, str] = {
    "store_id": "UUID of the store, for ever",
    "lineage": "counts how often other bytes came under the same offsets of the log",
    "log": "name of the log within its store",
    "segment_base_offset": "first offset of the segment that the row is of",
}

SEGMENTS_COMMENTS: Mapping[str, str] = {
    "store_id": IDENTITY_COMMENTS["store_id"],
    "lineage": IDENTITY_COMMENTS["lineage"],
    "log": IDENTITY_COMMENTS["log"],
    "base_offset": "first offset of the segment",
    "size_bytes": "length of the segment's file",
    "sha256": "SHA-256 of the segment's file, in hex",
    "broker": "kind of broker that wrote the segment",
    "store_root": "directory of the store when the segment was proven",
    "message_count": "messages in the segment",
    "row_count": "rows of the segment in the table of rows",
    "damaged_bytes": "bytes of the segment that could not be read as messages",
    "first_store_timestamp_ms": f"when its first message was stored, {_MS}; null: it has none",
    "last_store_timestamp_ms": f"when its last message was stored, {_MS}; null: it has none",
    "source_path": "file that the segment was archived from",
    "source_device": "device of that file",
    "source_inode": "inode of that file",
    "source_mtime_ns": "when that file was written last, in nanoseconds since the epoch",
    "source_ctime_ns": "when that file's inode was changed last, in nanoseconds since the epoch",
    "data_file": "data file with the segment's rows, relative to the table of rows",
    "data_file_bytes": "length of the data file",
    "data_file_sha256": "SHA-256 of the data file, in hex",
    "proof_version": "version of what proven means",
    "proven_at_ms": f"when every byte was read back from the lake, {_MS}",
    "moved_to": "JSON list of the files that have the rows since another engine moved them; null: data_file",
    "sequence": "number of the receipt among those of its store; of one segment the last counts",
    "previous_hash": "row_hash of the receipt before it",
    "row_hash": "SHA-256 of all other fields that have a value, as canonical JSON, in hex",
    "end_offset": "offset behind the segment's last; null: base_offset + size_bytes",
    "files": "JSON list of the segment's further files; null: it is one file",
    "store_name": "what people called the store then",
    "store_host": "machine on which the store lay then",
    "log_id": "the broker's own identity of the log; null: its name is all",
    "digest": "the broker's digest of the segment's content; null: sha256 is",
    "evidence": "JSON object of what else is known of the proof, and of the last deletion before it",
}

DELETIONS_COMMENTS: Mapping[str, str] = {
    "store_id": IDENTITY_COMMENTS["store_id"],
    "lineage": IDENTITY_COMMENTS["lineage"],
    "log": IDENTITY_COMMENTS["log"],
    "start_offset": "first offset of the range",
    "end_offset": "offset behind the range's last",
    "run": "key of the run in the journal",
    "run_begun_at_ms": f"when the run began, {_MS}",
    "what": "released: a run deleted it; gone: by another's doing; lost: a person accepted its loss",
    "cause": "why it went, in one word",
    "detail": "why it went, as a sentence; of several segments what was said of the first",
    "who": "who decided it: a person, or storage-engine by the store's policy",
    "at_ms": f"when the journal recorded that the last of it had gone, {_MS}",
    "event_id": "number of the last event of the run that events_sha256 covers",
    "events_sha256": "SHA-256 of the run's plan, intents, results and losses as canonical JSON, in hex",
    "store_name": "what people called the store when the row was written",
    "topic_id": "id of the topic that the log was of; null: not known, or the broker has none",
    "first_store_timestamp_ms": f"when its first message was stored, {_MS}; null: the lake has none of it",
    "last_store_timestamp_ms": f"when its last message was stored, {_MS}; null: the lake has none of it",
}
