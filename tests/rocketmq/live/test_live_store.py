"""Whose deletion by force a watch ends, and what unmanage sets back after it has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage_engine.model.hold import DriftKind
from storage_engine.rocketmq.hold.fence import with_force_ended
from storage_engine.rocketmq.hold.hold_state import FORCIBLY, ChangedSetting, HoldState, Observed
from storage_engine.rocketmq.live.live_store import another_broker

ADDRESS = "10.0.0.1:10911"
HELD = HoldState("me", 1, address=ADDRESS, broker_name="b", cluster_name="c")
FOUND = Observed(2, ADDRESS, 1, 0, 0, {FORCIBLY: "true", "brokerName": "b", "brokerClusterName": "c"}, "", ())


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


@pytest.mark.parametrize(
    ("found", "answers_ms"),
    [
        (FOUND, 1),
        # It can't be told who has the files' lock, but it is the process that was held.
        (replace(FOUND, unproven="nobody can tell"), 1),
        (replace(FOUND, boot_timestamp_ms=2), 2),
        (replace(FOUND, boot_timestamp_ms=2, address="10.0.0.2:10911"), 2),
    ],
    ids=["the same process", "unproven", "restarted", "moved"],
)
def test_the_broker_that_is_held_is_known_by_its_process_or_by_its_files(
    found: Observed, answers_ms: int
) -> None:
    assert another_broker(HELD, found, answers_ms) is None


@pytest.mark.parametrize(
    ("found", "answers_ms", "kind"),
    [
        (replace(FOUND, role="SLAVE"), 1, DriftKind.ROLE_CHANGED),
        (
            replace(FOUND, boot_timestamp_ms=2, unproven="of another host"),
            2,
            DriftKind.BROKER_RESTARTED,
        ),
        (
            replace(FOUND, boot_timestamp_ms=2, address="10.0.0.2:10911", unproven="of another host"),
            2,
            DriftKind.ROLE_CHANGED,
        ),
        (FOUND, 2, DriftKind.BROKER_RESTARTED),
    ],
    ids=["slave", "another process at the address", "failover", "failover a moment ago"],
)
def test_a_broker_that_is_not_provably_the_one_that_is_held_is_told_and_left_alone(
    found: Observed, answers_ms: int, kind: DriftKind
) -> None:
    other = another_broker(HELD, found, answers_ms)
    assert other is not None
    assert other.kind is kind
    assert "ettings were left as they are" in other.detail
