from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.core.clock import HOUR_MS
from storage_engine.rocketmq.hold.fence import (
    expires_at_ms,
    fence,
    fence_count,
    first_that_stay,
    lease_mtime_ns,
    stands_until_ms,
)
from storage_engine.rocketmq.hold.hold_state import HoldState, Observed, SeenFile, Touched

SIZE = 1000
START_MS = 1_790_000_000_123
MS_NS = 1_000_000


@dataclass
class SimulatedBroker:
    """A log, deleted from as a broker does it by age (MappedFileQueue#deleteExpiredFileByTime)."""

    reserved_hours: int
    batch_max: int = 10
    now_ms: int = START_MS
    mtimes_ns: dict[int, int] = field(default_factory=dict)
    end: int = 0
    state: HoldState = field(default_factory=lambda: HoldState("me", 1))

    def roll(self) -> None:
        """The active segment is full: a blank is written to its end (CommitLog#doAppend), another follows."""
        if self.mtimes_ns:
            self.mtimes_ns[self.end * SIZE] = self.now_ms * MS_NS
        self.end += 1
        self.mtimes_ns[self.end * SIZE] = self.now_ms * MS_NS

    def clean(self) -> int:
        """A pass; returns how many went."""
        gone = 0
        for base in sorted(self.mtimes_ns)[:-1]:
            if (
                self.now_ms < self.mtimes_ns[base] // MS_NS + self.reserved_hours * HOUR_MS
                or gone == self.batch_max
            ):
                break
            del self.mtimes_ns[base]
            gone += 1
        return gone

    def found(self) -> Observed:
        files = tuple(seen(base, mtime_ns) for base, mtime_ns in sorted(self.mtimes_ns.items()))
        return Observed(
            at_ms=self.now_ms,
            address="broker:10911",
            boot_timestamp_ms=1,
            min_offset=files[0].base_offset,
            max_offset=self.end * SIZE + SIZE // 2,
            settings={"deleteFileBatchMax": str(self.batch_max)},
            role="ASYNC_MASTER",
            files=files,
        )

    def guard(self, hold_hours: int) -> None:
        """What a hold does to the log, without a disk."""
        wanted = fence(self.found(), self.state, hold_hours, self.reserved_hours)
        touched = {}
        for file, mtime_ns in wanted.mtimes_ns:
            base = file.base_offset
            known = self.state.touched_at(base)
            original = file.mtime_ns if known is None else known.original_mtime_ns
            touched[base] = Touched(base, "", base, original, mtime_ns, ctime_ns=1)
            self.mtimes_ns[base] = mtime_ns
        for other in self.state.touched:
            if other.base_offset not in touched and other.base_offset in self.mtimes_ns:
                self.mtimes_ns[other.base_offset] = other.original_mtime_ns
        self.state = replace(
            self.state,
            fence_offset=wanted.offset,
            ends_at_ms=wanted.ends_at_ms,
            deletes_from_ms=wanted.deletes_from_ms,
            touched=tuple(touched.values()),
        )

    def delete_segments(self, hold_hours: int) -> tuple[set[int], set[int]]:
        """Make the older half of what is sealed as old as can be; returns what goes, and what stays."""
        offsets = sorted(self.mtimes_ns)
        goes = offsets[: len(offsets) // 2]
        self.state = replace(self.state, releasing=tuple(goes))
        self.guard(hold_hours)
        for base in reversed(goes):
            self.mtimes_ns[base] = 0
        return set(goes), set(offsets) - set(goes)


def seen(base_offset: int, mtime_ns: int, path: str = "", inode: int | None = None) -> SeenFile:
    return SeenFile(base_offset, path, base_offset if inode is None else inode, SIZE, mtime_ns, 1)


@given(
    reserved_hours=st.integers(-50, 200),
    hold_hours=st.integers(1, 72),
    batch_max=st.integers(1, 4),
    ages_hours=st.lists(st.integers(0, 400), min_size=1, max_size=15),
    events=st.lists(
        st.one_of(
            st.just("clean"),
            st.just("roll"),
            st.just("guard"),
            st.just("release"),
            st.tuples(st.integers(0, 200)),
            st.integers(1, 30 * HOUR_MS),
        ),
        max_size=40,
    ),
)
def test_a_broker_never_passes_a_fence_that_stands_whatever_its_setting_becomes(
    reserved_hours: int,
    hold_hours: int,
    batch_max: int,
    ages_hours: list[int],
    events: list[str | int | tuple[int]],
) -> None:
    broker = SimulatedBroker(reserved_hours, batch_max)
    for _ in (*ages_hours, 0):
        broker.roll()
    for base, age_hours in zip(broker.mtimes_ns, sorted(ages_hours, reverse=True), strict=False):
        broker.mtimes_ns[base] -= age_hours * HOUR_MS * MS_NS
    broker.guard(hold_hours)
    for event in events:
        # Without a segment that could be fenced, what is sealed next has its own age only.
        stands = broker.state.fence_offset >= 0 and broker.now_ms < broker.state.ends_at_ms
        match event:
            case "clean":
                gone = broker.clean()
                assert gone == 0 or not stands
            case "roll":
                broker.roll()
            case "release":
                goes, stays = broker.delete_segments(hold_hours)
                while broker.clean():
                    pass
                if broker.state.fence_offset >= 0:
                    assert stays == broker.mtimes_ns.keys()
                broker.state = replace(broker.state, releasing=())
                assert goes.isdisjoint(broker.mtimes_ns)
            case "guard":
                broker.guard(hold_hours)
                if broker.state.fence_offset >= 0:
                    assert 2 * (broker.state.ends_at_ms - broker.now_ms) >= hold_hours * HOUR_MS
            case (hours,):
                broker.reserved_hours = hours
            case int(passed_ms):
                broker.now_ms += passed_ms


@given(
    reserved_hours=st.integers(0, 100_000),
    hold_hours=st.integers(1, 1000),
    age_hours=st.integers(0, 1000),
)
def test_a_fence_ages_out_by_the_brokers_own_rule_when_nobody_renews_it(
    reserved_hours: int, hold_hours: int, age_hours: int
) -> None:
    """A dead pipeline doesn't fill the disk for ever."""
    broker = SimulatedBroker(reserved_hours)
    broker.roll()
    broker.roll()
    broker.mtimes_ns[SIZE] -= (reserved_hours + age_hours) * HOUR_MS * MS_NS
    broker.guard(hold_hours)
    assert hold_hours * HOUR_MS <= broker.state.ends_at_ms - broker.now_ms < hold_hours * HOUR_MS + 1000
    assert broker.state.deletes_from_ms == broker.state.ends_at_ms + reserved_hours * HOUR_MS
    broker.now_ms = broker.state.deletes_from_ms - 1
    assert broker.clean() == 0
    broker.now_ms += 1
    assert broker.clean() == 1


@given(
    now_ms=st.integers(0, 2**42), hold_hours=st.integers(1, 1000), reserved_hours=st.integers(-8760, 2**31)
)
def test_a_lease_is_a_whole_second_and_never_too_short(
    now_ms: int, hold_hours: int, reserved_hours: int
) -> None:
    mtime_ns = lease_mtime_ns(now_ms, hold_hours, reserved_hours)
    assert mtime_ns % 1_000_000_000 == 0
    assert 0 <= stands_until_ms(mtime_ns, reserved_hours) - now_ms - hold_hours * HOUR_MS < 1000
    assert expires_at_ms(mtime_ns, reserved_hours) >= stands_until_ms(mtime_ns, reserved_hours)


@pytest.mark.parametrize(("value", "count"), [(None, 11), ("10", 11), ("3", 4), ("0", 2), ("many", 11)])
def test_a_fence_has_one_segment_more_than_a_pass_deletes(value: str | None, count: int) -> None:
    assert fence_count({} if value is None else {"deleteFileBatchMax": value}) == count
    broker = log_of(*[100] * 20)
    found = replace(broker.found(), settings={} if value is None else {"deleteFileBatchMax": value})
    fenced = fence(found, broker.state, 24, 48).mtimes_ns
    assert [file.base_offset for file, _ in fenced] == [SIZE * (n + 1) for n in range(count)]


@pytest.mark.parametrize("gone", [0, 1, 10])
def test_one_segment_of_the_fence_is_enough(gone: int) -> None:
    """Whichever ten of the eleven somebody touches, a pass ends at the one that is left."""
    broker = log_of(*[100] * 20)
    broker.guard(24)
    for number in range(11):
        if number != gone:
            broker.mtimes_ns[SIZE * (number + 1)] = 0
    assert broker.clean() == gone
    assert broker.clean() == 0


def log_of(*mtimes_hours_ago: int) -> SimulatedBroker:
    """Sealed segments of these ages behind which an active one lies."""
    broker = SimulatedBroker(reserved_hours=48)
    for _ in (*mtimes_hours_ago, 0):
        broker.roll()
    for base, hours in zip(broker.mtimes_ns, (*mtimes_hours_ago, 0), strict=True):
        broker.mtimes_ns[base] -= hours * HOUR_MS * MS_NS
    return broker


def test_fence_is_on_the_first_segment_that_the_broker_serves() -> None:
    found = log_of(100, 100, 100).found()
    (first,) = first_that_stay(found)
    assert first.base_offset == SIZE
    (given_up,) = first_that_stay(replace(found, min_offset=2 * SIZE))
    assert given_up.base_offset == 2 * SIZE


def test_fence_stays_behind_what_is_let_go() -> None:
    broker = log_of(100, 100, 100)
    broker.guard(24)
    broker.state = replace(broker.state, releasing=(SIZE, 2 * SIZE))
    assert fence(broker.found(), broker.state, 24, 48).offset == 3 * SIZE


def test_active_segment_needs_no_fence() -> None:
    broker = log_of()
    broker.guard(24)
    assert broker.state.fence_offset == -1
    assert broker.state.ends_at_ms == broker.now_ms + 48 * HOUR_MS


def test_fence_is_never_older_than_its_segment() -> None:
    broker = log_of(-100)
    young_ns = broker.mtimes_ns[SIZE]
    broker.guard(24)
    assert broker.mtimes_ns[SIZE] == young_ns
    assert broker.state.ends_at_ms == young_ns // MS_NS


def test_lease_is_renewed_only_when_half_of_it_is_gone() -> None:
    broker = log_of(100)
    broker.guard(24)
    first_ns = broker.mtimes_ns[SIZE]
    broker.now_ms += 12 * HOUR_MS
    broker.guard(24)
    assert broker.mtimes_ns[SIZE] == first_ns
    broker.now_ms += HOUR_MS
    broker.guard(24)
    assert broker.mtimes_ns[SIZE] == first_ns + 13 * HOUR_MS * MS_NS


@pytest.mark.parametrize("hours_later", [-72, -1, 1000])
def test_fence_that_somebody_touched_is_set_again(hours_later: int) -> None:
    broker = log_of(100)
    broker.guard(24)
    set_ns = broker.mtimes_ns[SIZE]
    broker.mtimes_ns[SIZE] += hours_later * HOUR_MS * MS_NS
    broker.guard(24)
    assert broker.mtimes_ns[SIZE] == set_ns
    assert broker.state.touched[0].original_mtime_ns == (broker.now_ms - 100 * HOUR_MS) * MS_NS


def test_lease_makes_up_for_a_negative_reserved_time() -> None:
    broker = log_of(100)
    broker.guard(24)
    broker.reserved_hours = -30
    assert broker.clean() == 1  # it takes ten at once
    broker = log_of(100)
    broker.reserved_hours = -30
    broker.guard(24)
    assert broker.clean() == 0
    assert broker.state.ends_at_ms - broker.now_ms >= 24 * HOUR_MS


def test_fence_of_an_older_release_is_taken_over_with_its_first_mtimes() -> None:
    """That one had one segment, and an mtime that only its fileReservedTime made young."""
    broker = log_of(*[100] * 20)
    original_ns = broker.mtimes_ns[SIZE]
    old_ns = broker.now_ms * MS_NS - 24 * HOUR_MS * MS_NS
    broker.mtimes_ns[SIZE] = old_ns
    touched = Touched(SIZE, "", SIZE, original_ns, old_ns, ctime_ns=1)
    broker.state = HoldState("me", 1, SIZE, broker.now_ms + 24 * HOUR_MS, (touched,))
    broker.guard(24)
    assert len(broker.state.touched) == 11
    assert broker.state.touched[0].original_mtime_ns == original_ns
    broker.reserved_hours = 0
    assert broker.clean() == 0
