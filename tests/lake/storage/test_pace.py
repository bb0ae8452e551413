"""Archiving at a limit: how long it has to take, and that what comes out is the same."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.lake.archive import archive as archiving
from storage_engine.lake.archive import proving
from storage_engine.lake.archive.archive import archive_segment
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.file import source_file
from storage_engine.lake.storage.pace import LimitedPace, Pace, next_before_ms, next_share, pace_at
from tests.lake.conftest import MakeJobs

MIB = 1 << 20


class Clock:
    """A time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


def limited(bytes_per_second: int) -> tuple[LimitedPace, Clock]:
    clock = Clock()
    return LimitedPace(bytes_per_second, clock, clock.sleep), clock


@given(st.lists(st.integers(1, 64 * MIB), min_size=1, max_size=50), st.integers(1, 1 << 30))
def test_without_pauses_the_limit_is_exact(counts: list[int], bytes_per_second: int) -> None:
    pace, clock = limited(bytes_per_second)
    for count in counts:
        pace.spend(count)
    allowed = (clock.now - 1000) * bytes_per_second
    assert sum(counts) <= allowed * (1 + 1e-9) + 1
    assert sum(counts) >= allowed * (1 - 1e-9) - 1


@given(
    st.lists(st.tuples(st.integers(1, 8 * MIB), st.floats(0, 3)), min_size=1, max_size=50),
)
def test_no_span_of_time_gets_more_than_the_limit_and_a_tenth_of_a_second(
    steps: list[tuple[int, float]],
) -> None:
    pace, clock = limited(MIB)
    spent = []
    for count, pause in steps:
        clock.now += pause
        begin = clock.now
        pace.spend(count)
        spent.append((begin, clock.now, count))
    for i, (begin, _, _) in enumerate(spent):
        for j in range(i, len(spent)):
            seconds = spent[j][1] - begin
            assert sum(count for _, _, count in spent[i : j + 1]) <= (seconds + 0.1) * MIB * (1 + 1e-6) + 1


def test_time_without_work_is_not_saved_up() -> None:
    pace, clock = limited(MIB)
    clock.now += 3600
    pace.spend(10 * MIB)
    assert clock.slept == pytest.approx(10, abs=0.11)


@pytest.mark.parametrize(
    ("share", "put_p99_ms", "before_ms", "expected"),
    [
        (1.0, 11.0, 2.0, 0.5),
        (0.5, 40.0, 20.0, 0.25),
        (0.15, 1000.0, 0.0, 0.1),
        # Neither noticeably long, nor longer than before.
        (1.0, 10.0, 0.0, 1.0),
        (1.0, 30.0, 20.0, 1.0),
        (0.25, 2.0, 2.0, 0.35),
        (0.95, 2.0, 2.0, 1.0),
        (0.1, None, 2.0, 0.2),
        # How long they took before isn't known: what is noticeably long is too long.
        (1.0, 500.0, None, 0.5),
        (1.0, 10.0, None, 1.0),
    ],
)
def test_a_broker_whose_puts_take_longer_is_given_way(
    share: float, put_p99_ms: float | None, before_ms: float | None, expected: float
) -> None:
    assert next_share(share, put_p99_ms, before_ms) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("share", "put_p99_ms", "before_ms", "expected"),
    [
        (1.0, None, None, None),
        (1.0, None, 20.0, 20.0),
        (1.0, 500.0, None, 500.0),
        (1.0, 500.0, 20.0, 20.0),
        # The first look was at a busy minute.
        (1.0, 20.0, 500.0, 20.0),
        # As slow as it can be: what is seen now isn't archiving's doing.
        (0.1, 500.0, 20.0, 500.0),
    ],
)
def test_how_long_puts_take_without_archiving_is_the_least_that_was_seen(
    share: float, put_p99_ms: float | None, before_ms: float | None, expected: float | None
) -> None:
    assert next_before_ms(share, put_p99_ms, before_ms) == expected


def test_a_broker_that_gets_busy_by_itself_stops_no_archiving() -> None:
    share = 1.0
    before_ms: float | None = 2.0
    for _ in range(5):
        share, before_ms = next_share(share, 40.0, before_ms), next_before_ms(share, 40.0, before_ms)
    assert share == pytest.approx(0.1)
    assert before_ms == 40.0
    assert next_share(share, 40.0, before_ms) == pytest.approx(0.2)


_LATENCIES = st.none() | st.floats(0, 1e6)


@given(_LATENCIES, st.lists(_LATENCIES, max_size=40))
def test_the_rate_stays_between_a_tenth_and_the_limit_and_comes_back(
    before_ms: float | None, seen: list[float | None]
) -> None:
    share = 1.0
    for put_p99_ms in seen:
        last, share = share, next_share(share, put_p99_ms, before_ms)
        assert 0.1 <= share <= 1
        if put_p99_ms is None or put_p99_ms <= 10:
            assert share >= last
    for _ in range(9):
        share = next_share(share, 0.0, before_ms)
    assert share == pytest.approx(1)


def test_a_broker_is_asked_once_a_minute_until_archiving_ends() -> None:
    pace, clock = limited(MIB)
    answers = iter([2.0, 50.0, 50.0, None])
    slept = []
    with pace.following(lambda: next(answers)):
        for minute in range(4):
            clock.now = max(clock.now, 1000 + 60 * minute)
            for _ in range(2):
                before = clock.slept
                pace.spend(MIB)
                slept.append(clock.slept - before)
    # A tenth of a second of a pause is caught up on.
    assert slept == pytest.approx([1, 1, 1.9, 2, 3.9, 4, 1 / 0.35 - 0.1, 1 / 0.35])
    pace.spend(MIB)
    assert next(answers, "asked") == "asked"


def test_each_of_several_brokers_is_given_way_until_its_own_archiving_ends() -> None:
    pace, clock = limited(MIB)

    def slept() -> float:
        before = clock.slept
        pace.spend(MIB)
        return clock.slept - before

    slow, quick = iter([2.0, 50.0]), iter([2.0, 2.0])
    with ExitStack() as of_slow, ExitStack() as of_quick:
        of_slow.enter_context(pace.following(lambda: next(slow)))
        of_quick.enter_context(pace.following(lambda: next(quick)))
        clock.now += 60
        assert (slept(), slept()) == pytest.approx((1.9, 2))
        of_slow.close()
        assert slept() == pytest.approx(1)
    # None of them is asked again.
    clock.now += 60
    assert slept() == pytest.approx(0.9)


def test_a_broker_that_does_not_answer_holds_up_no_other_thread() -> None:
    pace, clock = limited(MIB)
    asks, answers = threading.Event(), threading.Event()
    first = [2.0]

    def ask() -> float:
        if first:
            return first.pop()
        asks.set()
        assert answers.wait(120)
        return 50.0

    with pace.following(ask):
        clock.now += 60
        asking = threading.Thread(target=pace.spend, args=(MIB,))
        asking.start()
        assert asks.wait(120)
        others = threading.Thread(target=pace.spend, args=(MIB,), daemon=True)
        others.start()
        others.join(120)
        is_held_up = others.is_alive()
        answers.set()
        asking.join(120)
    assert not is_held_up


def test_threads_share_one_limit() -> None:
    pace = LimitedPace(20 * MIB)

    def work() -> None:
        for _ in range(5):
            pace.spend(MIB // 2)

    threads = [threading.Thread(target=work) for _ in range(4)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began >= 0.4


def test_a_process_has_one_pace_at_a_limit_and_none_without() -> None:
    assert pace_at(MIB) is pace_at(MIB)
    assert pace_at(MIB) is not pace_at(2 * MIB)
    assert type(pace_at(None)) is Pace


def test_without_a_limit_files_are_used_as_they_are(tmp_path: Path) -> None:
    with pa.OSFile(str(tmp_path / "file"), "wb") as file, pace_at(None).writing(file) as sink:
        assert sink is file
    with pa.OSFile(str(tmp_path / "file"), "rb") as file, pace_at(None).reading(file) as source:
        assert source is file


def test_same_data_file_with_and_without_a_limit(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    # Keys of leaves are others in each file.
    job = replace(make_jobs(lake, segments[0])[0], trees=False)
    unlimited = archive_segment(job)
    limited = archive_segment(replace(job, bytes_per_second=1 << 30))
    assert limited.staged_file != unlimited.staged_file
    assert limited.data_file_sha256 == unlimited.data_file_sha256
    assert limited.sha256 == unlimited.sha256


def test_a_limit_counts_reading_writing_and_reading_back(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace, clock = limited(MIB)
    for module in (archiving, proving, source_file):
        monkeypatch.setattr(module, "pace_at", lambda _: pace)
    proven = archive_segment(make_jobs(lake, segments[0])[0])
    # The data file is written, read back for its rows, and read for its hash.
    least = segments[0].stat().st_size + 3 * proven.data_file_bytes
    assert least * 0.95 <= clock.slept * MIB <= least * 1.2


def test_at_a_limit_a_segment_that_nobody_uses_leaves_the_page_cache(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    for path in segments:
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    if not can_leave_the_cache(segments[0]):
        pytest.skip("files of this file system are nowhere but in memory")
    plain, gentle, served = segments
    with served.open("rb+") as file, mmap.mmap(file.fileno(), 0) as mapped:
        # As a broker does to send it.
        assert sum(mapped[at] for at in range(0, len(mapped), mmap.PAGESIZE)) > 0
        archive_segment(make_jobs(lake, plain)[0])
        for path in (gentle, served):
            archive_segment(replace(make_jobs(lake, path)[0], bytes_per_second=1 << 30))
        assert cached_share(plain) > 0.9
        assert cached_share(gentle) < 0.1
        assert cached_share(served) > 0.9


def can_leave_the_cache(path: Path) -> bool:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return cached_share(path) < 0.1


def cached_share(path: Path) -> float:
    """The share of a file's pages that are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    size = path.stat().st_size
    with path.open("rb") as file:
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    assert libc.mincore(address, size, pages) == 0, os.strerror(ctypes.get_errno())
    libc.munmap(address, size)
    return sum(page & 1 for page in pages.raw) / len(pages.raw) if size else 0.0
