"""A running broker under producers and consumers lets exactly the approved prefix go, round after round."""

from __future__ import annotations

import hashlib
import os
import random
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from storage_engine.exceptions import ReleasedTooMuchError
from storage_engine.lake.catalog import open_lake
from storage_engine.model.live import LiveBroker
from storage_engine.model.plan import PlanRequest
from storage_engine.model.validation import Status
from storage_engine.model.verification import VerifyLevel
from storage_engine.quality.validate import validate_store
from storage_engine.retention import steps
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.retention.verification import verify_store
from storage_engine.rocketmq.beside import release
from storage_engine.rocketmq.remoting.admin import BrokerAdmin
from tests.integration.broker import CLEANS_AT_ONCE, Broker, running_broker
from tests.integration.load import Load, Sent, running_load
from tests.lakes import make_lakes
from tests.rounds import rounds

pytestmark = pytest.mark.integration

ROUNDS = rounds("STORAGE_ENGINE_LIVE_ROUNDS", 2, 20)
SEED = 20
SEGMENT_BYTES = 128 * 1024
MOST_SEGMENTS = 7
FENCED = 4
TOPICS = ("orders", "payments")
EXPIRED_HOURS = 100
FLUSH_SECONDS = 1.0
"""A broker flushes every 500 ms; a full file's mtime stays from then on."""
BODY_LENGTH_AT = 84
"""In a frame with IPv4 addresses; the body follows."""

SETTINGS = {
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "fileReservedTime": 48,
    "cleanResourceInterval": 200,
    "deleteFileBatchMax": 3,
    "deleteCommitLogFilesInterval": 1,
    "cleanFileForciblyEnable": True,
    "timerWheelEnable": False,
    # A busy machine is no reason to refuse a message.
    "waitTimeMillsInSendQueue": 60_000,
    "osPageCacheBusyTimeOutMills": 60_000,
}
"""A broker that deletes what is older than two days as soon as it is told to: 3 files five times a second."""

Key = tuple[str, int, int]
"""Topic, queue id, queue offset."""


@dataclass
class Live:
    """A loaded broker, and its store as retention knows it."""

    broker: Broker
    store: ManagedStore
    load: Load

    def names(self) -> list[int]:
        return sorted(int(path.name) for path in (self.broker.store / "commitlog").iterdir())

    def aged(self, segments: int, most: int | None = None) -> None:
        """Wait for so many segments that are older than the broker keeps them.

        :param most: let no more than these be so old; None: all that the broker doesn't write to.
        """
        deadline = time.monotonic() + 180
        while True:
            active = self.broker.client.runtime_info().commitlog_max_offset // SEGMENT_BYTES * SEGMENT_BYTES
            old = []
            for base in self.names()[:most]:
                path = self.broker.store / "commitlog" / f"{base:020d}"
                age_seconds = time.time() - path.stat().st_mtime
                is_fenced = age_seconds < -3600
                if base < active and (age_seconds > FLUSH_SECONDS or is_fenced):
                    if not is_fenced and age_seconds < 3600:
                        then = time.time() - EXPIRED_HOURS * 3600
                        os.utime(path, (then, then))
                    old.append(base)
                elif age_seconds <= FLUSH_SECONDS:
                    break
            if len(old) >= segments:
                return
            assert time.monotonic() < deadline, f"{len(old)} of {segments} segments after three minutes"
            time.sleep(0.1)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, name_server_port: int) -> Iterator[Live]:
    work = tmp_path_factory.mktemp("live")
    with running_broker(
        work / "store", work / "broker", name_server_port, SETTINGS, main_class=CLEANS_AT_ONCE
    ) as broker:
        settings = LiveBroker(address=broker.client.address, may_change_settings=True, allow_same_disk=True)
        root = str(broker.store)
        store = ManagedStore.local("live", root, work / "managed", time_zone="UTC", live=settings)
        with running_load(
            broker,
            name_server_port,
            work / "load",
            topics=TOPICS,
            groups=("fast", "slow@20"),
            rate=100,
            body_bytes=4000,
            seed=SEED,
        ) as load:
            yield Live(broker, make_lakes(store), load)


def test_each_round_lets_exactly_its_prefix_go(live: Live) -> None:
    chance = random.Random(SEED)
    for number in range(ROUNDS):
        run, wanted = f"round-{number}", chance.randint(1, MOST_SEGMENTS)
        # What is fenced has to be old by then, or the next round would wait for it for two days.
        live.aged(wanted + 1 + FENCED)
        before = live.names()
        plan = steps.make_plan(live.store, run, PlanRequest(manual=True, max_segments=wanted))
        assert list(plan.delete_offsets) == before[:wanted]
        steps.archive(live.store, run, steps.archive_jobs(live.store, run))
        released = steps.release(live.store, run)
        assert [r.base_offset for r in released.deleted] == before[:wanted]
        # The broker itself has each of them mapped for writing.
        assert not [r for r in released.deleted if "mapped for writing" in r.passage_detail]
        assert not released.kept
        assert not released.deleted_by_others
        assert released.new_min_offset == before[wanted]
        assert live.broker.client.runtime_info().commitlog_min_offset == before[wanted]
        assert live.names()[: len(before) - wanted] == before[wanted:]
        cleaned = steps.clean_dependents(live.store, run)
        assert not [notice for notice in cleaned.notices if "stay" in notice]
        steps.flush_checkpoint(live.store, run)
        if number % 10 == 9 or number == ROUNDS - 1:
            (verified,) = verify_store(live.store, VerifyLevel.STORE)
            assert verified.overall is Status.OK, verified
            assert validate_store(live.store).overall is Status.OK
    live.load.stop()
    assert live.load.summary["failed"] == 0
    assert live.load.summary["groups"]["fast"]["failed"] == 0
    assert live.load.summary["groups"]["fast"]["moved"] == 0
    check_nothing_lost(live)


def test_more_than_was_let_go_is_an_alarm_and_not_the_next_run_s_to_answer_for(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Looked at more often, the fence would be there again before the broker's next pass.
    monkeypatch.setattr(release, "POLL_SECONDS", 5.0)
    live.aged(3, most=3)
    before = live.names()
    steps.make_plan(live.store, "r", PlanRequest(manual=True, max_segments=2))
    steps.archive(live.store, "r", steps.archive_jobs(live.store, "r"))
    with (
        somebody_who_expires(*(live.broker.store / "commitlog" / f"{base:020d}" for base in before[:3:2])),
        pytest.raises(ReleasedTooMuchError, match=f"offset {before[2]} "),
    ):
        steps.release(live.store, "r")
    assert live.names()[0] == before[3]
    released = steps.release(live.store, "r")
    assert [r.base_offset for r in released.deleted] == before[:2]
    assert released.new_min_offset == before[3]


@contextmanager
def somebody_who_expires(first: Path, stays: Path) -> Iterator[None]:
    """Once ``first`` is gone, make ``stays`` as old as what is let go, for as long as it is there."""
    ends = threading.Event()

    def touch() -> None:
        while not ends.wait(0.001):
            with suppress(FileNotFoundError):
                if not first.exists() and stays.stat().st_mtime > 0:
                    os.utime(stays, (0, 0))

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def check_nothing_lost(live: Live) -> None:
    """Every message is still served or in the lake, with the body that its producer sent."""
    min_offset = live.broker.client.runtime_info().commitlog_min_offset
    archived, served = bodies_in_lake(live.store), bodies_served(live.broker)
    sent = live.load.sent()
    assert len(sent) > 50 * ROUNDS
    for message in sent:
        known = archived if message.physical_offset < min_offset else served
        assert known.get(key(message)) == message.sha256, message
    assert min_offset > 0


def key(sent: Sent) -> Key:
    return sent.topic, sent.queue_id, sent.queue_offset


def bodies_in_lake(store: ManagedStore) -> dict[Key, str]:
    columns = ("topic", "queue_id", "queue_offset", "body")
    rows: pa.Table = open_lake(store.lake).messages().scan(selected_fields=columns).to_arrow()
    topics, queues, offsets, bodies = (rows.column(name).to_pylist() for name in columns)
    return {
        (topic, queue, offset): hashlib.sha256(body).hexdigest()
        for topic, queue, offset, body in zip(topics, queues, offsets, bodies, strict=True)
        if body is not None
    }


def bodies_served(broker: Broker) -> dict[Key, str]:
    found: dict[Key, str] = {}
    with BrokerAdmin(broker.client.address) as admin:
        for topic in TOPICS:
            for queue, stats in admin.topic_stats(topic).items():
                offset = stats.min_offset
                while offset < stats.max_offset:
                    frames = admin.pull(topic, queue, offset).frames
                    assert frames, f"nothing at {offset} of {topic}, queue {queue}"
                    for i, frame in enumerate(frames):
                        (length,) = struct.unpack_from(">i", frame, BODY_LENGTH_AT)
                        body = frame[BODY_LENGTH_AT + 4 : BODY_LENGTH_AT + 4 + length]
                        found[topic, queue, offset + i] = hashlib.sha256(body).hexdigest()
                    offset += len(frames)
    return found
