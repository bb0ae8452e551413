"""The store that lag is measured on, small, where every figure is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import lag
from storage_engine.exceptions import StoreNotFoundError
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.retention.lag.lag_table import lag_part, merge
from storage_engine.spark import consumer_lag

QUEUES, GROUPS, DELETED = 60, 20, 3


@pytest.fixture
def request_for_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> consumer_lag.ConsumerLagRequest:
    monkeypatch.setattr(lag, "SEGMENT_BYTES", 1 << 14)
    lag.make_store(tmp_path / "store", QUEUES, GROUPS)
    for segment in sorted((tmp_path / "store" / "commitlog").iterdir())[:DELETED]:
        segment.unlink()
    return consumer_lag.ConsumerLagRequest(
        StoreSettings(str(tmp_path / "store"), time_zone="UTC"),
        str(tmp_path / "table"),
        now_ms=1_900_000_000_000,
    )


def test_figures_of_a_store_with_known_positions(
    request_for_store: consumer_lag.ConsumerLagRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_lag, "SHARE_ROWS", 7 * GROUPS)
    shares = list(consumer_lag.LagInProcess(*consumer_lag.prepare(request_for_store)))
    assert len(shares) > 5
    rows = [row for share in shares for row in share.to_pylist()]
    assert len(rows) == QUEUES * GROUPS
    log_min = DELETED << 14
    for row in rows:
        queue = int(row["topic"][-6:]) * lag.QUEUES_PER_TOPIC + row["queue_id"]
        places = (np.arange(lag.MESSAGES_PER_QUEUE) * QUEUES + queue) * lag.FRAME_BYTES
        oldest = int(np.searchsorted(places, log_min))
        assert (row["min_offset"], row["max_offset"]) == (oldest, lag.MESSAGES_PER_QUEUE)
        committed = row["committed_offset"]
        if committed is None:
            assert (row["lag_messages"], row["lag_ms"], row["next_physical_offset"]) == (None, None, None)
            continue
        following = max(committed, oldest)
        assert row["lag_messages"] == lag.MESSAGES_PER_QUEUE - committed
        assert row["lost_messages"] == max(oldest - committed, 0)
        assert row["lag_ms"] == max(lag.MESSAGES_PER_QUEUE - 1 - following, 0) * QUEUES
        caught_up = following == lag.MESSAGES_PER_QUEUE
        assert row["next_physical_offset"] == (None if caught_up else places[following])
    summary, _ = merge(map(lag_part, shares))
    assert (summary.groups, summary.queues) == (GROUPS, QUEUES)
    assert summary.unknown == sum(row["committed_offset"] is None for row in rows)
    assert summary.total_lag_messages == sum(row["lag_messages"] or 0 for row in rows)


def test_host_that_sees_another_store_or_none_is_refused(
    request_for_store: consumer_lag.ConsumerLagRequest, tmp_path: Path
) -> None:
    job, _ = consumer_lag.prepare(request_for_store)
    assert job is not None
    newest = job.newest
    consumer_lag.check_sight(newest, Path(newest.path))
    with pytest.raises(StoreNotFoundError, match="finds no file there"):
        consumer_lag.check_sight(newest, tmp_path / "nowhere")
    other = Path(newest.path).rename(tmp_path / "moved")
    Path(newest.path).write_bytes(other.read_bytes())
    with pytest.raises(StoreNotFoundError, match="found inode"):
        consumer_lag.check_sight(newest, other)
