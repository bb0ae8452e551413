"""What unmanage sets back after a watch has ended a broker's deletion by force."""

from __future__ import annotations

import pytest

from storage_engine.rocketmq.beside.hold_state import FORCIBLY, ChangedSetting, HoldState
from storage_engine.rocketmq.beside.shield import with_force_ended


@pytest.mark.parametrize("before", ["false", "true"])
def test_what_was_set_before_the_hold_is_set_back_not_what_somebody_set_meanwhile(before: str) -> None:
    held = HoldState("me", 1, expected_settings={FORCIBLY: before})
    assert with_force_ended(held, "true").changed_settings == (ChangedSetting(FORCIBLY, before, "false"),)


def test_where_the_hold_knows_of_no_value_the_one_that_was_found_is_set_back() -> None:
    found = with_force_ended(HoldState("me", 1), "true")
    assert found.changed_settings == (ChangedSetting(FORCIBLY, "true", "false"),)


def test_what_the_hold_has_changed_already_is_set_back_as_it_was() -> None:
    held = HoldState("me", 1, changed_settings=(ChangedSetting(FORCIBLY, "true", "false"),))
    assert with_force_ended(held, "yes") == held
