"""What is sealed beside a running broker: by the files and by what the broker said before they were read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage_engine.model.store import FileFacts, LogSnapshot, Segment, SegmentState
from storage_engine.rocketmq.live.live_store import as_the_broker_says
from storage_engine.rocketmq.remoting.answers import RuntimeInfo

SIZE = 1000
INFO = RuntimeInfo("V5_3_3", 1, 0, 0, {}, None, None, 0, 0, {})


def log(segments: int, max_offset: int, dispatched_offset: int | None = None) -> LogSnapshot:
    """As the files show it: what lies wholly before the last frame's segment is sealed."""
    return LogSnapshot(
        "commitlog",
        tuple(
            Segment(
                "commitlog",
                base,
                FileFacts("/store", 1, base, SIZE, 0, 0),
                SegmentState.SEALED if base + SIZE <= max_offset - 1 else SegmentState.ACTIVE,
            )
            for base in range(0, segments * SIZE, SIZE)
        ),
        max_offset,
        max_offset if dispatched_offset is None else dispatched_offset,
    )


def sealed(log: LogSnapshot, **said: int) -> tuple[list[int], int]:
    seen = as_the_broker_says(log, replace(INFO, **said))
    return [one.base_offset for one in seen.sealed], seen.dispatched_offset


@pytest.mark.parametrize(
    ("files_end", "broker_end", "expected"),
    [
        (2500, 2500, [0, 1000]),
        (2500, 2000, [0, 1000]),
        (2500, 1999, [0]),  # the broker rolled after it was asked
        (1500, 2500, [0]),  # what the files don't show isn't there
        (2500, 0, []),
    ],
)
def test_sealed_is_what_both_have_behind_them(files_end: int, broker_end: int, expected: list[int]) -> None:
    assert sealed(log(3, files_end), commitlog_max_offset=broker_end)[0] == expected


@pytest.mark.parametrize(
    ("by_files", "broker_end", "behind", "expected"),
    [(2500, 2500, 0, 2500), (2500, 2500, 700, 1800), (1000, 2500, 0, 1000), (2500, 2500, 9999, 0)],
)
def test_dispatched_is_what_both_say(by_files: int, broker_end: int, behind: int, expected: int) -> None:
    said = {"commitlog_max_offset": broker_end, "dispatch_behind_bytes": behind}
    assert sealed(log(3, 2500, by_files), **said)[1] == expected
