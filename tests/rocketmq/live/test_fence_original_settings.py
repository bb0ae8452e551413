"""Plans go by the settings that a broker had before it was held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage_engine.core.jsonable import to_jsonable
from storage_engine.rocketmq.hold.fence import with_original_settings
from storage_engine.rocketmq.hold.hold_state import ChangedSetting, HoldState

FOUND = {"cleanFileForciblyEnable": "false", "deleteWhen": "04"}
HELD = HoldState("m", 0, changed_settings=(ChangedSetting("cleanFileForciblyEnable", "true", "false"),))


@dataclass
class Memory:
    state: Mapping[str, Any] | None

    def load(self) -> Mapping[str, Any] | None:
        return self.state

    def save(self, state: Mapping[str, Any] | None) -> None:
        self.state = state


def test_what_a_hold_forbids_the_broker_is_not_forbidden_to_us(tmp_path: Path) -> None:
    found = with_original_settings(FOUND, Memory(to_jsonable(HELD)), tmp_path)
    assert found == {"cleanFileForciblyEnable": "true", "deleteWhen": "04"}


def test_what_somebody_else_has_set_since_counts(tmp_path: Path) -> None:
    found = {"cleanFileForciblyEnable": "true", "deleteWhen": "04"}
    held = HoldState("m", 0, changed_settings=(ChangedSetting("deleteWhen", "99", "05"),))
    assert with_original_settings(found, Memory(to_jsonable(held)), tmp_path) == found


def test_without_a_hold_settings_are_as_the_broker_says(tmp_path: Path) -> None:
    assert with_original_settings(FOUND, Memory(None), tmp_path) == FOUND
    assert with_original_settings(FOUND, None, tmp_path) == FOUND
