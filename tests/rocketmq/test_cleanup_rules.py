from __future__ import annotations

from dataclasses import replace
from zoneinfo import ZoneInfo

import pytest

from storage_engine.core.clock import HOUR_MS
from storage_engine.exceptions import BrokerConfigError
from storage_engine.model.disk import DiskUsage
from storage_engine.model.plan import Cause, PlanRequest, Trigger, Urgency
from storage_engine.model.store import FileFacts, LogSnapshot, Segment, SegmentState, StoreSnapshot
from storage_engine.rocketmq.cleanup_rules import age_deletions_ms, expires_at_ms, least_used, triggers
from storage_engine.rocketmq.format.broker_config import BrokerConfig, load_broker_config

UTC = ZoneInfo("UTC")
NOON = 1_750_000_000_000 // (24 * HOUR_MS) * 24 * HOUR_MS + 12 * HOUR_MS
TOTAL = 1_000_000


def config(**overrides: str) -> BrokerConfig:
    return load_broker_config(None, overrides, root="/store")


def disk(path: str, percent: int | None) -> DiskUsage:
    if percent is None:
        return DiskUsage(path=path, used_percent=None, error=f"{path}: can't be measured: gone")
    return DiskUsage(path, percent, TOTAL, TOTAL * (100 - percent) // 100, device=1)


def snapshot(
    *log_percents: int | None, queue: int | None = 10, used_bytes: int | None = None
) -> StoreSnapshot:
    return StoreSnapshot(
        broker="rocketmq",
        root="/store",
        taken_at_ms=NOON,
        logs=(LogSnapshot("commitlog", (), 0, 0),),
        log_disks=tuple(disk(f"/d{i}/commitlog", percent) for i, percent in enumerate(log_percents)),
        dependents_disk=disk("/store/consumequeue", queue),
        crashed=False,
        used_bytes=used_bytes,
    )


def found(
    state: StoreSnapshot, settings: BrokerConfig | None = None, request: PlanRequest | None = None
) -> tuple[tuple[Trigger, ...], str]:
    causes, notices = triggers(state, settings or config(), NOON, UTC, request or PlanRequest())
    return causes, "\n".join(notices)


def kinds(causes: tuple[Trigger, ...]) -> set[tuple[str, str]]:
    return {(cause.cause.value, cause.urgency.value) for cause in causes}


NOTHING: set[tuple[str, str]] = set()
ORDINARY = {("space-full", "ordinary")}
FORCED = {("space-full", "forced")}


@pytest.mark.parametrize(("hours", "due"), [("12", True), ("04", False), ("04;12", True), ("11;13", False)])
def test_time_is_up_in_the_hours_of_delete_when(hours: str, due: bool) -> None:
    causes, _ = found(snapshot(10), config(deleteWhen=hours))
    assert kinds(causes) == ({("time-up", "ordinary")} if due else NOTHING)


def test_delete_when_that_the_broker_cannot_parse_is_an_error_even_where_it_would_hit_first() -> None:
    unreadable = replace(config(), delete_when="12; 5")
    with pytest.raises(BrokerConfigError, match=r"deleteWhen.*12; 5"):
        found(snapshot(10), unreadable)


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(0, NOTHING), (75, NOTHING), (76, ORDINARY), (85, ORDINARY), (86, FORCED), (90, FORCED), (91, FORCED)],
)
def test_a_level_must_be_above_its_threshold(percent: int, expected: set[tuple[str, str]]) -> None:
    assert kinds(found(snapshot(percent))[0]) == expected
    assert kinds(found(snapshot(10, queue=percent))[0]) == expected


@pytest.mark.parametrize(
    ("percents", "expected"),
    [
        ((96, 20), NOTHING),
        ((96, 75), NOTHING),
        ((96, 76), ORDINARY),
        ((96, 85), ORDINARY),
        ((96, 86), FORCED),
        ((91, 99, 100), FORCED),
    ],
)
def test_the_least_used_commitlog_disk_decides(
    percents: tuple[int, ...], expected: set[tuple[str, str]]
) -> None:
    assert kinds(found(snapshot(*percents))[0]) == expected


def test_full_path_beside_an_emptier_one_is_a_notice() -> None:
    _, notices = found(snapshot(96, 20))
    assert "no new segment on /d0/commitlog" in notices


@pytest.mark.parametrize("other", [0, 50, 80, 89, 96, 100])
def test_unknown_commitlog_disk_never_triggers(other: int) -> None:
    causes, notices = found(snapshot(None, other))
    assert causes == ()
    assert "disk level unknown" in notices
    assert "/d0/commitlog: can't be measured: gone" in notices


def test_unknown_consume_queue_disk_never_triggers() -> None:
    causes, notices = found(snapshot(50, queue=None))
    assert causes == ()
    assert "/store/consumequeue" in notices


def test_unknown_commitlog_disk_does_not_hide_a_full_consume_queue_disk() -> None:
    causes, _ = found(snapshot(None, queue=86))
    assert kinds(causes) == FORCED
    assert "/store/consumequeue" in causes[0].detail


@pytest.mark.parametrize(("percent", "told"), [(70, False), (71, True)])
def test_notice_level_is_a_notice_only(percent: int, told: bool) -> None:
    causes, notices = found(snapshot(percent))
    assert causes == ()
    assert ("notice level 70 %" in notices) is told


@pytest.mark.parametrize(
    ("overrides", "percent", "expected"),
    [
        ({"diskMaxUsedSpaceRatio": "5"}, 10, NOTHING),
        ({"diskMaxUsedSpaceRatio": "5"}, 11, ORDINARY),
        ({"diskMaxUsedSpaceRatio": "99"}, 85, NOTHING),
        ({"diskSpaceCleanForciblyRatio": "99"}, 86, FORCED),
        ({"diskSpaceCleanForciblyRatio": "1"}, 30, NOTHING),
        ({"diskSpaceCleanForciblyRatio": "1"}, 31, FORCED),
        ({"diskSpaceWarningLevelRatio": "99", "diskSpaceCleanForciblyRatio": "99"}, 91, FORCED),
        ({"diskSpaceWarningLevelRatio": "1"}, 35, NOTHING),
        ({"diskSpaceWarningLevelRatio": "1"}, 36, FORCED),
    ],
)
def test_levels_are_clamped_as_the_broker_does(
    overrides: dict[str, str], percent: int, expected: set[tuple[str, str]]
) -> None:
    assert kinds(found(snapshot(percent), config(**overrides))[0]) == expected


@pytest.mark.parametrize("percent", [86, 91])
def test_without_clean_file_forcibly_a_full_disk_is_ordinary_and_says_so(percent: int) -> None:
    causes, notices = found(snapshot(percent), config(cleanFileForciblyEnable="false"))
    assert kinds(causes) == ORDINARY
    assert all(cause.at_once for cause in causes)
    assert "cleanFileForciblyEnable is false" in notices


@pytest.mark.parametrize(
    ("used_bytes", "expected"),
    [
        (TOTAL // 2 * 75 // 100, NOTHING),
        (TOTAL // 2 * 75 // 100 + 1, ORDINARY),
        (TOTAL // 2 * 80 // 100, ORDINARY),
        (TOTAL // 2 * 80 // 100 + 1, FORCED),
    ],
)
def test_replicas_on_one_disk_are_held_against_their_share(
    used_bytes: int, expected: set[tuple[str, str]]
) -> None:
    settings = config(replicasPerDiskPartition="2")
    assert kinds(found(snapshot(80, queue=80, used_bytes=used_bytes), settings)[0]) == expected


def test_replicas_on_one_disk_still_obey_the_forced_levels_of_the_disk() -> None:
    settings = config(replicasPerDiskPartition="2")
    assert kinds(found(snapshot(86, used_bytes=1), settings)[0]) == FORCED


@pytest.mark.parametrize(
    "state", [snapshot(None, 50, used_bytes=TOTAL), snapshot(50), snapshot(used_bytes=TOTAL)]
)
def test_unknown_share_never_triggers(state: StoreSnapshot) -> None:
    causes, notices = found(state, config(replicasPerDiskPartition="2"))
    assert causes == ()
    assert "share of its disk (replicasPerDiskPartition 2) is unknown" in notices


def test_person_is_a_cause_at_any_hour_and_the_reason_is_kept() -> None:
    causes, notices = found(snapshot(10), request=PlanRequest(manual=True, reason="disk swap"))
    assert causes == (Trigger(Cause.MANUAL, Urgency.ORDINARY, "asked for by a person: disk swap"),)
    assert notices == ""


def test_forced_request_is_honoured_only_if_the_broker_allows_it() -> None:
    allowed, _ = found(snapshot(10), request=PlanRequest(forced=True))
    assert kinds(allowed) == {("manual", "forced")}
    settings = config(cleanFileForciblyEnable="false")
    refused, notices = found(snapshot(10), settings, PlanRequest(forced=True))
    assert kinds(refused) == {("manual", "ordinary")}
    assert "is refused: cleanFileForciblyEnable is false" in notices


def test_every_cause_that_holds_is_named() -> None:
    causes, _ = found(snapshot(80, queue=88), config(deleteWhen="12"), PlanRequest(manual=True))
    assert kinds(causes) == {
        ("time-up", "ordinary"),
        ("space-full", "ordinary"),
        ("space-full", "forced"),
        ("manual", "ordinary"),
    }


def test_least_used_of_unknown_is_unknown() -> None:
    assert least_used((disk("/a", 20), disk("/b", None))) is None
    assert least_used(()) is None
    assert least_used((disk("/a", 20), disk("/b", 0))) == disk("/b", 0)


def test_age_deletion_is_the_first_window_after_expiry() -> None:
    mtime = NOON - 71 * HOUR_MS
    facts = FileFacts("/store/commitlog/00000000000000000000", 1, 1, 100, mtime * 1_000_000, 0)
    segment = Segment("commitlog", 0, facts, SegmentState.SEALED)
    assert expires_at_ms(segment, config()) == NOON + HOUR_MS
    state = replace(snapshot(), logs=(LogSnapshot("commitlog", (segment,), 200, 200),))

    def goes_at_ms(hours: str, now_ms: int = NOON) -> int | None:
        return age_deletions_ms(state, config(deleteWhen=hours), now_ms, UTC)[segment.id]

    assert goes_at_ms("12") == NOON + 24 * HOUR_MS
    assert goes_at_ms("13") == NOON + HOUR_MS
    assert goes_at_ms("99") is None
    assert goes_at_ms("12", NOON + 30 * HOUR_MS) == NOON + 48 * HOUR_MS
