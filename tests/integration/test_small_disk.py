"""A real broker on a small disk deletes, refuses writes and recovers at the simulated levels."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from storage_engine.core.clock import DAY_MS
from storage_engine.model.disk import percent_rounded_up
from storage_engine.model.simulation import Course, CourseStart, Ingest
from storage_engine.rocketmq.simulation import RULES
from tests.full_disks import small_disk
from tests.integration.broker import CLEANS_AT_ONCE, running_broker
from tests.integration.load import Load, running_load

pytestmark = [pytest.mark.integration, pytest.mark.again]

MIB = 1 << 20
DISK_BYTES = 256 * MIB
OTHER_BYTES = 160 * MIB
SEGMENT_BYTES = MIB
BODY_BYTES = 32 * 1024
SETTINGS: Mapping[str, str] = {
    "deleteWhen": "99",
    "fileReservedTime": "72",
    "diskMaxUsedSpaceRatio": "75",
    "cleanFileForciblyEnable": "true",
    "deleteFileBatchMax": "1",
    "deleteCommitLogFilesInterval": "100",
    "cleanResourceInterval": "500",
}
"""A pass each half second that takes one file: 2 MiB/s go at most."""


@dataclass(frozen=True)
class Look:
    at_ms: int
    used_bytes: int
    percent: int
    files: tuple[str, ...]


@dataclass
class Watch:
    """Looks at a store's disk and files all the while."""

    store: Path
    looks: list[Look] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[None]:
        ends = threading.Event()

        def look() -> None:
            while not ends.wait(0.02):
                files = tuple(sorted(path.name for path in (self.store / "commitlog").iterdir()))
                usage = shutil.disk_usage(self.store)
                percent = percent_rounded_up(usage.used, usage.used + usage.free)
                self.looks.append(Look(time.time_ns() // 10**6, usage.used, percent, files))

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()

    def deletions(self) -> list[tuple[Look, Look]]:
        """The looks before and after each file that went."""
        return [(one, two) for one, two in pairwise(self.looks) if one.files and one.files[0] < two.files[0]]

    def since(self, at_ms: int) -> list[Look]:
        return [look for look in self.looks if look.at_ms >= at_ms]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    target = tmp_path / "disk"
    target.mkdir()
    with small_disk(target, DISK_BYTES):
        (target / "others").write_bytes(bytes(OTHER_BYTES))
        yield target


def test_a_broker_whose_load_outruns_its_cleaning_refuses_writes_and_recovers_as_simulated(
    disk: Path, tmp_path: Path, name_server_port: int
) -> None:
    watch, load = _run(disk, tmp_path, name_server_port, SETTINGS, mib_a_second=4, seconds=60)
    levels = RULES.levels(SETTINGS)
    refused = _refused(load)

    # It takes the first file at the first pass above the level, and none before.
    first = watch.deletions()[0][0]
    assert levels.forces_percent is not None
    assert levels.forces_percent < first.percent <= levels.forces_percent + 2
    # Writes are refused above 90 %, and accepted again at 85 %, not in between.
    assert len(refused) >= 2
    for from_ms, until_ms in refused:
        assert _near(watch, from_ms) > levels.refuses_percent - 1
        assert abs(_near(watch, until_ms) - levels.forces_percent) <= 1

    simulated = _simulated(watch, load, SETTINGS)
    # Both take the same while from the first level to the second, and back: by half a second a pass.
    spans = list(simulated.refused)
    assert abs(len(spans) - len(refused)) <= 1
    for (from_ms, until_ms), (began_ms, ended_ms) in zip(spans, refused, strict=False):
        assert until_ms - from_ms == pytest.approx(ended_ms - began_ms, abs=2_500)
    assert spans[0][0] == pytest.approx(refused[0][0], abs=4_000)
    highest = max(look.percent for look in watch.looks)
    assert abs(simulated.summary.highest_percent - highest) <= 1
    gone = len(watch.deletions())
    assert simulated.summary.deleted_segments == pytest.approx(gone, rel=0.2, abs=3)
    assert simulated.summary.unexpired_segments == simulated.summary.deleted_segments


@pytest.mark.parametrize(
    ("changed", "plateau"),
    [
        pytest.param({"deleteFileBatchMax": "10"}, "forces_percent", id="by-force"),
        pytest.param({"fileReservedTime": "0"}, "cleans_percent", id="for-space"),
    ],
)
def test_a_broker_under_even_load_stays_at_its_level_as_simulated(
    disk: Path, tmp_path: Path, name_server_port: int, changed: Mapping[str, str], plateau: str
) -> None:
    settings = {**SETTINGS, **changed}
    watch, load = _run(disk, tmp_path, name_server_port, settings, mib_a_second=1, seconds=60)
    level = getattr(RULES.levels(settings), plateau)

    first = watch.deletions()[0][0]
    assert level < first.percent <= level + 1
    batch = int(settings["deleteFileBatchMax"])
    lowest = level - batch * SEGMENT_BYTES * 100 // DISK_BYTES - 1
    assert all(lowest <= look.percent <= level + 1 for look in watch.since(first.at_ms))
    assert _refused(load) == []

    simulated = _simulated(watch, load, settings)
    later = [
        used
        for at_ms, used in zip(simulated.times_ms, simulated.used_percent, strict=True)
        if at_ms > first.at_ms
    ]
    assert lowest <= min(later)
    assert max(later) <= level + 1
    assert simulated.deletions[0].at_ms == pytest.approx(first.at_ms, abs=4_000)
    assert simulated.summary.deleted_segments == pytest.approx(len(watch.deletions()), rel=0.2, abs=batch + 1)
    assert simulated.refused == ()


def _run(
    disk: Path,
    work: Path,
    name_server_port: int,
    settings: Mapping[str, str],
    *,
    mib_a_second: int,
    seconds: int,
) -> tuple[Watch, Load]:
    """A broker under load for so long after its first deletion could be."""
    conf = {
        **settings,
        "mappedFileSizeCommitLog": SEGMENT_BYTES,
        "mappedFileSizeConsumeQueue": 6_000,
        "messageIndexEnable": False,
        "timerWheelEnable": False,
    }
    store = disk / "store"
    with running_broker(store, work, name_server_port, conf, main_class=CLEANS_AT_ONCE) as broker:
        watch = Watch(store)
        with (
            watch.running(),
            running_load(
                broker,
                name_server_port,
                work / "load",
                topics=["orders"],
                rate=mib_a_second * MIB // BODY_BYTES,
                body_bytes=BODY_BYTES,
            ) as load,
        ):
            time.sleep(seconds)
            load.stop()
    return watch, load


def _refused(load: Load) -> list[tuple[int, int]]:
    """Spans from a message that was refused to the next that was taken."""
    spans: list[tuple[int, int]] = []
    since_ms = None
    for line in sorted((line for line in load.lines() if "atMs" in line), key=lambda line: line["atMs"]):
        if "failed" in line and since_ms is None:
            since_ms = line["atMs"]
        elif "sent" in line and since_ms is not None:
            spans.append((since_ms, line["atMs"]))
            since_ms = None
    return spans


def _near(watch: Watch, at_ms: int) -> int:
    """The level as the pass saw it that changed what is accepted, at most one pass before."""
    return min(watch.looks, key=lambda look: abs(look.at_ms - at_ms)).percent


def _simulated(watch: Watch, load: Load, settings: Mapping[str, str]) -> Course:
    """What is simulated from the first message on, at the rate that the broker took before it refused any."""
    sent = load.sent()
    refused = _refused(load)
    until_ms = refused[0][0] if refused else sent[-1].at_ms
    taken = [each for each in sent if each.at_ms < until_ms]
    rate = (taken[-1].physical_offset - taken[0].physical_offset) / (taken[-1].at_ms - taken[0].at_ms)
    start_ms = sent[0].at_ms
    first = min(watch.looks, key=lambda look: abs(look.at_ms - start_ms))
    start = CourseStart(
        now_ms=start_ms,
        disk_bytes=DISK_BYTES,
        other_bytes=first.used_bytes,
        segment_bytes=SEGMENT_BYTES,
        runs=(),
        active_bytes=0,
        oldest_message_ms=start_ms,
        time_zone="UTC",
        ingest=Ingest(int(rate * DAY_MS)),
    )
    return RULES.course(settings, start, watch.looks[-1].at_ms - start_ms)
