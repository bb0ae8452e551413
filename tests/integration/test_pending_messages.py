"""What a real broker owes, told from its files: compared with what was sent to it, and kept by the policy."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage_engine.model.broker.broker_store import Pending, PendingKind
from storage_engine.model.plan import PlanRequest, Reason
from storage_engine.model.settings.policy import PendingPolicy, Policy
from storage_engine.retention import steps
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.format.stored_files import ATTEMPTS
from storage_engine.rocketmq.pending import pending
from tests.integration.broker import FIXTURE_SIZES, Broker, running_broker
from tests.integration.remoting import SUCCESS, RemotingClient
from tests.integration.stores import open_store
from tests.lakes import make_lakes

pytestmark = [pytest.mark.integration, pytest.mark.again]

TOPIC, GROUP = "payments", "pg_payments"
SEGMENT_BYTES = FIXTURE_SIZES["mappedFileSizeCommitLog"]
SEND_MESSAGE, UPDATE_AND_CREATE_TOPIC, END_TRANSACTION = 10, 17, 37
PREPARED, COMMIT, ROLLBACK = 4, 8, 12
TEN_MINUTES, TWO_HOURS = (14, 600_000), (18, 7_200_000)
"""Delay levels and their delays in ms (messageDelayLevel)."""
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Sent:
    """A message that the broker took.

    :param offset: its physical offset.
    :param due_ms: earliest and latest time at which it may be due.
    """

    offset: int
    queue_offset: int
    transaction_id: str
    due_ms: tuple[int, int] = (0, 0)


@dataclass
class Truth:
    """What must be pending, by kind."""

    delayed: tuple[Sent, ...] = ()
    timers: tuple[Sent, ...] = ()
    halves: tuple[Sent, ...] = ()

    def of(self, kind: PendingKind) -> tuple[Sent, ...]:
        by_kind = {
            PendingKind.DELAYED: self.delayed,
            PendingKind.TIMER: self.timers,
            PendingKind.HALF: self.halves,
        }
        return by_kind[kind]


@dataclass(frozen=True)
class Stopped:
    """A store whose broker was stopped while it pending messages.

    :param live: what was computed from its files while it still ran.
    :param meanwhile: what was computed while messages came in, each with what was pending for long before.
    """

    root: Path
    truth: Truth
    live: tuple[Pending, ...]
    meanwhile: list[tuple[Truth, tuple[Pending, ...]]]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, name_server_port: int) -> Stopped:
    work = tmp_path_factory.mktemp("owed")
    soon = {"flushDelayOffsetInterval": 1000, "timerFlushIntervalMs": 1000}
    with running_broker(work / "store", work, name_server_port, soon) as broker:
        answer = broker.client.call(
            UPDATE_AND_CREATE_TOPIC,
            topic=TOPIC,
            defaultTopic="TBW102",
            readQueueNums=1,
            writeQueueNums=1,
            perm=6,
            topicFilterType="SINGLE_TAG",
            topicSysFlag=0,
            order=False,
        )
        assert answer.code == SUCCESS
        truth = Truth()
        meanwhile = []
        with ThreadPoolExecutor(1) as sender:
            sending = sender.submit(_send_everything, broker.client, truth)
            while not sending.done():
                before = copy(truth)
                meanwhile.append((before, _pending(broker.store, attempts=ATTEMPTS)))
            sending.result()
        _wait_until_short_ones_are_delivered(broker)
        live = _pending(broker.store)
        broker.stop()
    return Stopped(broker.store, truth, live, meanwhile)


def test_a_stopped_store_owes_exactly_what_was_sent_and_not_delivered(stopped: Stopped) -> None:
    for found in _pending(stopped.root):
        expected = stopped.truth.of(found.kind)
        assert (found.error, found.count, found.lost) == ("", len(expected), 0), found
        assert found.first_offset == min(message.offset for message in expected), found


def test_due_times_are_those_that_were_asked_for(stopped: Stopped) -> None:
    by_kind = {found.kind: found for found in _pending(stopped.root)}
    for kind in (PendingKind.DELAYED, PendingKind.TIMER):
        found, expected = by_kind[kind], stopped.truth.of(kind)
        assert found.first_due_ms is not None
        assert found.last_due_ms is not None
        first, last = (choose(message.due_ms for message in expected) for choose in (min, max))
        assert first[0] <= found.first_due_ms <= first[1]
        assert last[0] <= found.last_due_ms <= last[1]
    assert by_kind[PendingKind.HALF].last_due_ms is None


def test_beside_a_running_broker_never_too_little_is_found(stopped: Stopped) -> None:
    for found in stopped.live:
        expected = stopped.truth.of(found.kind)
        assert found.error == "", found
        assert (found.count or 0) >= len(expected), found
        assert found.first_offset is not None
        assert found.first_offset <= min(message.offset for message in expected), found


def test_while_messages_come_in_all_that_were_there_before_are_found(stopped: Stopped) -> None:
    assert len(stopped.meanwhile) > 5
    for before, found_then in stopped.meanwhile:
        for found in found_then:
            expected = before.of(found.kind)
            assert found.error == "", found
            assert (found.count or 0) >= len(expected), found
            first = min((message.offset for message in expected), default=None)
            assert first is None or (found.first_offset is not None and found.first_offset <= first), found


def test_what_block_keeps_the_broker_can_still_deliver(
    stopped: Stopped, tmp_path: Path, name_server_port: int
) -> None:
    long_ago = time.time() - 100 * 3600
    for segment in (stopped.root / "commitlog").iterdir():
        os.utime(segment, (long_ago, long_ago))
    store = ManagedStore.local(
        "owed",
        str(stopped.root),
        tmp_path / "managed",
        overrides={key: str(size) for key, size in FIXTURE_SIZES.items()},
        time_zone="UTC",
        policy=Policy(pending_policy=PendingPolicy.BLOCK),
    )
    make_lakes(store)
    first = min(message.offset for kind in PendingKind for message in stopped.truth.of(kind))
    steps.make_plan(store, "r", PlanRequest(manual=True))
    plan = steps.recorded_plan(store, "r")
    assert plan.new_min_offsets["commitlog"] == first // SEGMENT_BYTES * SEGMENT_BYTES > 0
    assert {d.reason for d in plan.decisions if not d.deletes} == {Reason.PENDING_BLOCKED, Reason.ACTIVE}
    steps.archive(store, "r", steps.archive_jobs(store, "r"))
    assert steps.release(store, "r").new_min_offset == plan.new_min_offsets["commitlog"]
    steps.clean_dependents(store, "r")
    with running_broker(stopped.root, tmp_path / "again", name_server_port) as broker:
        served = broker.client.max_offset(TOPIC, 0)
        _decide(broker.client, stopped.truth.halves[0], COMMIT)
        deadline = time.monotonic() + 120
        while broker.client.max_offset(TOPIC, 0) == served and time.monotonic() < deadline:
            time.sleep(0.1)
        assert broker.client.max_offset(TOPIC, 0) == served + 1
        for kind in PendingKind:
            for message in stopped.truth.of(kind):
                assert broker.client.view(message.offset) is not None


def _send_everything(client: RemotingClient, truth: Truth) -> None:
    """Pending messages of each kind in segments of their own, behind one that owes nothing.

    :param truth: gets them one by one, as a new tuple each time.
    """
    _fill_segment(client)
    _send(client, DELAY=1)
    for level, delay_ms in (TWO_HOURS, TEN_MINUTES, TEN_MINUTES):
        truth.delayed = (*truth.delayed, _send(client, delay_ms, DELAY=level))
    _fill_segment(client)
    now_ms = time.time_ns() // 10**6
    _send(client, TIMER_DELIVER_MS=now_ms + 2000)
    for due_ms in (now_ms + 2 * HOUR_MS, now_ms + HOUR_MS):
        sent = _send(client, TIMER_DELIVER_MS=due_ms)
        timer = Sent(sent.offset, sent.queue_offset, "", (due_ms - 1000, due_ms))
        truth.timers = (*truth.timers, timer)
    # Beyond the wheel's two days: it comes up after one, and is written again.
    rolls_ms = now_ms + 24 * HOUR_MS
    sent = _send(client, TIMER_DELIVER_MS=now_ms + 60 * HOUR_MS)
    timer = Sent(sent.offset, sent.queue_offset, "", (rolls_ms - 2000, rolls_ms + 5000))
    truth.timers = (*truth.timers, timer)
    _fill_segment(client)
    halves = [
        _send(client, sys_flag=PREPARED, TRAN_MSG=True, PGROUP=GROUP, UNIQ_KEY=f"{i:032X}") for i in range(6)
    ]
    for half, decision in zip(halves[:4], (COMMIT, ROLLBACK, COMMIT, ROLLBACK), strict=True):
        _decide(client, half, decision)
    truth.halves = tuple(halves[4:])
    _fill_segment(client)


def _fill_segment(client: RemotingClient) -> None:
    """Send until a new segment begins."""
    first = last = _send(client, size_bytes=SEGMENT_BYTES // 4).offset // SEGMENT_BYTES
    while last == first:
        last = _send(client, size_bytes=SEGMENT_BYTES // 4).offset // SEGMENT_BYTES


def _send(
    client: RemotingClient,
    delay_ms: int = 0,
    *,
    size_bytes: int = 100,
    sys_flag: int = 0,
    **properties: object,
) -> Sent:
    pairs = {"WAIT": "true"} | {
        name: str(value).lower() if value is True else str(value) for name, value in properties.items()
    }
    before_ms = time.time_ns() // 10**6
    answer = client.call(
        SEND_MESSAGE,
        body=os.urandom(size_bytes),
        producerGroup=GROUP,
        topic=TOPIC,
        defaultTopic="TBW102",
        defaultTopicQueueNums=4,
        queueId=0,
        sysFlag=sys_flag,
        bornTimestamp=before_ms,
        flag=0,
        properties="".join(f"{name}\x01{value}\x02" for name, value in pairs.items()),
        reconsumeTimes=0,
        unitMode=False,
        batch=False,
    )
    assert answer.code == SUCCESS, answer
    # An offset message id is host 4, port 4, physical offset 8 (MessageDecoder#createMessageId).
    offset = int(answer.fields["msgId"][16:], 16)
    due_ms = (before_ms + delay_ms, time.time_ns() // 10**6 + delay_ms)
    return Sent(offset, int(answer.fields["queueOffset"]), answer.fields.get("transactionId", ""), due_ms)


def _decide(client: RemotingClient, half: Sent, decision: int) -> None:
    answer = client.call(
        END_TRANSACTION,
        topic=TOPIC,
        producerGroup=GROUP,
        tranStateTableOffset=half.queue_offset,
        commitLogOffset=half.offset,
        commitOrRollback=decision,
        fromTransactionCheck=False,
        msgId=half.transaction_id,
        transactionId=half.transaction_id,
    )
    assert answer.code == SUCCESS, answer


def _wait_until_short_ones_are_delivered(broker: Broker) -> None:
    """Until only what is far away is left in the files, which are behind the broker by seconds."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if all(found.count is not None and found.count <= 3 for found in _pending(broker.store)):
            return
        time.sleep(0.5)
    raise AssertionError(f"still pending: {_pending(broker.store)}")


def _pending(root: Path, attempts: int = 1) -> tuple[Pending, ...]:
    return pending(open_store(root).layout, attempts=attempts)
