"""A real broker on a store that was cleaned and undone serves all of it again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_engine.exceptions import StoreBusyError
from storage_engine.model.plan import PlanRequest
from storage_engine.model.policy import ArchiveMode, Policy
from storage_engine.retention import steps
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.retention.quarantine.undo import undo
from tests.integration.broker import FIXTURE_SIZES, Broker, running_broker
from tests.integration.stores import Truth, file_hashes, served, unpack

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def undone(tmp_path_factory: pytest.TempPathFactory, name_server_port: int) -> Iterator[Broker]:
    """A broker that has run on the cleaned store, and runs again after the undo."""
    work = tmp_path_factory.mktemp("undone")
    root = unpack("clean-stop", work / "store")
    long_ago = time.time() - 100 * 3600
    for segment in (root / "commitlog").iterdir():
        os.utime(segment, (long_ago, long_ago))
    before = _files(root)
    store = ManagedStore.local(
        "clean-stop",
        str(root),
        work / "managed",
        overrides={key: str(size) for key, size in FIXTURE_SIZES.items()},
        time_zone="UTC",
        policy=Policy(ArchiveMode.OFF, undo_window_hours=24),
    )
    steps.make_plan(store, "r", PlanRequest(manual=True, max_segments=4))
    assert len(steps.release(store, "r").deleted) == 4
    steps.clean_dependents(store, "r")
    gone = {path: digest for path, digest in before.items() if path not in _files(root)}
    assert gone
    with running_broker(root, work, name_server_port) as between:
        assert between.client.runtime_info().commitlog_min_offset == 4 << 20
        with pytest.raises(StoreBusyError):
            undo(store, "r", "ann")
        between.stop()
    undo(store, "r", "ann")
    assert gone.items() <= _files(root).items()
    with running_broker(root, work, name_server_port) as broker:
        yield broker


def test_broker_serves_every_message_again(undone: Broker, truth: Truth) -> None:
    assert undone.client.runtime_info().commitlog_min_offset == 0
    assert {queue: undone.client.min_offset(*queue) for queue in truth.queues} == truth.first_offsets(0)
    expected = truth.messages(0, max(truth.frames) + 1)
    assert served(undone.client, expected) == expected


def _files(root: Path) -> dict[str, str]:
    return file_hashes(*(root / name for name in ("commitlog", "consumequeue", "index")))
