"""How long a broker that works may take until it has deleted what it was told to."""

from __future__ import annotations

import time

from storage_engine.rocketmq import cleanup_rules as schedule
from storage_engine.rocketmq.format.broker_config import BrokerConfig, load_broker_config


def config(**settings: object) -> BrokerConfig:
    return load_broker_config(None, {key: str(value) for key, value in settings.items()}, root="/store")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_passes_follow_each_other_as_the_broker_says() -> None:
    assert schedule.interval_ms(config()) == 10_000
    assert schedule.interval_ms(config(cleanResourceInterval=200)) == 200


def test_a_segment_that_a_reader_has_is_waited_for_until_it_is_forced() -> None:
    short = schedule.segment_patience_seconds(config(destroyMapedFileIntervalForcibly=1000))
    assert schedule.segment_patience_seconds(config(destroyMapedFileIntervalForcibly=61_000)) == short + 60
    assert short > 2 * 10 + 1


def test_a_broker_that_just_started_deletes_nothing_for_a_minute() -> None:
    started_ms = now_ms()
    wait_seconds = schedule.until_first_pass_seconds(started_ms)
    assert 60 - (now_ms() - started_ms) / 1000 <= wait_seconds <= 60
    assert schedule.until_first_pass_seconds(now_ms() - 61_000) == 0
    # its clock is ahead of ours
    assert schedule.until_first_pass_seconds(now_ms() + 3_600_000) == 60


def test_patience_ends_without_progress_and_begins_anew_with_it() -> None:
    assert not schedule.Patience(3600.0, 0.0, lambda: None).is_over
    patience = schedule.Patience(0.2, 0.0, lambda: None)
    patience.pause(0.25)
    assert patience.is_over
    patience = schedule.Patience(3600.0, -3600.0, lambda: None)
    assert patience.is_over
    patience.progressed()
    assert not patience.is_over


def test_progress_takes_nothing_from_the_first_wait() -> None:
    patience = schedule.Patience(0.0, 3600.0, lambda: None)
    patience.progressed()
    assert not patience.is_over
