"""Rates and times to come: exact where nothing varies, wider where it does, silent where nothing is known."""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from storage_engine.console.forecast import Forecast, RateBand, Room, TimeBand, forecast_of, store_forecast
from storage_engine.console.recorded_rules import RecordedLevels
from storage_engine.core.clock import DAY_MS, HOUR_MS
from storage_engine.journal.journal import Extent, Journal
from storage_engine.journal.reading.queries import JournalReader, Moment
from storage_engine.model.disk import DiskUsage
from tests.console.conftest import NOW_MS

GIB = 1 << 30
LEVELS = RecordedLevels(70, 75, 85, 90)
ROOM = Room(1_000 * GIB, 500 * GIB, 400 * GIB)
KEPT_MS = 80 * HOUR_MS


def looks(rates: list[int], reclaim: int = 0, kept_ms: int = KEPT_MS) -> list[Moment]:
    """Return a look an hour, with as many bytes a day as each day has."""
    found, end = [], 10_000 * GIB
    for hour in range(len(rates) * 24 + 1):
        at_ms = hour * HOUR_MS
        found.append(Moment(at_ms, at_ms - kept_ms, 9_000 * GIB + hour * reclaim // 24, end, None))
        end += rates[min(hour // 24, len(rates) - 1)] // 24
    return found


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 500), st.integers(3, 14))
def test_a_constant_rate_is_told_exactly_and_so_is_when_each_level_is_reached(gib: int, days: int) -> None:
    rate = gib * 24 * GIB
    found = forecast_of(looks([rate] * days), ROOM, LEVELS)
    assert found.enough
    assert (found.ingest, found.reclaim) == (RateBand(rate, rate, rate), RateBand(0, 0, 0))
    for one in found.time_to:
        expected = (one.level_percent - 50) * 10 * GIB * DAY_MS // rate
        assert one.low_ms == one.mid_ms == one.high_ms
        assert one.mid_ms is not None
        assert abs(one.mid_ms - expected) <= 1
    assert [one.name for one in found.time_to] == ["notice", "cleans", "forces", "refuses", "full"]
    holds_ms = (400 + 350) * GIB * DAY_MS // rate
    expected = min(KEPT_MS, holds_ms)
    assert found.retention is not None
    assert found.retention.mid_ms is not None
    assert abs(found.retention.mid_ms - expected) <= 1


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 10))
def test_more_noise_widens_the_bands_around_what_is_typical(seed: int, noise: int) -> None:
    chance = random.Random(seed)
    shares = [chance.uniform(-1, 1) for _ in range(14)]
    widths = []
    for scale in (noise, 2 * noise):
        rates = [int((100 + scale * share) * GIB) // 24 * 24 for share in shares]
        found = forecast_of(looks(rates), ROOM, LEVELS)
        assert found.ingest is not None
        assert found.ingest.low <= found.ingest.mid <= found.ingest.high
        widths.append(found.ingest.high - found.ingest.low)
        for one in found.time_to:
            assert one.low_ms is not None
            assert one.high_ms is not None
            assert one.low_ms < one.high_ms
    assert widths[0] < widths[1]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 14 * 24 - 1), min_size=1, max_size=200, unique=True))
def test_a_gap_in_the_looks_changes_no_rate(missing: list[int]) -> None:
    gone = set(missing)
    there = [one for hour, one in enumerate(looks([96 * GIB] * 14, 24 * GIB)) if hour not in gone]
    found = forecast_of(there, ROOM, LEVELS)
    if found.enough:
        assert found.ingest == RateBand(96 * GIB, 96 * GIB, 96 * GIB)
        assert found.reclaim == RateBand(24 * GIB, 24 * GIB, 24 * GIB)
        assert found.samples == len(there)


def test_what_is_reclaimed_as_fast_as_it_comes_never_fills_the_disk() -> None:
    found = forecast_of(looks([96 * GIB] * 7, 96 * GIB), ROOM, LEVELS)
    assert {one.mid_ms for one in found.time_to} == {None}
    above = forecast_of(looks([96 * GIB] * 7, 96 * GIB), Room(1_000 * GIB, 120 * GIB, 700 * GIB), LEVELS)
    assert [one.mid_ms for one in above.time_to] == [0, 0, 0, None, None]


def test_without_enough_looks_it_says_so_and_why() -> None:
    assert forecast_of([], ROOM, LEVELS) == Forecast(False, "no-samples", 0, 0)
    short = forecast_of(looks([GIB, GIB]), ROOM, LEVELS)
    assert (short.enough, short.why, short.ingest, short.time_to) == (False, "too-short", None, ())
    # A log that was put back from elsewhere begins anew each day.
    days = enumerate(looks([0] * 5)[::24])
    other = [Moment(one.at_ms, None, -day * GIB, -day * GIB, None) for day, one in days]
    assert forecast_of(other, ROOM, LEVELS).why == "another-log"


def test_where_the_disk_is_not_known_no_time_is_told_and_messages_live_as_lately() -> None:
    found = forecast_of(looks([96 * GIB] * 5), None, LEVELS)
    assert found.time_to == ()
    assert found.retention == TimeBand(KEPT_MS, KEPT_MS, KEPT_MS)


def test_a_store_is_forecast_by_its_samples(past: JournalReader) -> None:
    found = store_forecast(past, "store_payments", NOW_MS)
    assert found.enough
    assert 300 < found.samples <= 14 * 24 + 1
    assert found.ingest is not None
    # 115 GiB a day come, give or take a tenth at each look.
    assert 100 * GIB < found.ingest.low < found.ingest.high < 140 * GIB
    assert found.retention is not None
    assert found.retention.low_ms is not None
    assert found.retention.low_ms > 70 * HOUR_MS
    assert store_forecast(past, "nope", NOW_MS).why == "no-samples"


def test_where_offsets_count_records_only_the_disk_tells_rates(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/journal.db"
    journal = Journal(url)
    store_id = journal.add_store("/k/server.properties", "kafka", name="k").store_id
    for hour in range(24 * 6 + 1):
        at_ms = NOW_MS - 6 * DAY_MS + hour * HOUR_MS
        disks = [
            DiskUsage("/k/quiet", 20, 1_000 * GIB, 800 * GIB),
            DiskUsage("/k/filling", 60, 1_000 * GIB, (400 + 6 * 24 - hour) * GIB),
        ]
        journal.add_sample(store_id, disks, at_ms, extent=Extent(hour, 9 * hour, at_ms - KEPT_MS))
    found = store_forecast(JournalReader(url), "k", NOW_MS)
    assert found.enough
    assert (found.ingest, found.reclaim) == (None, None)
    assert found.net == RateBand(24 * GIB, 24 * GIB, 24 * GIB)
    (full,) = found.time_to
    assert (full.name, full.mid_ms) == ("full", 400 * HOUR_MS)
    assert found.retention == TimeBand(KEPT_MS, KEPT_MS, KEPT_MS)
    journal.add_store("/n/server.properties", "kafka", name="none")
    assert store_forecast(JournalReader(url), "none", NOW_MS).why == "no-samples"
