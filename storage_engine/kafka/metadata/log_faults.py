"""Faults in a log's files. Nothing may be decided from files with a fault. Only reads files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from storage_engine.exceptions import CorruptFileError
from storage_engine.kafka.format.batch_headers import LEADER_EPOCH_AT, MAGIC, MAGIC_AT, opened
from storage_engine.kafka.format.checkpoints import LEADER_EPOCHS, read_leader_epochs
from storage_engine.kafka.format.file_names import FileState, kind_and_state
from storage_engine.kafka.format.layout import LogDirectory, PartitionLog, SegmentFiles
from storage_engine.kafka.format.log_end import segment_end
from storage_engine.kafka.format.partition_metadata import NAME, has_topic_id, read_topic_id, text_of
from storage_engine.kafka.metadata.topic_settings import TopicSettings
from storage_engine.model.report.diagnosis import reason_of


def link_fault(log: PartitionLog) -> str:
    """Return the fault of a symbolic link among the files that the broker uses; "" if there is none.

    A broker follows a link, but we don't: we would miss the files behind it.
    """
    for link in log.links:
        parsed = kind_and_state(Path(link).name)
        if parsed is not None and parsed[1] is not FileState.DELETED:
            return (
                f"{link}: expected a file of the node itself, found a symbolic link to "
                f"{Path(link).readlink()}; replace the link with its target"
            )
    return ""


def topic_fault(log: PartitionLog, topics: TopicSettings) -> str:
    """Return why a log doesn't belong to the present topic of its name; "" if it may belong to it."""
    topic_id = topics.metadata.topic_ids.get(log.name.topic)
    if topic_id is None:
        return ""
    path = f"{log.directory}/{NAME}"
    try:
        if has_topic_id(path, topic_id):
            return ""
        own_id = read_topic_id(path)
    except FileNotFoundError:
        return f"{path}: expected the topic's id, found no file; a broker would set the log aside"
    except CorruptFileError as error:
        return reason_of(error)
    except OSError as error:
        return f"{path}: expected the topic's id, found {error.strerror}"
    if own_id == topic_id:
        return ""
    return f"{path} has topic id {text_of(own_id)}, and the cluster's metadata have {text_of(topic_id)}"


def start_fault(directory: LogDirectory, log: PartitionLog, end: int) -> str:
    """Return the fault of a log's start in the checkpoint; "" if there is none."""
    start = directory.log_starts.get(log.name.log)
    if start is None or start <= end:
        return ""
    return (
        f"{log.path}: its start {start} in the checkpoint lies above its end {end}; a broker would delete "
        "all of its segments"
    )


def epochs_fault(directory: LogDirectory, log: PartitionLog, end: int) -> str:
    """Return the fault of a log's ``leader-epoch-checkpoint``; "" if there is none.

    A broker writes an epoch before the epoch's first record. So the newest epoch may begin at the log's end.
    If the broker stopped cleanly, no epoch begins above the end (LogLoader#load cuts such epochs off).

    :raises OSError: a file can't be read.
    """
    path = f"{log.directory}/{LEADER_EPOCHS}"
    try:
        epochs = read_leader_epochs(path)
    except FileNotFoundError:
        return f"{path}: expected the epochs of its leaders, found no file" if _names_leader(log) else ""
    except CorruptFileError as error:
        return reason_of(error)
    if not epochs:
        return (
            f"{path}: expected the epochs of its leaders, found an empty file" if _names_leader(log) else ""
        )
    if directory.stopped_cleanly and (above := epochs[-1].start_offset) > end:
        return (
            f"{path}: expected epochs that begin up to the log's end {end}, found one that begins at {above}"
        )
    return ""


def _names_leader(log: PartitionLog) -> bool:
    """Return whether a log's first batch contains its leader's epoch. Older formats don't contain it."""
    if not log.segments:
        return False
    with opened(log.segments[0].log.path) as descriptor:
        head = os.pread(descriptor, MAGIC_AT + 1, 0)
    if len(head) <= MAGIC_AT or head[MAGIC_AT] != MAGIC:
        return False
    return int.from_bytes(head[LEADER_EPOCH_AT : LEADER_EPOCH_AT + 4], "big", signed=True) >= 0


def find_emptied(directory: LogDirectory, log: PartitionLog) -> Iterator[str]:
    """Yield a fault for each closed segment that is empty though no cleaner has removed its records."""
    cleaned_to = directory.cleaned_offset(log.name.log)
    for segment, following in pairwise(log.segments):
        if not segment.log.size_bytes and following.base_offset > cleaned_to:
            yield (
                f"{segment.log.path}: expected the records of offsets [{segment.base_offset}, "
                f"{following.base_offset}), found an empty file"
            )


def own_ends(directory: LogDirectory, log: PartitionLog, bases: Collection[int]) -> dict[int, int]:
    """Return the end offsets of segments that end before the next segment begins, by base offset.

    Gaps that the cleaner leaves don't count.

    :param bases: base offsets of the segments to look at.
    :raises OSError: a segment can't be read.
    """
    ends = {}
    for segment, following in pairwise(log.segments):
        if segment.base_offset in bases:
            end = segment_end(segment)
            if end < following.base_offset and not _is_whole(directory, log, end, following):
                ends[segment.base_offset] = end
    return ends


def _is_whole(directory: LogDirectory, log: PartitionLog, end: int, following: SegmentFiles) -> bool:
    """Return whether a segment ends at the next segment's base offset, or only the cleaner left a gap."""
    cleaned_to = directory.cleaned_offset(log.name.log)
    return end == following.base_offset or end < following.base_offset <= cleaned_to


def holes(directory: LogDirectory, log: PartitionLog, segments: Sequence[SegmentFiles]) -> Iterator[str]:
    """Yield a fault for each segment that doesn't end at the next segment's base offset.

    Gaps that the cleaner leaves are no faults.

    :param segments: consecutive segments of the log, oldest first.
    :raises OSError: a segment can't be read.
    """
    for segment, following in pairwise(segments):
        end = segment_end(segment)
        if _is_whole(directory, log, end, following):
            continue
        fault = "is missing" if end < following.base_offset else "is there twice"
        first, last = sorted((end, following.base_offset))
        yield (
            f"{segment.log.path} ends at offset {end}, and the next segment begins at "
            f"{following.base_offset}: [{first}, {last}) {fault}"
        )
