"""A real broker on a store after one of our whole runs: it begins where we say, and serves all that is left.

When the run is undone, it serves all of it again.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from demo.brokers.reading import PullStatus
from storage_engine.exceptions import StoreBusyError
from storage_engine.model.plan import PlanRequest
from storage_engine.model.settings.policy import Policy
from storage_engine.retention import steps
from storage_engine.retention.quarantine.undo import undo
from storage_engine.retention.store.managed_store import ManagedStore
from tests.integration.broker import FIXTURE_SIZES, Broker, running_broker
from tests.integration.stores import Truth, file_hashes, open_store, served, unpack
from tests.lakes import make_lakes

pytestmark = pytest.mark.integration

RESERVED_HOURS = 72
RUN_KEY = "integration"
SOME, ALL_SEALED = 4, 7
"""Of the store's 8 segments; the last one is active."""


@dataclass(frozen=True)
class Cleaned:
    """A broker on a cleaned store.

    :param new_min_offset: where our run says that the log begins.
    :param dependents: number of deleted dependents by kind.
    :param gone: SHA-256 of every file that the run deleted, by its path.
    """

    store: ManagedStore
    broker: Broker
    new_min_offset: int
    dependents: dict[str, int]
    gone: dict[str, str]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(SOME, id="some-segments"),
        pytest.param(ALL_SEALED, id="all-sealed-segments", marks=pytest.mark.again),
    ],
)
def cleaned(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, name_server_port: int
) -> Iterator[Cleaned]:
    work = tmp_path_factory.mktemp("cleaned")
    root = unpack("clean-stop", work / "store")
    _let_expire(sorted((root / "commitlog").iterdir())[: request.param])
    store = ManagedStore.local(
        "clean-stop",
        str(root),
        work / "managed",
        overrides={
            **{key: str(size) for key, size in FIXTURE_SIZES.items()},
            "fileReservedTime": str(RESERVED_HOURS),
        },
        time_zone="UTC",
        policy=Policy(undo_window_hours=24),
    )
    before = _files(root)

    make_lakes(store)
    plan = steps.make_plan(store, RUN_KEY, PlanRequest(manual=True))
    steps.archive(store, RUN_KEY, steps.archive_jobs(store, RUN_KEY))
    released = steps.release(store, RUN_KEY)
    dependents = steps.clean_dependents(store, RUN_KEY)
    steps.flush_checkpoint(store, RUN_KEY)

    assert len(released.deleted) == request.param
    assert released.new_min_offset == plan.new_min_offset
    left = _files(root)
    gone = {path: digest for path, digest in before.items() if path not in left}
    assert gone
    with running_broker(root, work, name_server_port) as broker:
        yield Cleaned(store, broker, released.new_min_offset, dict(dependents.deleted), gone)


def test_broker_reports_the_new_min_offsets(cleaned: Cleaned, truth: Truth) -> None:
    client = cleaned.broker.client
    assert client.runtime_info().commitlog_min_offset == cleaned.new_min_offset
    assert {queue: client.min_offset(*queue) for queue in truth.queues} == truth.first_offsets(
        cleaned.new_min_offset
    )


def test_broker_serves_every_remaining_message_as_it_was_written(cleaned: Cleaned, truth: Truth) -> None:
    expected = truth.messages(cleaned.new_min_offset, max(truth.frames) + 1)
    assert expected
    assert served(cleaned.broker.client, expected) == expected


def test_broker_serves_nothing_that_was_deleted(cleaned: Cleaned, truth: Truth) -> None:
    client = cleaned.broker.client
    deleted = [offset for offset in truth.frames if offset < cleaned.new_min_offset]
    assert deleted
    found = {offset: frame for offset in deleted if (frame := client.view(offset)) is not None}
    # Asked for offset 0, a broker answers with the first frame it has left (CommitLog#getData).
    assert found.keys() <= {0}
    assert all(hashlib.sha256(frame).hexdigest() != truth.frames[at] for at, frame in found.items())
    for (topic, queue_id), first in truth.first_offsets(cleaned.new_min_offset).items():
        if first > min(truth.queues[topic, queue_id]):
            result = client.pull(topic, queue_id, first - 1)
            assert (result.status, result.frames, result.next_offset) == (PullStatus.OFFSET_MOVED, (), first)


def test_broker_finds_remaining_messages_by_key(cleaned: Cleaned, truth: Truth) -> None:
    for name, offsets in sorted(truth.index.items())[::40]:
        topic, _, key = name.partition("#")
        found = {hashlib.sha256(frame).hexdigest() for frame in cleaned.broker.client.query(topic, key)}
        assert found == {truth.frames[at] for at in offsets if at >= cleaned.new_min_offset}, name


def test_dependents_went_with_the_segments(cleaned: Cleaned) -> None:
    assert cleaned.dependents["consume-queue"] > 0
    assert cleaned.dependents["index"] > 0


@pytest.mark.again
def test_store_is_whole_after_the_broker_has_run_on_it_and_undone_it_is_served_again(
    cleaned: Cleaned, truth: Truth, tmp_path: Path, name_server_port: int
) -> None:
    root = cleaned.broker.store
    with pytest.raises(StoreBusyError):
        undo(cleaned.store, RUN_KEY, "ann")
    cleaned.broker.stop()
    snapshot = open_store(root).snapshot(time.time_ns() // 1_000_000)
    assert not snapshot.crashed
    assert snapshot.logs[0].min_offset == cleaned.new_min_offset
    undo(cleaned.store, RUN_KEY, "ann")
    assert cleaned.gone.items() <= _files(root).items()
    with running_broker(root, tmp_path, name_server_port) as broker:
        assert broker.client.runtime_info().commitlog_min_offset == 0
        assert {queue: broker.client.min_offset(*queue) for queue in truth.queues} == truth.first_offsets(0)
        expected = truth.messages(0, max(truth.frames) + 1)
        assert served(broker.client, expected) == expected


def _files(root: Path) -> dict[str, str]:
    return file_hashes(*(root / name for name in ("commitlog", "consumequeue", "index")))


def _let_expire(segments: list[Path]) -> None:
    long_ago = time.time() - (RESERVED_HOURS + 24) * 3600
    for segment in segments:
        os.utime(segment, (long_ago, long_ago))
