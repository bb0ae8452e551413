"""Times at which a running broker cleans, and how long to wait until it has."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from storage_engine.rocketmq.format.broker_config import BrokerConfig

FIRST_PASS_MS: Final = 60_000
"""After its start a broker waits so long before its first pass (DefaultMessageStore#addScheduleTask)."""
DEFAULT_INTERVAL_MS: Final = 10_000
MANUAL_PASSES: Final = 20
"""Passes that one trigger asks for (CleanCommitLogService.MAX_MANUAL_DELETE_FILE_TIMES)."""
SLACK_SECONDS: Final = 10.0
"""For a broker, a disk or a machine that is busy."""
MEANWHILE_SECONDS: Final = 20.0


def interval_ms(config: BrokerConfig) -> int:
    """From one pass to the next (cleanResourceInterval, which a broker reads when it starts)."""
    return int(config.raw.get("cleanResourceInterval", DEFAULT_INTERVAL_MS))


def until_first_pass_seconds(boot_timestamp_ms: int) -> float:
    """Return how long a broker that just started deletes nothing yet; 0 where it may have begun."""
    wait_ms = boot_timestamp_ms + FIRST_PASS_MS - time.time_ns() // 1_000_000
    return min(max(wait_ms, 0), FIRST_PASS_MS) / 1000


def segment_patience_seconds(config: BrokerConfig) -> float:
    """The longest that a broker which works takes from one deleted segment to the next.

    One that a reader still has is destroyed by force after destroyMapedFileIntervalForcibly, by the pass
    that comes then (DefaultMappedFile#destroy).
    """
    one_pass_ms = (
        interval_ms(config) + config.delete_file_batch_max * config.delete_commit_log_files_interval_ms
    )
    return (2 * one_pass_ms + config.destroy_mapped_file_interval_forcibly_ms) / 1000 + SLACK_SECONDS


def dependents_patience_seconds(config: BrokerConfig) -> float:
    """The longest that a broker which works takes from one deleted queue or index file to the next."""
    return (2 * interval_ms(config) + config.delete_consume_queue_files_interval_ms) / 1000 + SLACK_SECONDS


class Patience:
    """Waiting that ends when nothing has gone on for too long.

    :param seconds: without progress.
    :param at_first_seconds: beyond that, until there is some.
    :param meanwhile: called now and then, for what its owner must not lose while it waits.
    """

    def __init__(self, seconds: float, at_first_seconds: float, meanwhile: Callable[[], object]) -> None:
        self._seconds = seconds
        self._meanwhile = meanwhile
        self._began = self._said = time.monotonic()
        self._ends = self._began + seconds + at_first_seconds

    @property
    def waited_seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._ends

    def progressed(self) -> None:
        self._ends = max(self._ends, time.monotonic() + self._seconds)

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)
        if time.monotonic() - self._said >= MEANWHILE_SECONDS:
            self._meanwhile()
            self._said = time.monotonic()
