"""Our own settings, beyond what the broker's config says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from storage_engine.model.settings.settings import setting

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


class ApprovalPolicy(StrEnum):
    """Releases that wait until a second person has approved their plan, the fewest first."""

    NONE = "none"
    FORCED = "forced"
    """Those that delete what hasn't expired, or that go below a minimum, or on a waiver."""
    ALWAYS = "always"

    @property
    def rank(self) -> int:
        """Return how much it asks for: a policy of a lower rank asks for less."""
        return list(ApprovalPolicy).index(self)


GENTLE_BYTES_PER_SECOND = 20_000_000
"""Beside a running broker, where nothing else is said: its producers' latencies stay what they are alone."""


class ShieldMode(StrEnum):
    """The conditions under which segments that no lake proves yet have a second name in our own directory."""

    AUTO = "auto"
    """Beside a running broker, while a watch is alive."""
    ON = "on"
    """Without a watch, and of a stopped broker's store, too: then all that is unproven has one."""
    OFF = "off"


SHIELD_GIVE_UP_PERCENT = 95


@dataclass(frozen=True, slots=True)
class Policy:
    """Our policy for a store, beyond its broker's rules. Each field says what it means."""

    archive: ArchiveMode = setting(
        ArchiveMode.REQUIRED, "required: nothing is deleted without proof that it is in the lake."
    )
    lag_policy: LagPolicy = setting(
        LagPolicy.WARN,
        "What becomes of segments that some consumer group still has to read: warn deletes and reports them, "
        "block keeps them, ignore deletes them.",
        label="Unread messages",
    )
    pending_policy: PendingPolicy = setting(
        PendingPolicy.WARN,
        "What becomes of segments with timers, delayed or half messages that the broker still has to deliver "
        "or to decide: warn deletes and reports them, block keeps them and all behind them, ignore deletes "
        "them.",
        label="Pending messages",
    )
    archive_when: ArchiveWhen = setting(
        ArchiveWhen.EXPIRY,
        "seal: archive in the background once a segment is sealed, so that no deletion waits for the lake; "
        "expiry: by the run that deletes it.",
        label="When to archive",
    )
    archive_budget_bytes: int = setting(
        16 << 30,
        "With seal: how much one run archives ahead of deletion; at least one segment.",
    )
    archive_margin_hours: int = setting(
        24,
        "Beside a running broker that deletes by its own rules: what no lake has is held, or an alarm tells "
        "of it, from so long before it would go.",
    )
    archive_lag_alarm_bytes: int | None = setting(
        None,
        "Alarm when more than this is sealed and not proven in a lake; default: never.",
    )
    archive_lag_alarm_seconds: int | None = setting(
        None,
        "Alarm when a sealed segment is older than this without a proof; default: never.",
    )
    archive_bytes_per_second: int | None = setting(
        None,
        "Read and write at most so much while archiving, all processes of one task together; 0: no limit. "
        f"Default: {GENTLE_BYTES_PER_SECOND} beside a running broker, but in an emergency; else no limit.",
        minimum=0,
    )
    flush_alarm_bytes: int = setting(
        1 << 30,
        "Beside a running broker: alarm when more than this of its log is not on disk.",
    )
    dispatch_alarm_bytes: int = setting(
        256 << 20,
        "Beside a running broker: alarm when more than this of its log is in no consume queue and index yet.",
    )
    checkpoint_alarm_seconds: int = setting(
        600,
        "Beside a running broker, which writes its checkpoint once a minute: alarm when it is so much older "
        "than the newest message.",
    )
    index_alarm_seconds: int | None = setting(
        None,
        "Likewise for the index, whose checkpoint moves only when an index file is full; default: never.",
    )
    lag_max_age_minutes: int = setting(
        60,
        "Lag that was taken longer ago is unknown when segments are deleted.",
    )
    minimum_retention_hours: int | None = setting(
        None,
        "Nothing deletes a segment sooner after its last write, whatever forces it; default: no minimum.",
        label="Minimum retention (hours)",
    )
    approval: ApprovalPolicy = setting(
        ApprovalPolicy.NONE,
        "Which plans a second person has to approve before anything is deleted; forced: those that ignore "
        "age, go by a shorter retention than the store had, or go by a waiver or without required proof.",
    )
    undo_window_hours: int | None = setting(
        None,
        "Offline: how long what a run deletes lies in a quarantine on its own disk; undo brings it back. "
        "Default: no undo.",
        maximum=LONGEST_UNDO_HOURS,
    )
    undo_directories: tuple[str, ...] = setting(
        (),
        "For stores of Kafka with undo_window_hours: one directory for quarantines on the file system of "
        "each log directory, outside of all of them.",
    )
    shield: ShieldMode = setting(
        ShieldMode.AUTO,
        "A second name for segments that no lake proves yet. auto: beside a running broker while a watch is "
        "alive; on: without a watch and of a stopped broker's store, too, for all of them.",
    )
    shield_give_up_percent: int = setting(
        SHIELD_GIVE_UP_PERCENT,
        "Above this level of its disk what only the shield has is given up for space; 100: never.",
        maximum=100,
    )


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
