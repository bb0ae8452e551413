"""All consume queues of a store, and the next queue offset of each (ConsumeQueueStore)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from storage_engine.exceptions import StoreLayoutError
from storage_engine.rocketmq.engine.dispatch.entry_files import EntryFiles
from storage_engine.rocketmq.engine.dispatch.queue_writer import BatchQueueWriter, ExtWriter, QueueWriter
from storage_engine.rocketmq.engine.engine_settings import EngineSettings
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.format.queue_files import iter_queues

Writer = QueueWriter | BatchQueueWriter

_SYNCS = 8
"""At a time: a disk takes what waits for it together."""

_LONGEST_NAME_BYTES = 255
"""Of a directory, on every file system that Linux has."""


def is_directory_name(topic: str) -> bool:
    """Return whether a topic's queues can lie in a directory of its name, inside the store."""
    fits = 0 < len(topic.encode()) <= _LONGEST_NAME_BYTES
    return fits and topic not in (".", "..") and "/" not in topic and "\0" not in topic


class QueueTable:
    """Queue writers by topic and queue id."""

    def __init__(self, layout: StoreLayout, settings: EngineSettings, batch_topics: frozenset[str]) -> None:
        """:param batch_topics: topics that have batch consume queues."""
        self._layout, self._settings = layout, settings
        self._batch_topics = batch_topics
        self._flushes = threading.Lock()
        self._writers: dict[tuple[str, int], Writer] = {}
        self.next_offsets: dict[tuple[str, int], int] = {}
        """Queue offset that the next message of a queue gets; changed under the log's lock alone."""

    def __iter__(self) -> Iterator[Writer]:
        return iter(tuple(self._writers.values()))

    def is_batch(self, topic: str) -> bool:
        return topic in self._batch_topics

    def load(self) -> None:
        """Find the queues that are there.

        :raises StoreLayoutError: a file of one has another size than the settings say.
        """
        for directory in (self._layout.consumequeue, self._layout.batchconsumequeue):
            for queue in iter_queues(directory):
                batch = directory == self._layout.batchconsumequeue
                if batch:
                    self._batch_topics |= {queue.topic}
                self.find(queue.topic, queue.queue_id).load()

    def find(self, topic: str, queue_id: int) -> Writer:
        """Return a queue's writer; a new one where there is none.

        :raises StoreLayoutError: no directory can have its names, which messages on disk may say.
        """
        found = self._writers.get((topic, queue_id))
        if found is None:
            if not is_directory_name(topic) or queue_id < 0:
                raise StoreLayoutError(
                    f"{self._layout.root}: expected a topic and a queue that directories can be named after, "
                    f"found topic {topic!r:.300}, queue {queue_id} in a message. No queue was made of it. "
                    "Find out who wrote it, and put the file of the log back from a replica."
                )
            found = self._writers[topic, queue_id] = self._new(topic, queue_id)
        return found

    @property
    def max_physical_offset(self) -> int:
        """Return up to where the log was dispatched, by the entry that reaches furthest."""
        return max((writer.max_physical_offset for writer in self), default=-1)

    def recover(self, unflushed_from: int | None) -> None:
        """Find the end of each queue.

        :param unflushed_from: entries of messages from this offset of the log on may not be on disk.
        """
        for writer in self:
            writer.recover(unflushed_from)
        if unflushed_from is not None:
            for files in self.entry_files():
                files.flushed = 0

    def truncate(self, physical_offset: int) -> None:
        for writer in self:
            writer.truncate(physical_offset)

    def correct_min(self, min_offset: int) -> None:
        """Find each queue's first entry whose message is in the log (ConsumeQueueStore#correctMinOffset)."""
        for writer in self:
            writer.correct_min(min_offset)

    def flush(self, least_pages: int) -> None:
        """Take what was written to disk, of each queue with at least so many pages.

        :raises OSError: the disk refuses.
        """
        with self._flushes:
            for writer in self:
                writer.flush(least_pages)

    def take_to_disk(self) -> None:
        """Flush what a killed process wrote.

        :raises OSError: the disk refuses.
        """
        with ThreadPoolExecutor(_SYNCS, thread_name_prefix="flush") as pool:
            for _ in pool.map(EntryFiles.take_to_disk, self.entry_files()):
                pass

    def drop_behind(self, log_end: int) -> None:
        """Remove what lies behind the last entry of a message that is there, durably.

        :raises OSError: the disk refuses.
        """
        for writer in self:
            writer.drop_behind(log_end)
        for files in self.entry_files():
            files.erase_rest()
        self.flush(0)
        self.settle_next_offsets()

    def destroy(self) -> None:
        """Delete every queue (ConsumeQueueStore#destroy)."""
        for files in self.entry_files():
            files.delete_all()
        self._writers.clear()

    def files_in(self, directory: Path) -> EntryFiles | None:
        """Return the files of the queue, or of the extension, that has this directory; None: none has it."""
        return next((files for files in self.entry_files() if files.directory == directory), None)

    def entry_files(self) -> Iterator[EntryFiles]:
        """Yield the files of each queue, and those of its extension."""
        for writer in self:
            yield writer.files
            if isinstance(writer, QueueWriter) and writer.ext:
                yield writer.ext.files

    def settle_next_offsets(self) -> None:
        """Let each queue go on where its entries end (ConsumeQueueStore#recoverOffsetTable)."""
        self.next_offsets = {queue: writer.next_queue_offset for queue, writer in self._writers.items()}

    def _new(self, topic: str, queue_id: int) -> Writer:
        settings, name = self._settings, str(queue_id)
        if self.is_batch(topic):
            directory = self._layout.batchconsumequeue / topic / name
            return BatchQueueWriter(directory, settings.batch_queue_file_bytes)
        ext = None
        if settings.ext_enable:
            ext = ExtWriter(self._layout.consumequeue_ext / topic / name, settings.ext_file_bytes)
        return QueueWriter(self._layout.consumequeue / topic / name, settings.consume_queue_file_bytes, ext)
