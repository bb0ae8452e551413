"""Replicas of a pair: the name of their common log, and the equal bytes at the same offsets.

A master and its slaves have equal segments, and so has who is promoted, up to where it was behind. Names
alone prove nothing: brokers of several clusters may share them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.store import NAMED, Segment, SegmentContext, SegmentId
from storage_engine.rocketmq.codec.commitlog import last_message
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.format.mapped_files import is_offset, list_raw_files, mapped
from storage_engine.rocketmq.format.stored_files import open_stored
from storage_engine.rocketmq.hold.state import CLUSTER, NAME

_BEFORE, _LAST = "message_before", "last_message"
"""In a receipt's evidence: SHA-256 of the last message of the segment before, and of the segment itself."""
_CHUNK_BYTES = 1 << 20


def contexts_of(
    config: BrokerConfig, layout: StoreLayout, segments: Sequence[Segment]
) -> Mapping[SegmentId, SegmentContext]:
    """Return the facts that a broker's replicas share with it; empty where its name or cluster is unknown.

    :raises OSError: a file can't be read.
    """
    names = [config.raw.get(key, "").strip() for key in (CLUSTER, NAME)]
    if not all(names):
        return {}
    files = [(path, size) for path, size in list_raw_files(layout.log_paths) if is_offset(path.name)]
    by_end = {int(path.name) + size_bytes: path for path, size_bytes in files}
    contexts = {}
    for segment in segments:
        evidence = {_LAST: _last_message_sha256(Path(segment.facts.path))}
        if before := by_end.get(segment.base_offset):
            with suppress(FileNotFoundError):
                evidence[_BEFORE] = _last_message_sha256(before)
        contexts[segment.id] = SegmentContext(NAMED + "/".join(names), evidence)
    return contexts


def _last_message_sha256(path: Path) -> str:
    """Return the SHA-256 of a segment's last message; "": none is found near its end."""
    with mapped(path) as data:
        message = last_message(data, int(path.name))
    return hashlib.sha256(message).hexdigest() if message else ""


def range_sha256(segments: Sequence[Segment], first: int, end: int) -> str | None:
    """Return the SHA-256 of a log's bytes [first, end); None: its files don't have them all.

    :param segments: oldest first.
    :raises OSError: a file can't be read.
    """
    inside = [one for one in segments if one.base_offset < end and one.end_offset > first]
    digest, reached = hashlib.sha256(), first
    for segment in inside:
        if segment.base_offset > reached:
            return None
        with open_stored(segment.facts.path) as file:
            file.seek(reached - segment.base_offset)
            left = min(end, segment.end_offset) - reached
            while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
                digest.update(chunk)
                left -= len(chunk)
                reached += len(chunk)
    return digest.hexdigest() if reached == end else None


def continues(left: Receipt, right: Receipt) -> bool:
    """Return whether a segment was written behind the very segment that another replica archived.

    Each message bears its offsets and its store time, so that equal last messages mean equal logs before.
    """
    before = right.known.get(_BEFORE)
    same_log = left.log_id is not None and left.log_id == right.log_id
    return same_log and bool(before) and left.known.get(_LAST) == before
