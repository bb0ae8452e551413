from __future__ import annotations

from storage_engine.model.hold import HoldStatus, WatchLook
from storage_engine.retention.hold.hold_text import hold_text, watching_text

LOOKED_MS = 1_700_000_000_000


def test_a_hold_is_told_with_the_last_look_of_its_watch() -> None:
    unwatched = HoldStatus(True, 0, LOOKED_MS + 3_600_000)
    watched = HoldStatus(True, 0, LOOKED_MS + 3_600_000, watch=WatchLook(LOOKED_MS, 11, 3))
    assert hold_text(unwatched) == "held until 2023-11-14 23:13:20Z: from offset 0 on"
    assert hold_text(watched) == (
        f"{hold_text(unwatched)}; its watch last looked 2023-11-14 22:13:20Z and saw 11 segments fenced, "
        "3 mended since it began"
    )


def test_a_watch_says_of_a_hold_that_nobody_renewed_when_it_ends() -> None:
    assert watching_text(WatchLook(LOOKED_MS, 11)) == "watching"
    assert watching_text(WatchLook(LOOKED_MS, 11, 0, LOOKED_MS)).startswith(
        "watching; the hold was not renewed in time and ends by itself 2023-11-14 22:13:20Z: 11 fenced "
    )
