"""What somebody else did to held topics: named, with what it was, what it is, and between which moments."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from storage_engine.kafka.live.drift import all_drift, as_found, known_log
from storage_engine.kafka.live.hold_state import (
    RETENTION_MS,
    HeldSetting,
    HoldState,
    KnownLog,
    TopicSetting,
)
from storage_engine.kafka.live_facts import LivePartition
from storage_engine.model.hold import Drift, DriftKind

TOPIC_ID = uuid.UUID(int=7)
LOG = "orders-0"
HELD = HeldSetting("orders", str(TOPIC_ID), RETENTION_MS, TopicSetting(5, is_own=False), (9,), True, 0)
KNOWN = KnownLog(str(TOPIC_ID), 1, 4, (1, 2), 100, 500)
STATE = HoldState(1_000_000, (HELD,), {LOG: KNOWN})
LIVE = LivePartition(TOPIC_ID, 1, 100, 500, 500, replicas=(1, 2), leader_epoch=4)
OURS = TopicSetting(9, is_own=True)


def drift(
    live: LivePartition | None = LIVE, setting: TopicSetting | None = OURS, state: HoldState = STATE
) -> list[Drift]:
    settings = {} if setting is None else {"orders": {RETENTION_MS: setting}}
    return list(all_drift(state, settings, {} if live is None else {LOG: live}, {LOG}, 2_000_000))


def test_as_it_was_left_is_no_drift() -> None:
    assert drift() == []
    # What isn't answered is unknown, and nobody's doing.
    assert drift(None, None) == []
    assert drift(LivePartition()) == []
    grown = replace(LIVE, high_watermark=600, last_stable_offset=550, leader_epoch=5)
    assert drift(grown) == []


@pytest.mark.parametrize(
    "setting", [TopicSetting(5, False), TopicSetting(5, True), TopicSetting(9, False), TopicSetting(-1, True)]
)
def test_a_setting_that_is_not_ours_any_more_is_named(setting: TopicSetting) -> None:
    (one,) = drift(setting=setting)
    assert one.kind is DriftKind.SETTING_CHANGED
    assert f"retention.ms: expected 9, which the hold has set, found {setting.value}" in one.detail
    assert "between 1970-01-01 00:16:40Z and 1970-01-01 00:33:20Z" in one.detail


def test_a_setting_that_may_not_have_been_set_yet_is_nobodys() -> None:
    unset = replace(STATE, settings=(replace(HELD, is_set=False),))
    assert drift(setting=HELD.original, state=unset) == []
    assert drift(setting=OURS, state=unset) == []
    assert len(drift(setting=TopicSetting(6, True), state=unset)) == 1


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ({"topic_id": uuid.UUID(int=8)}, DriftKind.TOPIC_REPLACED, "was deleted and made again"),
        ({"leader": 2}, DriftKind.LEADER_MOVED, "found 2 of 1, 2"),
        ({"replicas": (1, 3)}, DriftKind.LEADER_MOVED, "found 1 of 1, 3"),
        ({"log_start": 150}, DriftKind.SEGMENT_GONE, "records of offsets [100, 150) went"),
        ({"high_watermark": 450}, DriftKind.RECORDS_CUT, "found up to 450"),
    ],
)
def test_what_became_of_a_log_is_named(change: dict[str, object], kind: DriftKind, said: str) -> None:
    (one,) = drift(replace(LIVE, **change))  # type: ignore[arg-type]
    assert (one.kind, one.log) == (kind, LOG)
    assert said in one.detail


def test_what_we_let_go_is_our_doing_and_no_more() -> None:
    state = replace(STATE, logs={LOG: replace(KNOWN, let_go=150)})
    assert drift(replace(LIVE, log_start=150), state=state) == []
    assert drift(replace(LIVE, log_start=120), state=state) == []
    (one,) = drift(replace(LIVE, log_start=160), state=state)
    assert (one.start_offset, one.end_offset) == (150, 160)


def test_a_log_that_is_not_here_any_more_is_named_once() -> None:
    (one,) = all_drift(STATE, {}, {}, set(), 2_000_000)
    assert one.kind is DriftKind.TOPIC_REPLACED
    assert as_found(STATE, {}, {}, set()).logs == {}


def test_what_is_found_goes_on_and_what_others_set_is_theirs() -> None:
    theirs = {"orders": {RETENTION_MS: TopicSetting(6, is_own=True)}}
    assert as_found(STATE, theirs, {LOG: LIVE}, {LOG}).settings == ()
    unset = replace(STATE, settings=(replace(HELD, ours=(7, 9), is_set=False),))
    (kept,) = as_found(unset, {"orders": {RETENTION_MS: OURS}}, {LOG: LIVE}, {LOG}).settings
    assert (kept.is_set, kept.ours) == (True, (9,))
    # Of a topic that isn't answered nothing is forgotten.
    assert as_found(STATE, {}, {}, {LOG}) == STATE
    other = replace(LIVE, topic_id=uuid.UUID(int=8))
    assert as_found(STATE, {}, {LOG: other}, {LOG}) == HoldState(1_000_000)


def test_a_log_is_remembered_only_as_far_as_all_of_it_is_known() -> None:
    found = replace(LIVE, log_start=200, high_watermark=900, leader=2, leader_epoch=6)
    assert known_log(found, replace(KNOWN, let_go=150)) == KnownLog(
        str(TOPIC_ID), 2, 6, (1, 2), 200, 900, let_go=150
    )
    for missing in ("topic_id", "leader", "log_start", "high_watermark"):
        assert known_log(replace(found, **{missing: None}), KNOWN) is KNOWN
        assert known_log(replace(found, **{missing: None}), None) is None
