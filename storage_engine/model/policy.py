"""Our own settings, beyond what the broker's config says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

LONGEST_UNDO_HOURS = 720
"""History that an undo needs is kept for longer than that."""


class ArchiveMode(StrEnum):
    REQUIRED = "required"
    OFF = "off"


class ArchiveWhen(StrEnum):
    EXPIRY = "expiry"
    """A segment is archived by the run that deletes it."""
    SEAL = "seal"
    """A segment is archived once it is sealed, in the background, so that no deletion waits for the lake."""


class LagPolicy(StrEnum):
    BLOCK = "block"
    """Segments that some group still has to read stay."""
    WARN = "warn"
    """They go, and the report says whose messages are from now on only in the lake."""
    IGNORE = "ignore"


class PendingPolicy(StrEnum):
    BLOCK = "block"
    """Segments with messages that the broker still has to deliver or to decide stay."""
    WARN = "warn"
    """They go, and the plan and the report say what is from now on only in the lake."""
    IGNORE = "ignore"


GENTLE_BYTES_PER_SECOND = 20_000_000
"""Beside a running broker, where nothing else is said: its producers' latencies stay what they are alone."""


class ShieldMode(StrEnum):
    """When segments that no lake proves yet have a second name in our own directory."""

    AUTO = "auto"
    """Beside a running broker, while a watch is alive."""
    ON = "on"
    """Without a watch, and of a stopped broker's store, too: then all that is unproven has one."""
    OFF = "off"


SHIELD_GIVE_UP_PERCENT = 95


@dataclass(frozen=True, slots=True)
class Policy:
    """:param archive_budget_bytes: under ``archive_when: seal``, how much one run archives ahead of
        deletion; at least one segment.
    :param archive_lag_alarm_bytes: sealed bytes without a proof above which an alarm is raised; None: never.
    :param archive_lag_alarm_seconds: age of the oldest sealed segment without a proof above which an alarm
        is raised; None: never.
    :param archive_bytes_per_second: how fast one archive task may read and write at most, all processes of
        its Spark job together, so that a broker on the same disks keeps its speed; 0: no limit; None: as
        :func:`archive_limit` says.
    :param flush_alarm_bytes: of a running broker's log, not on disk yet, above which an alarm is raised.
    :param dispatch_alarm_bytes: of its log, not in consume queues and index yet, likewise.
    :param checkpoint_alarm_seconds: how much older than the newest message what its checkpoint says of log
        and consume queues may be before an alarm is raised. The broker writes it once a minute.
    :param index_alarm_seconds: likewise of the index; None: never, for the broker moves it on only when an
        index file is full.
    :param lag_max_age_minutes: consumer lag that was taken longer ago counts as unknown.
    :param minimum_retention_hours: since a segment's last write, before which nothing deletes it, whoever
        asks and however full a disk is; None: no minimum.
    :param undo_window_hours: how long what a run deletes lies in a quarantine, from which ``undo`` brings it
        back; None: nothing does. Only where no broker runs on the store.
    :param shield_give_up_percent: above this level of the broker's disk what only the shield has is given up
        for space, one segment at a time; 100: never.
    """

    archive: ArchiveMode = ArchiveMode.REQUIRED
    lag_policy: LagPolicy = LagPolicy.WARN
    pending_policy: PendingPolicy = PendingPolicy.WARN
    archive_when: ArchiveWhen = ArchiveWhen.EXPIRY
    archive_budget_bytes: int = 16 << 30
    archive_lag_alarm_bytes: int | None = None
    archive_lag_alarm_seconds: int | None = None
    archive_bytes_per_second: int | None = None
    flush_alarm_bytes: int = 1 << 30
    dispatch_alarm_bytes: int = 256 << 20
    checkpoint_alarm_seconds: int = 600
    index_alarm_seconds: int | None = None
    lag_max_age_minutes: int = 60
    minimum_retention_hours: int | None = None
    undo_window_hours: int | None = None
    shield: ShieldMode = ShieldMode.AUTO
    shield_give_up_percent: int = SHIELD_GIVE_UP_PERCENT


def archive_limit(policy: Policy, *, beside: bool, emergency: bool) -> int | None:
    """Return how many bytes a second one archive task may read and write; None: as fast as it can.

    :param beside: the store's broker runs.
    :param emergency: its disk is at a level where it deletes by force or refuses writes: then nothing waits.
    """
    if beside and emergency:
        return None
    if policy.archive_bytes_per_second is None:
        return GENTLE_BYTES_PER_SECOND if beside else None
    return policy.archive_bytes_per_second or None
