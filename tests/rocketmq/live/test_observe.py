from __future__ import annotations

from pathlib import Path

import pytest

from storage_engine.rocketmq.hold.hold_state import HoldState, Observed, SeenFile
from storage_engine.rocketmq.live.observe import below_the_first_file, saved_settings


def test_broker_conf_tells_what_a_restart_brings_back(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_bytes(b"# \xe4\nbrokerName = b\nfileReservedTime=72 \ncleanFileForciblyEnable : true\n")
    assert saved_settings(str(conf)).values == {"fileReservedTime": "72", "cleanFileForciblyEnable": "true"}


def test_what_can_not_be_read_is_unknown(tmp_path: Path) -> None:
    missing = saved_settings(str(tmp_path / "none.conf"))
    assert missing.values is None
    assert "No such file" in missing.problem
    damaged = tmp_path / "broker.conf"
    damaged.write_text("fileReservedTime=\\uXYZ1\n")
    assert saved_settings(str(damaged)).values is None
    assert saved_settings(None).path is None


def found_at(min_offset: int, *base_offsets: int) -> Observed:
    files = tuple(SeenFile(base, f"/log/{base}", base, 100, 0, 0) for base in base_offsets)
    return Observed(1, "b:10911", 1, min_offset, 1000, {}, "ASYNC_MASTER", files)


def test_a_broker_that_serves_what_is_gone_from_memory_is_told_of() -> None:
    before = HoldState("me", 1, segments=((200, 200), (300, 300)))
    (said,) = below_the_first_file(found_at(0, 200, 300), before)
    assert "its log begins at 0, but its first file at 200" in said
    assert "Restart the broker" in said


@pytest.mark.parametrize(
    ("found", "before"),
    [
        (found_at(200, 200, 300), HoldState("me", 1, segments=((200, 200),))),
        (found_at(100, 200, 300), HoldState("me", 1, segments=((100, 100), (200, 200)))),
        (found_at(0, 200), None),
        (found_at(0), HoldState("me", 1)),
    ],
)
def test_a_broker_that_deletes_just_now_serves_nothing_that_is_gone(
    found: Observed, before: HoldState | None
) -> None:
    assert below_the_first_file(found, before) == ()
