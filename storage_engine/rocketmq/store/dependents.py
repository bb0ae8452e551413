"""Consume queue and index files that point only below the log's new min offset, deleted after segments.

The broker's rules decide (DefaultMessageStore.CleanConsumeQueueService#deleteExpiredFiles). The last file of
a queue and the last index file are never deleted. If a queue has a single file, only the queue's directory is
read. In any other queue, the last entry of each file is read, up to the first file that stays.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from functools import partial
from itertools import chain, groupby
from pathlib import Path

from storage_engine.core import durable
from storage_engine.core.long_work import report_each
from storage_engine.exceptions import BadInputError, CorruptFileError, StoreLayoutError
from storage_engine.model.broker.broker_store import Remove
from storage_engine.model.plan import DependentFile
from storage_engine.model.report.diagnosis import reason_of
from storage_engine.model.store import FileFacts
from storage_engine.rocketmq.format import batch_consume_queue, consume_queue, index_file
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from storage_engine.rocketmq.format.consume_queue import (
    EntryFormat,
    QueueDirectory,
    iter_queues,
    physical_offset,
)
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.format.mapped_files import MappedFile
from storage_engine.rocketmq.format.stored_files import PAUSE_SECONDS, open_directory_below

_Files = Callable[[], Iterator[DependentFile]]


class DependentKind(StrEnum):
    CONSUME_QUEUE = "consume-queue"
    CONSUME_QUEUE_EXT = "consume-queue-ext"
    BATCH_CONSUME_QUEUE = "batch-consume-queue"
    INDEX = "index"


def expired_dependents(
    layout: StoreLayout,
    config: BrokerConfig,
    min_offset: int,
    unreadable: list[str] | None = None,
    attempts: int = 1,
) -> tuple[DependentFile, ...]:
    """Find the files that the broker would delete when the log begins at ``min_offset``. Changes nothing.

    :param min_offset: the log's min offset after the deletion of segments.
    :param unreadable: gets the errors of queues and index files that can't be read, and therefore stay. None
        if these errors should be raised.
    :param attempts: number of attempts to read inconsistent files, to which a running broker may write.
    :return: the files. In each directory, the oldest comes first.
    :raises CorruptFileError: a file's content contradicts its name.
    :raises StoreLayoutError: a file is a symbolic link.
    """
    dependents: list[DependentFile] = []
    remaining: Iterable[_Files] = chain(
        _expired_queues(layout, config, min_offset),
        _expired_batch_queues(layout, config, min_offset),
        (partial(_expired_index_files, layout, min_offset),),
    )
    for attempt in range(1, attempts + 1):
        failed: list[tuple[_Files, BadInputError]] = []
        for files in remaining:
            try:
                dependents += tuple(files())
            except (CorruptFileError, StoreLayoutError) as error:
                if unreadable is None:
                    raise
                failed.append((files, error))
        if not failed or attempt == attempts:
            break
        remaining = [files for files, _ in failed]
        time.sleep(PAUSE_SECONDS)
    if unreadable is not None:
        unreadable += [reason_of(error) for _, error in failed]
    return tuple(dependents)


def delete_dependents(
    layout: StoreLayout, files: Iterable[DependentFile], remove: Remove = durable.unlink_in
) -> tuple[DependentFile, ...]:
    """Delete files durably. In each directory, the oldest is deleted first.

    A file that is gone already is skipped, so an interrupted call can be repeated.

    :return: the files that this call deleted.
    :raises StoreLayoutError: a directory isn't the store's. Files before it were deleted.
    :raises OSError: a file can't be deleted. Files before it were deleted.
    """
    deleted: list[DependentFile] = []
    ordered = sorted(files, key=lambda file: (Path(file.facts.path).parent, Path(file.facts.path).name))
    for directory, group in groupby(ordered, key=lambda file: Path(file.facts.path).parent):
        fd = _open_directory(layout, directory)
        try:
            deleted += [file for file in group if remove(Path(file.facts.path), fd)]
        finally:
            os.fsync(fd)
            os.close(fd)
    return tuple(deleted)


def _open_directory(layout: StoreLayout, directory: Path) -> int:
    """Open a directory to delete files from it. Links below the store's directories are not followed.

    :raises StoreLayoutError: the directory isn't below one of the store's directories.
    """
    for path in (directory, Path(os.path.realpath(directory))):
        for root in layout.dependent_directories:
            if path.is_relative_to(root):
                return open_directory_below(root, path)
    raise StoreLayoutError(
        f"{directory}: expected a directory below {', '.join(map(str, layout.dependent_directories))}, found "
        "one elsewhere. Nothing in it was deleted. Find out who changed the store's directories."
    )


def _expired_queues(layout: StoreLayout, config: BrokerConfig, min_offset: int) -> Iterator[_Files]:
    """Yield functions that find expired files: one for each queue, and each extension, with several files."""
    queues = list(iter_queues(layout.consumequeue, min_files=2))
    for queue in report_each(queues, "Looking at queues", "queues"):
        list_files = partial(
            consume_queue.FORMAT.files, queue.path, size_bytes=config.mapped_file_size_consume_queue_bytes
        )
        yield partial(_find_old, consume_queue.FORMAT, DependentKind.CONSUME_QUEUE, list_files, min_offset)
    # Without broker.conf, existing files show that extensions are enabled.
    extended = config.enable_consume_queue_ext or config.source is None
    for extension in iter_queues(layout.consumequeue_ext, min_files=2) if extended else ():
        yield partial(_expired_extensions, layout, config, extension, min_offset)


def _expired_batch_queues(layout: StoreLayout, config: BrokerConfig, min_offset: int) -> Iterator[_Files]:
    for queue in iter_queues(layout.batchconsumequeue, min_files=2):
        list_files = partial(
            batch_consume_queue.FORMAT.files,
            queue.path,
            size_bytes=config.mapped_file_size_batch_consume_queue_bytes,
        )
        yield partial(
            _find_old, batch_consume_queue.FORMAT, DependentKind.BATCH_CONSUME_QUEUE, list_files, min_offset
        )


def _find_old(
    entry_format: EntryFormat,
    kind: DependentKind,
    list_files: Callable[[], tuple[MappedFile, ...]],
    min_offset: int,
) -> Iterator[DependentFile]:
    """Yield a queue's files whose last entries are expired (MappedFileQueue#deleteExpiredFileByOffset).

    If only files without an entry follow a file that isn't full, the queue ends in that file, which stays. A
    broker removes the empty files when it starts (ConsumeQueue#recover, #truncateDirtyFiles).
    """
    files = list_files()
    for number, file in enumerate(files[:-1], 1):
        position = entry_format.capacity(file) - 1
        entry = entry_format.entry(file, position)
        if entry is None and entry_format.last_position(files[number:]) is None:
            return
        if entry is None:
            raise CorruptFileError(
                f"{file.path}: offset {position * entry_format.dtype.itemsize}: expected an entry, since "
                "another file follows, found none. Nothing was changed. Compare the file with a replica."
            )
        last = physical_offset(entry)
        if last >= min_offset:
            return
        yield _dependent(
            kind, file.path, f"its last entry points to {last}, below the min offset {min_offset}"
        )


def _expired_extensions(
    layout: StoreLayout, config: BrokerConfig, queue: QueueDirectory, min_offset: int
) -> Iterator[DependentFile]:
    """Yield extension files that end before the first remaining entry's unit (#truncateByMinAddress).

    If no entry remains, the broker keeps these files (ConsumeQueue#correctMinOffset).
    """
    path = layout.consumequeue / queue.topic / str(queue.queue_id)
    entries = consume_queue.FORMAT.files(path, size_bytes=config.mapped_file_size_consume_queue_bytes)
    bounds = consume_queue.bounds(entries, min_offset)
    first = consume_queue.entry_at(entries, bounds.min_offset)
    unit = None if first is None else consume_queue.unit_offset(first.tags_code)
    if unit is None:
        return
    files = consume_queue.list_files(queue.path, size_bytes=config.mapped_file_size_consume_queue_ext_bytes)
    for file in files[:-1]:
        if file.end_offset >= unit:
            return
        detail = f"it ends at {file.end_offset}, below {unit}, to which the first entry left points"
        yield _dependent(DependentKind.CONSUME_QUEUE_EXT, file.path, detail)


def _expired_index_files(layout: StoreLayout, min_offset: int) -> Iterator[DependentFile]:
    """Yield index files whose headers' end offsets are expired (IndexService#deleteExpiredFile)."""
    for path in index_file.list_index_paths(layout)[:-1]:
        end = index_file.read_header(path).end_phy_offset
        if end >= min_offset:
            return
        detail = f"its last entry points to {end}, below the min offset {min_offset}"
        yield _dependent(DependentKind.INDEX, path, detail)


def _dependent(kind: DependentKind, path: Path, detail: str) -> DependentFile:
    return DependentFile(kind, FileFacts.of(path), detail)
