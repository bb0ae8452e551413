"""Facts about a node's logs for validation. Only reads files, and judges nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from storage_engine.core.long_work import report_each
from storage_engine.kafka.format.batch_headers import batch_heads, opened
from storage_engine.kafka.format.file_names import read_stored
from storage_engine.kafka.format.layout import LogDirectory, Node, PartitionLog, SegmentFiles, read_node
from storage_engine.kafka.format.log_end import LogEnd, known_end, segment_end
from storage_engine.kafka.metadata.topic_settings import read_topic_settings
from storage_engine.kafka.stopped.store_lock import runs
from storage_engine.kafka.store.absent_logs import ADVICE, missing_logs, missing_text
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.report.facts import (
    CheckpointFact,
    FactsScope,
    FrameFact,
    IndexFact,
    LocalSegment,
    SegmentFact,
    StoreFacts,
)

if TYPE_CHECKING:
    from storage_engine.kafka.codec.record_batch import Batches

_LONGEST_INDEX_BYTES = 1 << 30
_LOOKS, _PAUSE_SECONDS = 3, 0.5
_MISSING = "the log isn't on disk, and by its copy of the cluster's metadata this node has a replica of it"


@dataclass(slots=True)
class _Facts:
    local: list[LocalSegment] = field(default_factory=list)
    segments: list[SegmentFact] = field(default_factory=list)
    frames: list[FrameFact] = field(default_factory=list)
    indexes: list[IndexFact] = field(default_factory=list)
    checkpoint: list[CheckpointFact] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, more: _Facts) -> None:
        for item in fields(self):
            getattr(self, item.name).extend(getattr(more, item.name))


def collect(settings: StoreSettings, scope: FactsScope) -> StoreFacts:
    """Read the facts about all logs of a node, except Kafka's own logs.

    Offsets between a segment's last record and the next segment count as missing, unless the cleaner may have
    removed their records.

    :raises StoreNotFoundError: a directory is missing, or is no log directory of Kafka.
    :raises StoreLayoutError: a log lies in two directories, or directories are of two clusters.
    """
    node, facts = read_node(Path(settings.root)), _Facts()
    logs = [(directory, log) for directory, log in node.logs if not log.name.is_internal]
    if missing := missing_logs(node, read_topic_settings(node)):
        facts.notes.append(f"{missing_text(missing)}; {ADVICE}")
    facts.notes += [directory.fault for directory in node.directories if directory.fault]
    for directory, log in report_each(logs, "Reading logs", "logs"):
        try:
            _collect_log(directory, log, scope, facts)
        except FileNotFoundError as error:
            facts.notes.append(f"log {log.name.log} changed while it was read: {error.filename} is gone")
    names = {log.name.log for _, log in node.logs}
    return StoreFacts(
        local=tuple(facts.local),
        segments=tuple(facts.segments),
        frames=tuple(facts.frames),
        index_files=tuple(facts.indexes),
        checkpoint=tuple(facts.checkpoint),
        notes=tuple(facts.notes),
        cleaned_to={
            log: end
            for directory in node.directories
            for log, end in directory.cleaned_to.items()
            if log in names
        },
        missing=dict.fromkeys(_lasting_absences(node, missing), _MISSING),
        without_suites=frozenset({"store_dispatch", "store_queue_files", "store_queues"}),
    )


def _lasting_absences(node: Node, missing: tuple[str, ...]) -> tuple[str, ...]:
    """Return the logs that stay missing for a while. A running broker may be creating the others."""
    for _ in range(_LOOKS):
        if not missing or not runs(node):
            break
        time.sleep(_PAUSE_SECONDS)
        node = read_node(node.root)
        still = missing_logs(node, read_topic_settings(node))
        missing = tuple(log for log in missing if log in still)
    return missing


def _collect_log(directory: LogDirectory, log: PartitionLog, scope: FactsScope, facts: _Facts) -> None:
    end = known_end(directory, log)
    for files, following in zip_longest(log.segments, log.segments[1:]):
        try:
            facts.add(_segment_facts(directory, log, scope, files, following, end))
        except FileNotFoundError:
            raise
        except OSError as error:
            facts.add(_unread(log, files, following, end, error))
    if not end.unread:
        facts.checkpoint += _checkpoint_facts(directory, log.name.log, end.offset)


def _segment_facts(
    directory: LogDirectory,
    log: PartitionLog,
    scope: FactsScope,
    files: SegmentFiles,
    following: SegmentFiles | None,
    end: LogEnd,
) -> _Facts:
    """Return the facts about a segment: its end, its batches, its index, and damage.

    :param following: the next segment; None if this segment is active.
    :param end: the end of the log.
    :raises OSError: one of its files can't be read.
    """
    name, facts = log.name.log, _Facts()
    cleaned_to = directory.cleaned_offset(name)
    own_end = segment_end(files) if following is not None or end.unread else end.offset
    if following is not None and own_end < following.base_offset <= cleaned_to:
        own_end = following.base_offset
    batches: Batches | None = None
    if scope.full:
        # NumPy and the kernels, which a check of boundaries alone doesn't need.
        from storage_engine.kafka.codec.record_batch import read_batches

        batches = read_batches(read_stored(Path(files.log.path), 1 << 31))
    runs = [(files.base_offset, own_end)]
    if batches is not None and files.base_offset >= cleaned_to:
        runs = _runs(batches, files.base_offset, own_end)
    facts.local += [LocalSegment(name, first, behind, files.log, files.companions) for first, behind in runs]
    facts.segments.append(_segment_fact(log, files, own_end, cleaned=files.base_offset < cleaned_to))
    if batches is not None:
        accepted = scope.accepted_damage.get((name, files.base_offset), 0)
        facts.frames.append(_frame_fact(log, files, batches, accepted))
        facts.indexes += _index_facts(log, files, own_end)
    return facts


def _unread(
    log: PartitionLog, files: SegmentFiles, following: SegmentFiles | None, end: LogEnd, error: OSError
) -> _Facts:
    """Return the facts about an unreadable segment: only what its file's name and size tell."""
    name, first, size = log.name.log, files.base_offset, files.log.size_bytes
    behind = max(end.offset, first + 1) if following is None else following.base_offset
    reason = f"{error.strerror or error}: {error.filename or files.log.path}"
    return _Facts(
        local=[LocalSegment(name, first, behind, files.log, files.companions, reason)],
        segments=[
            SegmentFact(
                _subject(log, files.log.path), name, Path(files.log.path).stem, first, behind, -1, size, size
            )
        ],
    )


def _subject(log: PartitionLog, path: str) -> str:
    return f"{log.name.log}/{Path(path).name}"


def _segment_fact(log: PartitionLog, files: SegmentFiles, end: int, *, cleaned: bool) -> SegmentFact:
    with opened(files.log.path) as descriptor:
        first = next(batch_heads(descriptor, 0), None)
    size = files.log.size_bytes
    return SegmentFact(
        subject=_subject(log, files.log.path),
        log=log.name.log,
        name=Path(files.log.path).stem,
        base_offset=files.base_offset,
        end_offset=end,
        # The cleaner may have removed the records that a segment began with.
        first_frame_offset=-1 if first is None or cleaned else first.base_offset,
        expected_size_bytes=size,
        size_bytes=size,
    )


def _runs(batches: Batches, base_offset: int, end: int) -> list[tuple[int, int]]:
    """Return the offset ranges covered by a segment's batches. Offsets between these ranges are missing.

    If gaps in this segment are no losses, return its whole range.
    """
    import numpy as np

    firsts, behind = batches.base_offsets, batches.last_offsets + 1
    if not len(firsts) or not batches.gaps_are_losses:
        return [(base_offset, end)]
    cuts = np.flatnonzero(firsts[1:] > behind[:-1]) + 1
    starts = np.concatenate((firsts[:1], firsts[cuts])).tolist()
    return list(zip(starts, [*behind[cuts - 1].tolist(), end], strict=True))


def _frame_fact(log: PartitionLog, files: SegmentFiles, batches: Batches, accepted: int) -> FrameFact:
    damaged = sum(damage.size_bytes for damage in batches.damages)
    if accepted:
        # The accepted damage may be records that can't be decoded. Batch headers don't show such damage.
        from storage_engine.kafka.codec.codec import CODEC

        data = read_stored(Path(files.log.path), 1 << 31)
        rows = (
            rows.select(["kind", "size"]).to_pydict() for rows, _ in CODEC.decode(data, files.base_offset)
        )
        damaged = sum(
            size
            for columns in rows
            for kind, size in zip(columns["kind"], columns["size"], strict=True)
            if kind == "undecodable"
        )
    count = len(batches.positions) + batches.legacy
    return FrameFact(_subject(log, files.log.path), count, accepted, damaged)


def _index_facts(log: PartitionLog, files: SegmentFiles, end: int) -> Iterator[IndexFact]:
    """Yield the range of offsets that a segment's offset index covers."""
    if files.offset_index is None:
        return
    from storage_engine.kafka.format.offset_index import parse_offset_index

    path = files.offset_index
    offsets = parse_offset_index(
        read_stored(Path(path), _LONGEST_INDEX_BYTES), files.base_offset, path
    ).offsets.tolist()
    yield IndexFact(
        subject=_subject(log, path),
        log_min_offset=files.base_offset,
        log_max_offset=end,
        floor=files.base_offset,
        first_offset=offsets[0] if offsets else -1,
        last_offset=offsets[-1] if offsets else -1,
        left_over_files=0,
    )


def _checkpoint_facts(directory: LogDirectory, log: str, end: int) -> Iterator[CheckpointFact]:
    """Yield facts about a log's checkpoints. A broker deletes a log whose start is above the log's end."""
    for name, offsets in (("log start", directory.log_starts), ("high watermark", directory.high_watermarks)):
        if (value := offsets.get(log)) is not None:
            yield CheckpointFact(f"{log}: {name}", 0, value, end)
