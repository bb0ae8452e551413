"""How far a broker is behind, from what it says in words and in its checkpoint."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.model.hold import BrokerProgress
from storage_engine.model.settings.policy import Policy
from storage_engine.retention.hold.hold_text import progress_alarms
from storage_engine.rocketmq.live.status import at_most_bytes, progress
from storage_engine.rocketmq.remoting.answers import RuntimeInfo

CHECKPOINT = {
    "physic_msg_timestamp_ms": 9_000,
    "logics_msg_timestamp_ms": 4_000,
    "index_msg_timestamp_ms": 0,
    "master_flushed_offset": 77,
}


def info(flush: str = "1.5 KiB", dispatch: int = 12) -> RuntimeInfo:
    return RuntimeInfo(
        version="V5_3_3",
        boot_timestamp_ms=1,
        commitlog_min_offset=100,
        commitlog_max_offset=900,
        commitlog_used_percent={"/log": 10.0},
        consume_queue_used_percent=10.0,
        earliest_message_timestamp_ms=1_000,
        dispatch_behind_bytes=dispatch,
        timer_behind_messages=3,
        values={"remainHowManyDataToFlush": flush},
    )


def java_text(count: int) -> str:
    """MixAll#humanReadableByteCount, of a count that isn't negative."""
    if count < 1024:
        return f"{count} B"
    power = int(math.log(count) / math.log(1024))
    return f"{count / 1024**power + 1e-9:.1f} {'KMGTPE'[power - 1]}iB"


@given(st.integers(0, 1 << 50))
def test_the_bound_is_never_below_what_the_broker_rounded(count: int) -> None:
    bound = at_most_bytes(java_text(count))
    assert bound is not None
    assert count <= bound <= max(count, count * 1.11 + 1)


@pytest.mark.parametrize(
    ("text", "bound"), [("0 B", 0), ("1023 B", 1023), ("-8 B", 0), ("1,2 KiB", 1279), ("a lot", None)]
)
def test_words_are_read_as_brokers_write_them(text: str, bound: int | None) -> None:
    assert at_most_bytes(text) == bound


@pytest.mark.parametrize(
    ("text", "expected"), [("3.25", 3.25), ("0,00", 0.0), ("12345.60", 12345.6), ("", None), ("NaN", None)]
)
def test_how_long_puts_take_is_read_as_brokers_write_it(text: str, expected: float | None) -> None:
    said = replace(info(), values={"putLatency99": text})
    assert progress(said, CHECKPOINT, 20_000).put_p99_ms == expected


def test_the_checkpoint_is_held_against_the_newest_message() -> None:
    found = progress(info(), CHECKPOINT, 20_000, 10_000)
    # What was never flushed is as old as the oldest message there is.
    assert found.checkpoint_behind_ms == {"physic_msg": 1_000, "logics_msg": 6_000, "index_msg": 9_000}
    assert (found.flush_behind_bytes, found.dispatch_behind_bytes) == (1587, 12)
    assert (found.min_offset, found.max_offset, found.timer_behind_messages) == (100, 900, 3)


def test_how_old_the_first_message_is_may_be_unknown() -> None:
    # The broker can't tell while the log's first file is missing.
    unknown = replace(info(), earliest_message_timestamp_ms=None)
    assert progress(unknown, CHECKPOINT, 20_000, 10_000).checkpoint_behind_ms == {
        "physic_msg": 1_000,
        "logics_msg": 6_000,
    }


def test_without_a_message_nothing_is_behind() -> None:
    assert progress(info(), CHECKPOINT, 20_000).checkpoint_behind_ms == {}


def test_limits_raise_alarms_above_them_and_not_at_them() -> None:
    policy = Policy(flush_alarm_bytes=1587, dispatch_alarm_bytes=12, checkpoint_alarm_seconds=6)
    assert progress_alarms(progress(info(), CHECKPOINT, 20_000, 10_000), policy) == ()
    assert len(progress_alarms(progress(info(dispatch=13), CHECKPOINT, 20_000, 10_001), policy)) == 2


def test_the_index_has_a_limit_of_its_own() -> None:
    found = progress(info(), CHECKPOINT, 20_000, 10_000)
    assert progress_alarms(found, Policy(checkpoint_alarm_seconds=6)) == ()
    (alarm,) = progress_alarms(found, Policy(checkpoint_alarm_seconds=6, index_alarm_seconds=8))
    assert "index_msg" in alarm


def test_what_is_unknown_exceeds_no_limit() -> None:
    unknown = BrokerProgress(0, 0, 0, None, None, None, {}, None)
    policy = Policy(flush_alarm_bytes=0, dispatch_alarm_bytes=0, checkpoint_alarm_seconds=0)
    assert progress_alarms(unknown, policy) == ()
    assert progress_alarms(None, policy) == ()
