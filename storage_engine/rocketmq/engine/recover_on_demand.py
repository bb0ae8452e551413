"""Recovery of a stopped broker's store on demand, its preview, and the rebuilding of queues."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from storage_engine.commands import Command
from storage_engine.core import durable
from storage_engine.exceptions import CorruptFrameError, StoreBusyError, StoreLayoutError
from storage_engine.model.report.inspection import StoreRecovery
from storage_engine.rocketmq.codec.commitlog import iterate_frames
from storage_engine.rocketmq.codec.frame_kernels import KIND_MESSAGE
from storage_engine.rocketmq.codec.frame_layout import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NOT
from storage_engine.rocketmq.engine.append.flush import StoreCheckpoint
from storage_engine.rocketmq.engine.append.mapped_file_queue import allow_open_files
from storage_engine.rocketmq.engine.dispatch import dispatch_kernels as dispatch
from storage_engine.rocketmq.engine.dispatch.index_writer import IndexWriter, find_unsure
from storage_engine.rocketmq.engine.dispatch.reput import Bytes, FrameReader, Rows
from storage_engine.rocketmq.engine.engine_settings import EngineSettings, settings_for
from storage_engine.rocketmq.engine.message_store import MessageStore
from storage_engine.rocketmq.engine.recovery import (
    LogPart,
    RecoveredEnd,
    find_end,
    first_part_after_crash,
    first_part_after_stop,
    first_to_index,
)
from storage_engine.rocketmq.format import batch_consume_queue
from storage_engine.rocketmq.format.batch_consume_queue import all_queues
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from storage_engine.rocketmq.format.layout import StoreLayout, resolve_layout
from storage_engine.rocketmq.format.mapped_files import list_raw_files, readable_files
from storage_engine.rocketmq.store import store_lock

_CHUNK_BYTES = 64 << 20

REBUILT = frozenset(
    {"consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "checkpoint", "lock", "abort"}
)
"""Files below a store's root that :func:`rebuild_queues` makes again, or leaves there if it is killed."""


def recover_store(
    config: BrokerConfig, *, dry_run: bool, cut_messages: bool, whole_index: bool = False
) -> StoreRecovery:
    """Recover a store as a broker does when it starts, and stop it cleanly.

    :param dry_run: report the result of a recovery, and change nothing.
    :param cut_messages: recover even if undamaged messages lie behind a damaged one. Those behind are lost.
    :param whole_index: rebuild the damaged part of the index even if many files of the log have to be read.
    :raises StoreBusyError: a broker or another process uses the store.
    :raises CorruptFrameError: undamaged messages would be cut off, and ``cut_messages`` isn't set.
    """
    layout = resolve_layout(config)
    settings = settings_for(config, layout)
    if dry_run:
        if (holder := store_lock.lock_holder(layout)) is not None:
            raise StoreBusyError(
                f"{layout.root}: expected no process that writes the store, found {holder}. Until it ends, "
                "the result of a recovery can't be computed. Nothing was changed. Stop it first."
            )
        return preview_recovery(layout, settings, whole_index=whole_index)
    with store_lock.lock(layout):
        result = preview_recovery(layout, settings, whole_index=whole_index)
        if not cut_messages:
            _check_nothing_lost(layout, result)
        store = MessageStore(layout, replace(settings, transient_pool_enable=False))
        if not store.was_clean:
            store.drop_what_was_cut(whole_index=whole_index)
        store.stop()
        return replace(result, done=True, unindexed=store.unindexed)


def check_nothing_cut(layout: StoreLayout, settings: EngineSettings) -> None:
    """Make sure that opening a store for writing cuts off no undamaged message. The caller has the lock.

    :raises CorruptFrameError: undamaged messages lie behind a damaged one.
    """
    _check_nothing_lost(layout, preview_recovery(layout, settings))


def _check_nothing_lost(layout: StoreLayout, result: StoreRecovery) -> None:
    if result.cut_messages:
        raise CorruptFrameError(
            f"{layout.root}: expected no message behind the damaged one at offset {result.log_end}, found "
            f"{result.cut_messages} whole messages. A recovery would cut them off, and so would a start of "
            "the broker. Nothing was changed. Archive the segments first with --accept-damage, or put the "
            "file back from a replica. To lose these messages, run ",
            Command("recover"),
            " with --cut-messages.",
        )


def rebuild_queues(config: BrokerConfig) -> StoreRecovery:
    """Rebuild the consume queues and the index of a stopped broker's store from its log.

    If it is killed at any moment, the store counts as crashed, and a recovery completes the files.

    :raises StoreBusyError: a broker or another process uses the store.
    :raises CorruptFrameError: the log is damaged before its end. Nothing was changed.
    """
    layout = resolve_layout(config)
    settings = settings_for(config, layout)
    with store_lock.lock(layout):
        result = preview_recovery(layout, settings)
        parts = _parts(layout, settings)
        end = RecoveredEnd(0, None, 0)
        if parts:
            check_crc = settings.check_crc_on_recover
            end = find_end(parts, 0, FrameReader(settings), lambda *_: None, check_crc=check_crc)
        if end.offset != result.log_end or result.cut_messages:
            raise CorruptFrameError(
                f"{layout.root}: expected whole messages up to offset {result.log_end}, found a damaged one "
                f"at {end.offset}. Messages behind it would be missing in the queues. Nothing was changed. "
                "Put the file back from a replica."
            )
        first_offset = parts[0].base_offset if parts else 0
        parts.clear()
        # From here on, whoever opens the store next recovers it from its first message.
        durable.write_file(layout.abort, b"")
        checkpoint = StoreCheckpoint(layout.checkpoint)
        checkpoint.set(physic_msg_timestamp_ms=0, logics_msg_timestamp_ms=0, index_msg_timestamp_ms=0)
        checkpoint.flush()
        _remove_dependents(layout, first_offset)
        durable.fsync_path(layout.root)
        store = MessageStore(layout, replace(settings, transient_pool_enable=False))
        entries = sum(store.queues.next_offsets.values())
        store.stop()
        return replace(result, crashed=False, done=True, missing_messages=entries)


def _remove_dependents(layout: StoreLayout, first_offset: int) -> None:
    """Remove the files that are rebuilt from the log, which begins at ``first_offset``.

    A queue without a message in the log stays, since only its files tell its next offset.
    """
    for directory in (layout.consumequeue_ext, layout.index):
        if directory.is_dir():
            shutil.rmtree(directory)
    for queue, form in tuple(all_queues(layout)):
        last = form.last_message(form.files(queue.path))
        if last is None or last[0] >= first_offset:
            shutil.rmtree(queue.path)


def preview_recovery(
    layout: StoreLayout, settings: EngineSettings, *, whole_index: bool = False
) -> StoreRecovery:
    """Compute the result of a recovery without changing anything.

    :raises StoreLayoutError: no broker could load the files.
    """
    crashed = layout.abort.exists()
    checkpoint = StoreCheckpoint(layout.checkpoint)
    parts = _parts(layout, settings)
    dispatched = _find_dispatched(layout)
    missing = 0

    def count(data: Bytes, rows: Rows) -> None:
        nonlocal missing
        kind = rows[:, dispatch.SYS_FLAG] & TRANSACTION_MASK
        queued = (kind == TRANSACTION_NOT) | (kind == TRANSACTION_COMMIT)
        missing += int((queued & (rows[:, dispatch.PHYSICAL_OFFSET] >= dispatched)).sum())

    end = RecoveredEnd(0, None, 0)
    if parts:
        number = first_part_after_stop(parts, dispatched)
        if crashed:
            number = first_part_after_crash(parts, checkpoint, settings)
        end = find_end(parts, number, FrameReader(settings), count, check_crc=settings.check_crc_on_recover)
    dropped: tuple[Path, ...] = ()
    unindexed = None
    if crashed and settings.index_enable:
        index = IndexWriter(layout.index, settings.hash_slots, settings.index_entries, checkpoint)
        dropped, begin = _unsure_index(index, parts, end)
        bases = [part.base_offset for part in parts if part.base_offset < end.offset]
        if begin is not None:
            first = first_to_index(begin, end.began_at, bases, everything=whole_index)
            unindexed = (begin, first) if first > begin else None
    return StoreRecovery(
        root=str(layout.root),
        crashed=crashed,
        log_end=end.offset,
        cut_bytes=sum(len(part.data) - _cut_position(part, end.offset) for part in parts),
        cut_messages=sum(_count_messages_behind(part, _cut_position(part, end.offset)) for part in parts),
        deleted_files=tuple(part.path.name for part in parts if part.base_offset > end.offset),
        dropped_index_files=tuple(path.name for path in dropped),
        stray_entries=_stray_entries(layout, end.offset),
        missing_messages=missing,
        done=False,
        unindexed=unindexed,
    )


def _unsure_index(
    index: IndexWriter, parts: list[LogPart], end: RecoveredEnd
) -> tuple[tuple[Path, ...], int | None]:
    """Return the index files that a recovery deletes, and the offset from which it indexes messages again.

    The offset is None if the recovery indexes no messages again.
    """
    listed = index.listed()
    unflushed = tuple(path for path in listed if index.is_unflushed(path))
    log_begin = parts[0].base_offset if parts else 0
    loaded = len(listed) - len(unflushed)
    unsure = find_unsure(index.sound_headers(listed), loaded, log_begin, end.offset, end.began_at)
    return (unflushed, None) if unsure is None else (tuple(listed[unsure.kept :]), unsure.begin)


def _parts(layout: StoreLayout, settings: EngineSettings) -> list[LogPart]:
    raw_files = list_raw_files(layout.log_paths)
    allow_open_files(layout.commitlog_paths[0], len(raw_files))
    files = readable_files(raw_files)
    wrong = [path for path, size in raw_files if size != settings.commitlog_file_bytes]
    if wrong or len(files) != len(raw_files):
        raise StoreLayoutError(
            f"{wrong[0] if wrong else layout.commitlog_paths[0]}: expected files of "
            f"{settings.commitlog_file_bytes} bytes whose names are their first offsets, found another file. "
            "Nothing was changed. Check mappedFileSizeCommitLog, and compare the directory with a replica."
        )
    ordered = sorted(files, key=lambda file: file.base_offset)
    for left, right in pairwise(ordered):
        end = left.base_offset + settings.commitlog_file_bytes
        if end != right.base_offset:
            raise StoreLayoutError(
                f"{right.path}: expected a file that begins at {end}, where {left.path.name} ends, found a "
                "gap. Nothing was changed. Put the missing file back from a replica or the lake."
            )
    return [LogPart(file.path, file.base_offset, np.memmap(file.path, np.uint8, "r")) for file in ordered]


def _cut_position(part: LogPart, end: int) -> int:
    """Return the position from which a recovery cuts off a file of the log."""
    return min(max(end - part.base_offset, 0), len(part.data))


def _count_messages_behind(part: LogPart, position: int) -> int:
    if position >= len(part.data):
        return 0
    chunks = iterate_frames(part.data.data, part.base_offset, _CHUNK_BYTES, start=position)
    return sum(int((chunk.kinds == KIND_MESSAGE).sum()) for chunk in chunks)


def _find_dispatched(layout: StoreLayout) -> int:
    """Return the offset up to which the log is dispatched (ConsumeQueueStore#getMaxPhyOffset…)."""
    ends = [-1]
    for queue, form in all_queues(layout):
        if last := form.last_message(form.files(queue.path)):
            ends.append(last[0] if form is batch_consume_queue.FORMAT else sum(last))
    return max(ends)


def _stray_entries(layout: StoreLayout, end: int) -> int:
    queues = (form.read_queue(form.files(queue.path)) for queue, form in all_queues(layout))
    return sum(int((entries["offset"] >= end).sum()) for entries in queues)
