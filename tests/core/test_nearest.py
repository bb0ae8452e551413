"""Who mistypes a name is told the one that was meant."""

from __future__ import annotations

from zoneinfo import available_timezones

import pytest

from storage_engine.core.wording import did_you_mean, nearest


@pytest.mark.parametrize(
    ("word", "known"),
    [
        ("Shanghai", "Asia/Shanghai"),
        ("asia/shanghai", "Asia/Shanghai"),
        ("Asia/Shangai", "Asia/Shanghai"),
        ("Tokio", "Asia/Tokyo"),
        ("new_york", "America/New_York"),
        ("utc", "UTC"),
    ],
)
def test_a_zone_is_meant_by_its_city_or_with_a_typo(word: str, known: str) -> None:
    assert nearest(word, {zone for zone in available_timezones() if not zone.startswith("Etc/")}) == known


def test_nothing_is_proposed_that_is_not_like_it() -> None:
    assert nearest("qqqq", ["fileReservedTime", "deleteWhen"]) is None
    assert did_you_mean("qqqq", ["fileReservedTime"]) == ""
    assert (
        did_you_mean("fileReservedTimes", ["fileReservedTime", "deleteWhen"])
        == " Did you mean fileReservedTime?"
    )
    assert nearest("", []) is None
