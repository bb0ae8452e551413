"""A real broker on a store that was restored from the lake: what was archived is served again, byte for byte.

It gets nothing but what restore wrote: the segments, and what is made of them by the broker's own settings.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_engine.exceptions import StorageEngineError
from storage_engine.lake.acts.act_files import record_act
from storage_engine.lake.archive.archive import archive_all, segment_jobs
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.gc.segment_expiry import finish_acts, remove_expired
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.restore.restore_span import Span
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.model.keep.acts import ActKind, KeepDecision, decide_rule
from storage_engine.model.keep.keep_rules import Scope
from storage_engine.model.store import StoreSnapshot
from storage_engine.rocketmq.codec.frame_layout import FILLER_TOPIC
from storage_engine.rocketmq.store.store import RocketMQStore
from tests.integration.broker import BROKER_CONF, Broker, running_broker, start_again
from tests.integration.jvm import write_properties
from tests.integration.stores import Messages, Truth, file_hashes, open_store, served, unpack
from tests.lake.gc.test_thinning import EVENTS, LEDGER, thin
from tests.services.restoring import restore

pytestmark = pytest.mark.integration

STORE_ID = "6a1d1f0a-5d3e-4d0e-9a55-8a7a4c6b1f10"
PHYSICAL_OFFSET_AT = 28
REDELIVERY_SECONDS = 5
"""By then a broker without a config directory has begun to deliver delayed messages again."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("clean-stop", tmp_path_factory.mktemp("source") / "store")


@pytest.fixture(scope="module")
def store(source: Path) -> RocketMQStore:
    return open_store(source)


@pytest.fixture(scope="module")
def span(store: RocketMQStore) -> Span:
    """All sealed segments but the first, so that nothing begins at offset 0."""
    (log,) = store.snapshot(0).logs
    return Span(from_offset=log.sealed[0].end_offset, to_offset=log.sealed[-1].end_offset)


@pytest.fixture(scope="module")
def lake(store: RocketMQStore, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake that has every sealed segment of the store."""
    lake = make_lake(LakeConfig.local(tmp_path_factory.mktemp("lake")))
    _archive(lake, store.snapshot(0))
    return lake


@pytest.fixture(scope="module")
def broker(
    lake: Lake, span: Span, tmp_path_factory: pytest.TempPathFactory, name_server_port: int
) -> Iterator[Broker]:
    """Has served for a while, and looks for undecided half messages all the time."""
    work = tmp_path_factory.mktemp("restored")
    restore(lake, STORE_ID, work / "store", span=span, serving=[_conf(work)])
    impatient = {"transactionCheckInterval": 500, "transactionTimeOut": 500}
    with running_broker(work / "store", work, name_server_port, impatient) as broker:
        time.sleep(REDELIVERY_SECONDS)
        yield broker


@pytest.mark.again
def test_broker_begins_where_the_restored_segments_begin(broker: Broker, truth: Truth, span: Span) -> None:
    start, end = _limits(span)
    first_offsets = {queue: min(messages) for queue, messages in truth.messages(start, end).items()}
    assert broker.client.runtime_info().commitlog_min_offset == start
    assert {queue: broker.client.min_offset(*queue) for queue in first_offsets} == first_offsets


@pytest.mark.again
def test_broker_finds_every_archived_message_by_its_physical_offset(
    broker: Broker, truth: Truth, span: Span
) -> None:
    start, end = _limits(span)
    archived = {offset: sha256 for offset, sha256 in truth.frames.items() if start <= offset < end}
    assert archived
    assert {
        offset: hashlib.sha256(broker.client.view(offset) or b"").hexdigest() for offset in archived
    } == archived


@pytest.mark.again
def test_broker_finds_archived_messages_by_key_in_the_index(broker: Broker, truth: Truth, span: Span) -> None:
    start, end = _limits(span)
    expected = {
        key: sorted(offset for offset in offsets if start <= offset < end)
        for key, offsets in sorted(truth.index.items())[::40]
    }
    assert any(expected.values())
    for name, offsets in expected.items():
        topic, _, key = name.partition("#")
        frames = broker.client.query(topic, key)
        found = [struct.unpack_from(">q", frame, PHYSICAL_OFFSET_AT)[0] for frame in frames]
        assert sorted(found) == offsets, name


def test_broker_serves_every_archived_message_of_every_queue_as_it_was_written(
    broker: Broker, truth: Truth, span: Span
) -> None:
    expected = truth.messages(*_limits(span))
    assert served(broker.client, expected) == expected
    assert {queue: broker.client.max_offset(*queue) for queue in expected} == {
        queue: max(messages) + 1 for queue, messages in expected.items()
    }


def test_broker_delivers_nothing_again(broker: Broker, source: Path, truth: Truth, span: Span) -> None:
    pending = {topic for topic, _ in truth.messages(*_limits(span))}
    assert {"SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC"} <= pending
    archived = {Path(path).name: sha256 for path, sha256 in file_hashes(source / "commitlog").items()}
    restored = file_hashes(broker.store / "commitlog")
    assert restored
    for path, sha256 in restored.items():
        assert sha256 == archived[Path(path).name], path


@pytest.mark.again
def test_broker_has_the_queues_of_batches_as_such(
    tmp_path: Path, name_server_port: int, ground_truth: Callable[[str, str], Any]
) -> None:
    source = unpack("cqext-batchcq", tmp_path / "source")
    lake = make_lake(LakeConfig.local(tmp_path / "lake"))
    snapshot = open_store(source).snapshot(0)
    _archive(lake, snapshot)
    restore(lake, STORE_ID, tmp_path / "store", serving=[_conf(tmp_path)])
    end = snapshot.logs[0].sealed[-1].end_offset
    expected: dict[tuple[str, int], int] = {}
    for entry in ground_truth("cqext-batchcq", "batchconsumequeue"):
        if entry["offset"] < end:
            queue = (entry["topic"], entry["queue"])
            expected[queue] = max(expected.get(queue, 0), entry["msgBaseOffset"] + entry["batchSize"])
    assert expected
    # Asked how it is, a broker walks its whole timer wheel.
    without_timers = {"timerWheelEnable": False}
    with running_broker(tmp_path / "store", tmp_path, name_server_port, without_timers) as broker:
        assert {queue: broker.client.max_offset(*queue) for queue in expected} == expected


def _archive(lake: Lake, snapshot: StoreSnapshot) -> None:
    jobs = segment_jobs(
        lake,
        snapshot.logs[0].sealed,
        store_id=STORE_ID,
        lineage=0,
        broker=snapshot.broker,
        store_root=snapshot.root,
    )
    archive_all(lake, jobs)


def _conf(work: Path) -> Path:
    """Write what the broker says of its files, before it is there."""
    path = work / "serving.conf"
    write_properties(path, BROKER_CONF)
    return path


def _limits(span: Span) -> tuple[int, int]:
    assert span.from_offset is not None
    assert span.to_offset is not None
    return span.from_offset, span.to_offset


@pytest.mark.again
def test_broker_serves_what_is_left_behind_what_expired(
    store: RocketMQStore, truth: Truth, tmp_path: Path, name_server_port: int
) -> None:
    lake = make_lake(LakeConfig.local(tmp_path / "lake"))
    _archive(lake, store.snapshot(0))
    gone = receipts(lake, STORE_ID)[2]
    acts = record_act(lake, lambda acts: decide_rule(acts, Scope(), "0 days"))
    files, policy = gone.proven_files, acts[-1].sha256
    expiry = KeepDecision(ActKind.EXPIRE, policy=policy, segments=(gone.identity,), files=files)
    record_act(lake, lambda _: expiry)
    finish_acts(lake)
    assert remove_expired(lake, trash_ms=0) == files
    with pytest.raises(StorageEngineError) as refused:
        restore(lake, STORE_ID, tmp_path / "whole", serving=[_conf(tmp_path)])
    assert f"[{gone.base_offset}, {gone.end})" in str(refused.value)
    (log,) = store.snapshot(0).logs
    behind = Span(from_offset=gone.end, to_offset=log.sealed[-1].end_offset)
    restore(lake, STORE_ID, tmp_path / "store", span=behind, serving=[_conf(tmp_path)])
    expected = truth.messages(*_limits(behind))
    without_timers = {"timerWheelEnable": False}
    with running_broker(tmp_path / "store", tmp_path, name_server_port, without_timers) as broker:
        assert broker.client.runtime_info().commitlog_min_offset == gone.end
        assert served(broker.client, expected) == expected


def test_broker_serves_what_stays_of_thinned_segments_and_takes_their_filler(
    store: RocketMQStore, truth: Truth, tmp_path: Path, name_server_port: int
) -> None:
    lake = make_lake(LakeConfig.local(tmp_path / "lake"))
    _archive(lake, store.snapshot(0))
    partly = receipts(lake, STORE_ID)[:3]
    thin(lake, partly, EVENTS, LEDGER)
    # A light queue has messages of several topics.
    settings: dict[str, object] = {
        "enableLmq": False,
        "enableMultiDispatch": False,
        "timerWheelEnable": False,
    }
    conf = tmp_path / "serving.conf"
    write_properties(conf, {**BROKER_CONF, **settings})
    restore(lake, STORE_ID, tmp_path / "store", serving=[conf], with_filler=True)
    end = store.snapshot(0).logs[0].sealed[-1].end_offset
    expected: Messages = {
        queue: {
            offset: sha256
            for offset, sha256 in messages.items()
            if queue[0] not in (EVENTS, LEDGER) or truth.queues[queue][offset] >= partly[-1].end
        }
        for queue, messages in truth.messages(0, end).items()
        if not queue[0].startswith("%LMQ%")
    }
    expected = {queue: messages for queue, messages in expected.items() if messages}
    before = file_hashes(tmp_path / "store" / "commitlog")
    noted = json.loads((tmp_path / "store" / ".storage-engine" / "filled.json").read_text())["segments"]
    assert [it["sha256"] for it in noted] == list(before.values())[:3]
    with running_broker(tmp_path / "store", tmp_path, name_server_port, settings) as broker:
        _check_served(broker, expected)
        # It makes its queues again, of a log of which it trusts nothing.
        for from_all in (False, True):
            broker.java.kill()
            if from_all:
                for name in ("consumequeue", "index", "checkpoint"):
                    path = tmp_path / "store" / name
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            start_again(broker, tmp_path, name_server_port)
            _check_served(broker, expected)
    assert {path: before[path] for path in before} == {
        path: sha256
        for path, sha256 in file_hashes(tmp_path / "store" / "commitlog").items()
        if path in before
    }


def _check_served(broker: Broker, expected: Messages) -> None:
    assert broker.client.runtime_info().commitlog_min_offset == 0
    assert served(broker.client, expected) == expected
    for queue, messages in expected.items():
        # In a log that begins at 0 a broker takes the empty entries before a queue's first for entries.
        start = broker.client.min_offset(*queue)
        assert start <= min(messages)
        found = broker.client.pull(*queue, start)
        assert hashlib.sha256(found.frames[0]).hexdigest() == messages[min(messages)]
    assert not (broker.store / "consumequeue" / FILLER_TOPIC).exists()
