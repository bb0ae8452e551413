"""A running broker under producers and consumers lets exactly the approved prefix go, round after round.

Afterwards nothing holds it, and it deletes all the time: validation and lag find nothing where nothing is.
"""

from __future__ import annotations

import hashlib
import os
import random
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from demo.brokers.reading import ReadingAdmin
from storage_engine.exceptions import GateRefusedError, ReleasedTooMuchError
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.plan import PlanRequest
from storage_engine.model.report.validation import CheckResult, Status, VerifyLevel
from storage_engine.quality.expectation_rules import run_suites
from storage_engine.quality.facts import collect_facts
from storage_engine.quality.validate import validate_store
from storage_engine.resources import project_path
from storage_engine.retention import steps
from storage_engine.retention.ranges.verification import verify_store
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.format import broker_config
from storage_engine.rocketmq.live import hold as live_hold
from storage_engine.rocketmq.live import release
from storage_engine.spark.consumer_lag import ConsumerLagRequest
from tests.integration.broker import CLEANS_AT_ONCE, VERSIONS, Broker, running_broker
from tests.integration.load import Load, Sent, running_load
from tests.lakes import make_lakes
from tests.rounds import rounds
from tests.services.lag import measured

pytestmark = pytest.mark.integration

ROUNDS = rounds("STORAGE_ENGINE_LIVE_ROUNDS", 1, 20)
VALIDATIONS = rounds("STORAGE_ENGINE_VALIDATION_ROUNDS", 2, 20)
LAGS = rounds("STORAGE_ENGINE_VALIDATION_ROUNDS", 2, 20)
KEPT_SEGMENTS = 6
SEED = 20
SEGMENT_BYTES = 128 * 1024
MOST_SEGMENTS = 7
FENCED = {None: 4, "4.9.7": 11}
"""One more than a pass deletes, by version: 4.9 knows no deleteFileBatchMax."""
TOPICS = ("orders", "payments")
EXPIRED_HOURS = 100
FLUSH_SECONDS = 1.0
"""A broker flushes every 500 ms; a full file's mtime stays from then on."""
BODY_LENGTH_AT = 84
"""In a frame with IPv4 addresses; the body follows."""

SETTINGS = {
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "mappedFileSizeConsumeQueue": 1000,
    "fileReservedTime": 48,
    "cleanResourceInterval": 200,
    "deleteFileBatchMax": 3,
    "deleteCommitLogFilesInterval": 1,
    "deleteConsumeQueueFilesInterval": 0,
    "cleanFileForciblyEnable": True,
    "timerWheelEnable": False,
    # A busy machine is no reason to refuse a message.
    "waitTimeMillsInSendQueue": 60_000,
    "osPageCacheBusyTimeOutMills": 60_000,
}
"""A broker of small files, that deletes what is older than two days at once: 3 files five times a second."""

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


@pytest.fixture(scope="module", params=VERSIONS)
def live(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, name_server_port: int
) -> Iterator[Live]:
    work = tmp_path_factory.mktemp("live")
    with running_broker(
        work / "store",
        work / "broker",
        name_server_port,
        SETTINGS,
        main_class=CLEANS_AT_ONCE,
        version=request.param,
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
            rate=60,
            body_bytes=7000,
            seed=SEED,
        ) as load:
            yield Live(broker, make_lakes(store), load)
            load.stop()
            assert load.summary["failed"] == 0
            assert load.summary["groups"]["fast"]["failed"] == 0


def test_each_round_lets_exactly_its_prefix_go(live: Live) -> None:
    chance = random.Random(SEED)
    for number in range(ROUNDS):
        run, wanted = f"round-{number}", chance.randint(1, MOST_SEGMENTS)
        # What is fenced has to be old by then, or the next round would wait for it for two days.
        live.aged(wanted + 1 + FENCED[live.broker.version])
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
        progress = steps.flush_checkpoint(live.store, run).progress
        assert progress is not None
        assert progress.put_p99_ms is not None
        if number % 10 == 9 or number == ROUNDS - 1:
            (verified,) = verify_store(live.store, VerifyLevel.STORE)
            assert verified.overall is Status.OK, verified
            assert not wrong_in(live.store, with_lake=True)
    assert not [line for line in live.load.lines() if "failed" in line or line.get("moved") == "fast"]
    check_nothing_lost(live)


@pytest.mark.again
def test_what_nobody_tried_deletes_nothing_until_it_is_accepted(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_config, "TRIED", ("5.6",))
    found = live.broker.client.config()[broker_config.RELEASE]
    live.aged(3 + FENCED[live.broker.version])
    before = live.names()
    steps.make_plan(live.store, "untried", PlanRequest(manual=True, max_segments=2))
    steps.archive(live.store, "untried", steps.archive_jobs(live.store, "untried"))
    with pytest.raises(GateRefusedError, match=f"--accept-version {found}"):
        steps.release(live.store, "untried")
    live.broker.client.delete_expired_commitlog()
    assert live.names()[0] == before[0]
    assert live.store.live is not None
    accepting = replace(live.store, live=replace(live.store.live, accept_version=found))
    released = steps.release(accepting, "untried")
    assert [r.base_offset for r in released.deleted] == before[:2]
    assert live.names()[0] == before[2]


@pytest.mark.again
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


@pytest.fixture(scope="module")
def busy(live: Live) -> Iterator[Live]:
    """The same, held by nobody, so that it deletes the oldest of what it has all the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_hold, "FIRST_PASS_MS", 0)  # this broker's passes begin as it starts
        steps.unmanage(live.store)
    with old_ones_go(live.broker):
        deadline = time.monotonic() + 180
        while len(live.names()) > 2 * KEPT_SEGMENTS:  # until it only has to keep up with what comes in
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield live


@contextmanager
def old_ones_go(broker: Broker) -> Iterator[None]:
    done = threading.Event()
    failed: list[BaseException] = []

    def age() -> None:
        try:
            with broker.client.__class__(broker.port, broker.access) as client:
                while not done.wait(0.3):
                    segments = sorted((broker.store / "commitlog").iterdir())
                    for segment in reversed(segments[:-KEPT_SEGMENTS]):
                        # The broker may have deleted it since it was listed.
                        with suppress(FileNotFoundError):
                            os.utime(segment, (0, 0))
                    client.delete_expired_commitlog()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=age)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert not failed, failed


@pytest.mark.again
def test_validations_of_a_busy_store_find_nothing(busy: Live, tmp_path: Path) -> None:
    first = last = busy.broker.client.runtime_info()
    number, deadline = 0, time.monotonic() + 300
    # As many as were asked for, and until the broker has deleted between them.
    while number < VALIDATIONS or last.commitlog_min_offset == first.commitlog_min_offset:
        assert time.monotonic() < deadline, f"the broker deleted nothing within {number} validations"
        wrong = wrong_in(busy.store, full=number % 2 == 1, with_lake=False)
        assert not wrong, (number, wrong)
        number, last = number + 1, busy.broker.client.runtime_info()
    assert last.commitlog_min_offset > first.commitlog_min_offset
    assert last.commitlog_max_offset > first.commitlog_max_offset
    assert validate_store(busy.store, with_lake=False, output_dir=tmp_path / "out").overall is Status.OK


@pytest.mark.again
def test_lag_of_a_busy_store_can_always_be_told(busy: Live, tmp_path: Path) -> None:
    live = LiveBroker(address=busy.broker.client.address)
    asked = ConsumerLagRequest(StoreSettings(str(busy.broker.store), live=live), str(tmp_path / "table"))
    told, deadline = 0, time.monotonic() + 300
    while told < LAGS:
        ends = {topic: busy.broker.client.topic_stats(topic) for topic in ("orders", "payments")}
        table = measured(asked).to_pylist()
        rows: list[dict[str, Any]] = [row for row in table if row["group"] in ("fast", "slow")]
        assert all(row["max_offset"] >= ends[row["topic"]][row["queue_id"]].max_offset for row in rows)
        # each group begins with one queue after the other
        told += len(rows) == 16 and all(row["committed_offset"] is not None for row in rows)
        assert time.monotonic() < deadline


def wrong_in(store: ManagedStore, *, full: bool = False, with_lake: bool) -> list[CheckResult]:
    """What the rules alone find of the store, in a tenth of the time that Great Expectations takes."""
    facts = collect_facts(store, None, full=full, with_lake=with_lake)
    checks = run_suites(facts.tables, project_path("expectations"))
    return [check for check in checks if check.status is not Status.OK]


@contextmanager
def somebody_who_expires(first: Path, stays: Path) -> Iterator[None]:
    """Once ``first`` is gone, make ``stays`` as old as what may go, for as long as it is there."""
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
    sent = live.load.sent()
    min_offset = live.broker.client.runtime_info().commitlog_min_offset
    archived, served = bodies_in_lake(live.store.lake), bodies_served(live.broker)
    assert len(sent) > 50 * ROUNDS
    for message in sent:
        known = archived if message.physical_offset < min_offset else served
        assert known.get(key(message)) == message.sha256, message
    assert min_offset > 0


def key(sent: Sent) -> Key:
    return sent.topic, sent.queue_id, sent.queue_offset


def bodies_in_lake(lake: LakeConfig) -> dict[Key, str]:
    columns = ("topic", "queue_id", "queue_offset", "body")
    rows: pa.Table = open_lake(lake).messages().scan(selected_fields=columns).to_arrow()
    topics, queues, offsets, bodies = (rows.column(name).to_pylist() for name in columns)
    return {
        (topic, queue, offset): hashlib.sha256(body).hexdigest()
        for topic, queue, offset, body in zip(topics, queues, offsets, bodies, strict=True)
        if body is not None
    }


def bodies_served(broker: Broker) -> dict[Key, str]:
    found: dict[Key, str] = {}
    with ReadingAdmin(broker.client.address) as admin:
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
