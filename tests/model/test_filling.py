"""In how long a disk is above a level is told alike by the list, a store's page, doctor and a hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage_engine.console.forecast import Room, forecast_of
from storage_engine.console.recorded_rules import RecordedLevels, Rules
from storage_engine.console.stores import _time_to_full
from storage_engine.core.clock import DAY_MS, HOUR_MS
from storage_engine.journal.reading.queries import Moment
from storage_engine.journal.reading.store_summaries import DiskLevel
from storage_engine.model.disk import DiskUsage, fills_in_ms, room_of_disks
from storage_engine.retention.doctor.space_and_time import growth_of
from storage_engine.rocketmq.hold.hold_state import HoldState, Observed, SeenFile
from storage_engine.rocketmq.live.status import fills_before
from tests.retention.doctor.stores import GIB, NOW_MS, disk, figures, log_of

LEVELS = RecordedLevels(refuses_percent=90)


def test_disks_count_once_and_an_unknown_one_makes_the_room_unknown() -> None:
    assert room_of_disks([disk(50)], 90) == 40 * GIB
    assert room_of_disks([disk(50), disk(50, path="/s/other")], 90) == 40 * GIB
    assert room_of_disks([disk(50), disk(80, device=2)], 90) == 50 * GIB
    assert room_of_disks([disk(95)], 90) == 0
    assert room_of_disks([disk(50), disk(None)], 90) is None
    assert room_of_disks([], 90) is None


@given(room=st.integers(0, 1 << 60), per_day=st.integers(-5, 1 << 50))
def test_what_grows_fills_its_room_in_just_that_time(room: int, per_day: int) -> None:
    found = fills_in_ms(room, per_day)
    if room == 0:
        assert found == 0
    elif per_day <= 0:
        assert found is None
    else:
        assert found is not None
        assert found * per_day <= room * DAY_MS < (found + 1) * per_day


@given(
    room=st.integers(1, 1000),
    per_ms=st.integers(1, 5),
    leaving=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 300)), max_size=6).map(sorted),
    goes_after_ms=st.none() | st.integers(1, 800),
)
def test_what_goes_meanwhile_makes_room_at_its_time(
    room: int, per_ms: int, leaving: list[tuple[int, int]], goes_after_ms: int | None
) -> None:
    """Against a walk, a millisecond at a time."""
    expected = None
    for now_ms in range(5000):
        # What goes at a moment makes room behind it.
        gone = sum(size for at_ms, size in leaving if at_ms < now_ms)
        if per_ms * now_ms > room + gone:
            expected = now_ms - 1
            break
        if goes_after_ms is not None and now_ms > goes_after_ms:
            break
    found = fills_in_ms(room, per_ms, 1, leaving, goes_after_ms=goes_after_ms)
    assert (found is None) is (expected is None or expected == goes_after_ms)
    if found is not None and expected is not None:
        assert found - 1 <= expected <= found


@given(total_gib=st.integers(200, 4000), free_percent=st.integers(12, 90), goes=st.booleans())
def test_list_page_doctor_and_hold_say_the_same_of_one_course(
    total_gib: int, free_percent: int, goes: bool
) -> None:
    """A segment comes each hour; each goes after three days, or none does."""
    total, size = total_gib * GIB, GIB
    usable = total * free_percent // 100
    now = DiskUsage("/s/log", 100 - free_percent, total, usable, device=1)
    hours = 15 * 24
    end = hours * size
    net = 0 if goes else size
    expected = fills_in_ms(room_of_disks([now], 90) or 0, net * 24)

    level = DiskLevel(
        "/s/log", 100 - free_percent, total, usable, "", NOW_MS, usable + 24 * net, NOW_MS - DAY_MS
    )
    _, listed = _time_to_full([level], Rules(NOW_MS, levels=LEVELS))

    moments = [
        Moment(NOW_MS - ago * HOUR_MS, None, end - (ago + 72) * size if goes else 0, end - ago * size, None)
        for ago in range(14 * 24, -1, -1)
    ]
    (refuses, _) = forecast_of(moments, Room(total, usable, end), LEVELS).time_to

    samples = [(one.at_ms, one.max_offset or 0) for one in moments]
    ages = [float(ago) for ago in range(72 if goes else hours, 0, -1)]
    log = log_of(ages)
    looked = figures(log, now, growth=growth_of(samples, (log,), NOW_MS))
    if not goes:
        looked = figures(log, now, growth=looked.growth, deletes_at_ms={})

    assert listed == expected
    assert refuses.mid_ms == expected
    assert looked.full_in_ms == expected
    if not goes:
        files = tuple(
            SeenFile(n * size, f"/{n}", n, size, round(NOW_MS - age * HOUR_MS) * 10**6, 1)
            for n, age in enumerate(ages)
        )
        seen = Observed(NOW_MS, "a", 1, 0, len(files) * size + size, {}, "ASYNC_MASTER", files)
        assert expected is not None
        for margin_ms in (-HOUR_MS, HOUR_MS):
            held = HoldState("me", 1, deletes_from_ms=NOW_MS + expected + margin_ms)
            assert fills_before(seen, held, [now], 90) is (margin_ms > 0)
