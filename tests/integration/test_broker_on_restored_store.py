"""A real broker on a store that was restored from the lake: what was archived is served again, byte for byte.

Segments alone are enough for a broker to start, to rebuild its consume queues and its index, and to find
messages by offset and by key. For pulls it wants the topics too, which it keeps in ``config/``; and without
``config/`` it takes every delayed message for one that is still to be delivered.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_engine.lake.archive import archive_all, segment_jobs
from storage_engine.lake.catalog import Lake, open_lake
from storage_engine.lake.config import LakeConfig
from storage_engine.lake.restore import Span, restore
from storage_engine.rocketmq.store import RocketMQStore
from tests.integration.broker import Broker, running_broker
from tests.integration.stores import Truth, file_hashes, open_store, served, unpack

pytestmark = pytest.mark.integration

STORE_ID = "6a1d1f0a-5d3e-4d0e-9a55-8a7a4c6b1f10"
PHYSICAL_OFFSET_AT = 28


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
    lake = open_lake(LakeConfig.local(tmp_path_factory.mktemp("lake")), create=True)
    snapshot = store.snapshot(0)
    jobs = segment_jobs(
        lake,
        snapshot.logs[0].sealed,
        store_id=STORE_ID,
        lineage=0,
        broker=snapshot.broker,
        store_root=snapshot.root,
    )
    archive_all(lake, jobs)
    return lake


@pytest.fixture(scope="module")
def bare_broker(
    lake: Lake, span: Span, tmp_path_factory: pytest.TempPathFactory, name_server_port: int
) -> Iterator[Broker]:
    """Serves a directory that holds nothing but what restore wrote."""
    work = tmp_path_factory.mktemp("bare")
    restore(lake, STORE_ID, work / "store", span=span)
    assert [path.name for path in (work / "store").iterdir()] == ["commitlog"]
    with running_broker(work / "store", work, name_server_port) as broker:
        yield broker


@pytest.fixture(scope="module")
def configured_broker(
    lake: Lake, span: Span, source: Path, tmp_path_factory: pytest.TempPathFactory, name_server_port: int
) -> Iterator[Broker]:
    """Serves a restored directory that was given the source store's ``config/`` before the first start."""
    work = tmp_path_factory.mktemp("configured")
    restore(lake, STORE_ID, work / "store", span=span)
    shutil.copytree(source / "config", work / "store" / "config")
    with running_broker(work / "store", work, name_server_port) as broker:
        yield broker


def test_broker_begins_where_the_restored_segments_begin(
    bare_broker: Broker, truth: Truth, span: Span
) -> None:
    start, end = _limits(span)
    first_offsets = {queue: min(messages) for queue, messages in truth.messages(start, end).items()}
    assert bare_broker.client.runtime_info()["commitLogMinOffset"] == str(start)
    assert {queue: bare_broker.client.min_offset(*queue) for queue in first_offsets} == first_offsets


def test_broker_finds_every_archived_message_by_its_physical_offset(
    bare_broker: Broker, truth: Truth, span: Span
) -> None:
    start, end = _limits(span)
    archived = {offset: sha256 for offset, sha256 in truth.frames.items() if start <= offset < end}
    assert archived
    assert {
        offset: hashlib.sha256(bare_broker.client.view(offset) or b"").hexdigest() for offset in archived
    } == archived


def test_broker_finds_archived_messages_by_key_in_the_index_that_it_rebuilt(
    bare_broker: Broker, truth: Truth, span: Span
) -> None:
    start, end = _limits(span)
    expected = {
        key: sorted(offset for offset in offsets if start <= offset < end)
        for key, offsets in sorted(truth.index.items())[::40]
    }
    assert any(expected.values())
    for name, offsets in expected.items():
        topic, _, key = name.partition("#")
        frames = bare_broker.client.query(topic, key)
        found = [struct.unpack_from(">q", frame, PHYSICAL_OFFSET_AT)[0] for frame in frames]
        # Beyond the restored ones the broker has those that it delivered anew itself.
        assert sorted(offset for offset in found if offset in truth.frames) == offsets, name


def test_broker_serves_every_archived_message_of_every_queue_as_it_was_written(
    configured_broker: Broker, truth: Truth, span: Span
) -> None:
    expected = truth.messages(*_limits(span))
    assert served(configured_broker.client, expected) == expected
    assert {queue: configured_broker.client.max_offset(*queue) for queue in expected} == {
        queue: max(messages) + 1 for queue, messages in expected.items()
    }


def test_broker_delivers_nothing_twice_when_it_has_the_config_of_the_source(
    configured_broker: Broker, source: Path
) -> None:
    archived = {Path(path).name: sha256 for path, sha256 in file_hashes(source / "commitlog").items()}
    restored = file_hashes(configured_broker.store / "commitlog")
    assert restored
    for path, sha256 in restored.items():
        assert sha256 == archived[Path(path).name], path


def _limits(span: Span) -> tuple[int, int]:
    assert span.from_offset is not None
    assert span.to_offset is not None
    return span.from_offset, span.to_offset
