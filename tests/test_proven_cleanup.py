"""A store that is written to and cleaned up by this process, of which nothing unproven goes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from storage_engine.exceptions import StorageEngineError
from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.proven_cleanup import proven_release
from storage_engine.retention.brokers import settings_of
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.rocketmq.engine.cleanup_loop import CleanupLoop
from storage_engine.rocketmq.engine.engine_store import open_engine
from storage_engine.rocketmq.engine.message_store import MessageStore, open_store
from storage_engine.rocketmq.engine.new_message import NewMessage, PutStatus
from tests.lakes import make_lakes
from tests.rocketmq.engine.scenarios import messages, put_all, write_conf

pytestmark = pytest.mark.again

FILE_BYTES = 1 << 16


@contextmanager
def cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[MessageStore, CleanupLoop, ManagedStore]]:
    """Open a store of old files for writing, with its loop and a lake."""
    conf = tmp_path / "conf"
    config = write_conf(conf, tmp_path / "store", fileReservedTime=1, deleteFileBatchMax=4)
    managed = ManagedStore.local(
        "s", str(tmp_path / "store"), tmp_path / "managed", broker_conf=str(conf), time_zone="UTC"
    )
    make_lakes(managed)
    monkeypatch.setattr("storage_engine.proven_cleanup._RETRY_MS", 0)
    with open_store(config) as store:
        put_all(store, messages(3, 400))
        store.flush()
        for file in store.files.files:
            os.utime(file.path, ns=(1_700_000_000 * 10**9, 1_700_000_000 * 10**9))
        with proven_release(managed, open_engine(settings_of(managed), store)) as release:
            loop = CleanupLoop(store, config, ZoneInfo("UTC"), release=release)
            loop.delete_manually()
            yield store, loop, managed


def test_what_goes_is_in_the_lake_and_in_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cleaned(tmp_path, monkeypatch) as (store, loop, managed):
        queue_files = sum(len(files.bases) for files in store.queues.entry_files())
        assert store.index is not None
        index_files = len(store.index.paths)
        held = store.read(0, 50)
        assert held is not None
        was = bytes(held.data)
        loop.clean_log()
        loop.clean_queues()
        assert store.files.min_offset == 4 * FILE_BYTES
        assert bytes(held.data) == was
        held.release()
        directory = store.layout.commitlog_paths[0]
        assert min(path.name for path in directory.iterdir()) == f"{4 * FILE_BYTES:020d}"
        assert sum(len(files.bases) for files in store.queues.entry_files()) < queue_files
        assert len(store.index.paths) < index_files
        for files in store.queues.entry_files():
            assert sorted(int(path.name) for path in files.directory.iterdir()) == files.bases
        assert any(writer.min_queue_offset > 0 for writer in store.queues)
        journal = Journal(managed.journal_url)
        known = journal.find_store(managed.real_root, None)
        assert known is not None
        for step in (Step.RELEASE, Step.DEPENDENTS):
            intents = journal.store_events(known.store_id, step, Phase.INTENT)
            results = journal.store_events(known.store_id, step, Phase.RESULT)
            assert intents
            assert {event.subject for event in intents} <= {event.subject for event in results}
        assert store.put(NewMessage("orders", b"goes on")).status is PutStatus.PUT_OK
        loop.clean_log()
        assert store.files.min_offset == 8 * FILE_BYTES


def test_without_its_lake_nothing_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cleaned(tmp_path, monkeypatch) as (store, loop, managed):
        lake = Path(managed.journal_url.removeprefix("sqlite:///")).parent / "lake"
        before = sorted(path.name for path in store.layout.commitlog_paths[0].iterdir())
        lake.rename(lake.with_name("away"))
        for _ in range(2):
            with pytest.raises(StorageEngineError):
                loop.clean_log()
        assert sorted(path.name for path in store.layout.commitlog_paths[0].iterdir()) == before
        assert store.files.min_offset == 0
        lake.with_name("away").rename(lake)
        loop.clean_log()
        assert store.files.min_offset == 4 * FILE_BYTES
