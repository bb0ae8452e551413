"""A store that is written to and cleaned up by this process, of which nothing unproven goes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from storage_engine.exceptions import LakeMissingError, NotApprovedError, StorageEngineError
from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.model.plan import Person, PlanRequest, Realm
from storage_engine.model.settings.policy import ApprovalPolicy, Policy
from storage_engine.proven_cleanup import proven_release
from storage_engine.retention.proof.approvals import approve_plan, open_questions
from storage_engine.retention.store.brokers import settings_of
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.engine.append.append import NewMessage, PutStatus
from storage_engine.rocketmq.engine.message_store import MessageStore, open_store
from storage_engine.rocketmq.engine.serving import serving
from storage_engine.rocketmq.engine.store_service import CleanupLoop, serve_store
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from tests.lakes import make_lakes
from tests.rocketmq.engine.killing import rows_of
from tests.rocketmq.engine.killing_cleanup import check_proven
from tests.rocketmq.engine.scenarios import messages, put_all, read_log, write_conf

pytestmark = pytest.mark.again

FILE_BYTES = 1 << 16


def managed_in(directory: Path, **settings: object) -> tuple[ManagedStore, BrokerConfig]:
    """Make a lake for a store of small files."""
    conf = directory / "conf"
    config = write_conf(conf, directory / "store", fileReservedTime=1, deleteFileBatchMax=4, **settings)
    managed = ManagedStore.local(
        "s", str(directory / "store"), directory / "managed", broker_conf=str(conf), time_zone="UTC"
    )
    return make_lakes(managed), config


def fill(store: MessageStore) -> None:
    """Write files that seem to be old."""
    put_all(store, messages(3, 400))
    store.flush()
    for file in store.files.files:
        os.utime(file.path, ns=(1_700_000_000 * 10**9, 1_700_000_000 * 10**9))


@contextmanager
def cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[MessageStore, CleanupLoop, ManagedStore]]:
    """Serve a store of old files, with its loop and a lake."""
    managed, config = managed_in(tmp_path)
    monkeypatch.setattr("storage_engine.proven_cleanup._RETRY_MS", 0)
    with open_store(config) as store, serving(store):
        fill(store)
        loop = CleanupLoop(store, config, ZoneInfo("UTC"), release=proven_release(managed))
        loop.delete_manually()
        yield store, loop, managed


def test_what_goes_is_in_the_lake_and_in_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cleaned(tmp_path, monkeypatch) as (store, loop, managed):
        queue_files = sum(len(files.bases) for files in store.queues.entry_files())
        assert store.index is not None
        index_files = len(store.index.paths)
        loop.clean_log()
        loop.clean_queues()
        assert store.files.min_offset == 4 * FILE_BYTES
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


def test_the_loop_archives_and_waits_for_a_second_person_in_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cleaned(tmp_path, monkeypatch) as (store, _, managed):
        asks = replace(managed, policy=Policy(approval=ApprovalPolicy.ALWAYS))
        release = proven_release(asks)
        for _ in range(2):
            with pytest.raises(NotApprovedError):
                release(PlanRequest(manual=True))
        assert store.files.min_offset == 0
        journal = Journal(managed.journal_url)
        known = journal.find_store(managed.real_root, None)
        assert known is not None
        (run,) = {event.run_key for event in journal.store_events(known.store_id, Step.PLAN, Phase.RESULT)}
        proven = journal.store_events(known.store_id, Step.ARCHIVE, Phase.RESULT)
        assert len({event.subject for event in proven}) == 4
        digest = journal.run(known.store_id, run).plan_digest
        assert digest is not None
        approve_plan(journal, known, digest, Person(Realm.SHELL, "bob", 64002))
        release(PlanRequest(manual=True))
        assert store.files.min_offset == 4 * FILE_BYTES


def test_what_is_approved_goes_though_more_may_go_by_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cleaned(tmp_path, monkeypatch) as (store, _, managed):
        release = proven_release(replace(managed, policy=Policy(approval=ApprovalPolicy.ALWAYS)))
        for segments in (2, 3):
            with pytest.raises(NotApprovedError):
                release(PlanRequest(manual=True, max_segments=segments))
        journal = Journal(managed.journal_url)
        (known,) = journal.all_stores()
        first, *_ = open_questions(journal, known.store_id, 0)
        approve_plan(journal, known, first.question.digest, Person(Realm.SHELL, "bob", 64002))
        release(PlanRequest(manual=True, max_segments=3))
        assert store.files.min_offset == 2 * FILE_BYTES


def test_a_file_that_is_read_stays_for_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cleaned(tmp_path, monkeypatch) as (store, loop, _):
        held = read_log(store, 0, 50)
        assert held is not None
        was = bytes(held.data)
        with pytest.raises(StorageEngineError, match="expected no reader"):
            loop.clean_log()
        assert held.file.path.exists()
        assert bytes(held.data) == was
        held.release()
        loop.clean_log()
        assert store.files.min_offset == 4 * FILE_BYTES


@pytest.mark.parametrize("proves", [True, False])
def test_who_serves_a_store_deletes_by_itself_only_with_a_lake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proves: bool
) -> None:
    monkeypatch.setattr("storage_engine.rocketmq.engine.store_service.FIRST_PASS_MS", 100)
    hours = ";".join(f"{hour:02}" for hour in range(24))
    managed, config = managed_in(tmp_path, deleteWhen=hours, cleanResourceInterval=100)
    with open_store(config) as store:
        fill(store)
    ends = threading.Event()
    release = proven_release(managed) if proves else None
    serving_it = threading.Thread(target=serve_store, args=(settings_of(managed), None, (), ends, release))
    log = tmp_path / "store" / "commitlog"
    before = sorted(path.name for path in log.iterdir())
    serving_it.start()
    deadline = time.monotonic() + 120
    while proves and (log / before[3]).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if not proves:
        time.sleep(2)
    ends.set()
    serving_it.join()
    assert not (tmp_path / "store" / "abort").exists()
    left = sorted(path.name for path in log.iterdir())
    if proves:
        check_proven(managed, int(left[0]), ended=False)
    else:
        assert left == before


@pytest.mark.parametrize("named", [True, False])
def test_the_command_says_what_it_deletes(tmp_path: Path, named: bool) -> None:
    managed, _ = managed_in(tmp_path)
    executable = Path(sys.executable).with_name("storage-engine")
    command = [str(executable), "serve", managed.root, "--topic", "lines"]
    command += ["--broker-conf", str(managed.broker_conf)]
    command += ["--lake", str(tmp_path / "managed" / "lake")] if named else []
    done = subprocess.run(command, input=b"one\ntwo", capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    said = done.stderr.decode()
    assert ("are deleted once" if named else "segments are deleted only on request") in said
    assert [row["body"] for row in rows_of(tmp_path / "store")] == [b"one", b"two"]


def test_a_lake_that_is_not_there_is_refused_before_the_store_is_opened(tmp_path: Path) -> None:
    managed = ManagedStore.local("s", str(tmp_path / "store"), tmp_path / "managed")
    with pytest.raises(LakeMissingError):
        proven_release(managed)
