"""Our own settings, in addition to the broker's config. Each has one description for shell, form and docs.

Among them are the limits from which a step runs as a Spark job. A Spark application costs processor time
before its first task; in that time a task of Airflow finishes smaller work by itself.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, get_args, get_origin, get_type_hints

from storage_engine.core.wording import bytes_text, count_text, parse_size
from storage_engine.exceptions import BadInputError

_DESCRIPTION = "setting"

Refuse = Callable[[str, str, object], BadInputError]
"""Makes an error from a setting's name, the expected value and the found value."""


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    :param kind: ``int``, ``tuple`` of several paths, or the enum whose values may be chosen.
    :param default: the default value; None if there is none, and ``help`` explains that.
    :param maximum: the greatest value of a number; None means no limit.
    :param label: label of its field in the connection's form; "" if the form has no such field.
    """

    name: str
    kind: type
    default: Any
    help: str
    minimum: int
    maximum: int | None
    label: str = ""

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that may be chosen. Empty if the setting isn't a choice."""
        return tuple(member.value for member in self.kind) if issubclass(self.kind, Enum) else ()

    @property
    def expected(self) -> str:
        """Return the permitted values, in words."""
        if self.kind is tuple:
            return "one absolute path, or a list of them"
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.maximum is not None:
            return f"a whole number from {self.minimum} to {self.maximum}"
        return "a whole number above 0" if self.minimum else "a whole number of at least 0"

    @property
    def default_text(self) -> str:
        """The default as a text for a person. Empty if there is none."""
        if self.default is None or self.kind is tuple:
            return ""
        return str(self.default.value if isinstance(self.default, Enum) else self.default)

    def read(self, value: object, refuse: Refuse) -> Any:
        """Return the checked value of a setting. A number may be given as text, as in a connection's URI.

        :raises BadInputError: the value isn't permitted.
        """
        value = value.strip() if isinstance(value, str) else value
        if value is None or value == "":
            return self.default
        if self.kind is tuple:
            return self._paths(value, refuse)
        if self.choices:
            if value not in self.choices:
                raise refuse(self.name, self.expected, value)
            return self.kind(value)
        try:
            number = int(str(value))
        except ValueError:
            raise refuse(self.name, self.expected, value) from None
        if number < self.minimum or (self.maximum is not None and number > self.maximum):
            raise refuse(self.name, self.expected, value)
        return number

    def _paths(self, value: object, refuse: Refuse) -> tuple[str, ...]:
        """Return the given paths. They must be absolute: tasks don't start in a person's directory."""
        paths = tuple(value) if isinstance(value, list | tuple) else (value,)
        if not all(isinstance(path, str) and path.startswith("/") for path in paths):
            raise refuse(self.name, self.expected, value)
        return paths


def setting(default: Any, help: str, *, minimum: int = 1, maximum: int | None = None, label: str = "") -> Any:
    """Declare a field of a dataclass as a setting."""
    description = {"help": help, "minimum": minimum, "maximum": maximum, "label": label}
    return dataclasses.field(default=default, metadata={_DESCRIPTION: description})


def settings_of(cls: type) -> tuple[Setting, ...]:
    """Return the settings that a dataclass declares, in its order."""
    hints = get_type_hints(cls)
    return tuple(
        Setting(field.name, _kind(hints[field.name]), field.default, **field.metadata[_DESCRIPTION])
        for field in dataclasses.fields(cls)
    )


def _kind(hint: Any) -> type:
    if get_origin(hint) is tuple:
        return tuple
    kinds = [kind for kind in (get_args(hint) or (hint,)) if kind is not type(None)]
    (kind,) = kinds
    return kind  # type: ignore[no-any-return]


LONGEST_UNDO_HOURS = 720
"""The longest window for an undo. The history that an undo needs is kept for longer."""


class ArchiveMode(StrEnum):
    REQUIRED = "required"
    OFF = "off"


class ArchiveWhen(StrEnum):
    EXPIRY = "expiry"
    """A segment is archived by the run that deletes it."""
    SEAL = "seal"
    """A segment is archived in the background once it is sealed, so that no deletion waits for the lake."""


class LagPolicy(StrEnum):
    BLOCK = "block"
    """Segments that some group still has to read are kept."""
    WARN = "warn"
    """Segments with unread messages are deleted. The report names groups whose messages only the lake has."""
    IGNORE = "ignore"


class PendingPolicy(StrEnum):
    BLOCK = "block"
    """Segments with messages that the broker still has to deliver, commit or roll back are kept."""
    WARN = "warn"
    """Segments with pending messages are deleted. Plan and report name the messages left only in the lake."""
    IGNORE = "ignore"


class ApprovalPolicy(StrEnum):
    """The deletions that need a second person's approval, from the least strict value to the strictest."""

    NONE = "none"
    FORCED = "forced"
    """Plans that ignore age, shorten the store's retention, use a waiver, or lack a required proof."""
    ALWAYS = "always"

    @property
    def rank(self) -> int:
        """Return the policy's strictness: a policy with a lower rank is less strict."""
        return list(ApprovalPolicy).index(self)


GENTLE_BYTES_PER_SECOND = 20_000_000
"""The default limit beside a running broker. At this rate its producers' latencies don't change."""


class ShieldMode(StrEnum):
    """When segments that no lake proves yet get a second name (hard link) in our own directory."""

    AUTO = "auto"
    """Beside a running broker, while a watch is alive."""
    ON = "on"
    """Also without a watch, and for a stopped broker's store: all unproven segments have a second name."""
    OFF = "off"


SHIELD_GIVE_UP_PERCENT = 95


@dataclass(frozen=True, slots=True)
class Policy:
    """Our policy for a store, in addition to its broker's rules. Each field has its own description."""

    archive: ArchiveMode = setting(
        ArchiveMode.REQUIRED, "required: nothing is deleted without proof that it is in the lake."
    )
    lag_policy: LagPolicy = setting(
        LagPolicy.WARN,
        "Segments that some consumer group still has to read: warn deletes and reports them, block keeps "
        "them, ignore deletes them.",
        label="Unread messages",
    )
    pending_policy: PendingPolicy = setting(
        PendingPolicy.WARN,
        "Segments with timers, delayed or half messages that the broker still has to deliver, commit or "
        "roll back: warn deletes and reports them, block keeps them and all segments behind them, ignore "
        "deletes them.",
        label="Pending messages",
    )
    archive_when: ArchiveWhen = setting(
        ArchiveWhen.EXPIRY,
        "seal: archive in the background once a segment is sealed, so that no deletion waits for the lake; "
        "expiry: by the run that deletes it.",
        label="When to archive",
    )
    archive_budget_bytes: int = setting(
        16 << 30, "With seal: the most that one run archives ahead of deletion; at least one segment."
    )
    archive_margin_hours: int = setting(
        24,
        "Beside a running broker that deletes by its own rules: the hold on an unarchived segment begins "
        "this long before its deletion. If the segment can't be held, an alarm is raised.",
    )
    archive_lag_alarm_bytes: int | None = setting(
        None, "Alarm when more than this is sealed and not proven in a lake; default: never."
    )
    archive_lag_alarm_seconds: int | None = setting(
        None, "Alarm when a sealed segment is older than this without a proof; default: never."
    )
    archive_bytes_per_second: int | None = setting(
        None,
        "The most that all processes of one task together read and write while archiving; 0: no limit. "
        f"Default: {GENTLE_BYTES_PER_SECOND} beside a running broker, except in an emergency; otherwise no "
        "limit.",
        minimum=0,
    )
    flush_alarm_bytes: int = setting(
        1 << 30, "Beside a running broker: alarm when more than this of its log is not on disk yet."
    )
    dispatch_alarm_bytes: int = setting(
        256 << 20,
        "Beside a running broker: alarm when more than this of its log is not in consume queues and index "
        "yet.",
    )
    checkpoint_alarm_seconds: int = setting(
        600,
        "Beside a running broker, which writes its checkpoint once a minute: alarm when the checkpoint is "
        "this much older than the newest message.",
    )
    index_alarm_seconds: int | None = setting(
        None,
        "Beside a running broker: alarm when the index's checkpoint is this much older than the newest "
        "message. That checkpoint changes only when an index file is full; default: never.",
    )
    lag_max_age_minutes: int = setting(
        60, "Consumer lag that was measured longer ago counts as unknown when segments are deleted."
    )
    minimum_retention_hours: int | None = setting(
        None,
        "No segment is deleted sooner than this after its last write, even by a forced deletion; default: "
        "no minimum.",
        label="Minimum retention (hours)",
    )
    approval: ApprovalPolicy = setting(
        ApprovalPolicy.NONE,
        "Which plans a second person has to approve before anything is deleted; forced: plans that ignore "
        "age, use a shorter retention than the store had, use a waiver, or lack a proof that was required.",
    )
    undo_window_hours: int | None = setting(
        None,
        "Offline: how long deleted files are kept in a quarantine on their own disk; undo brings them back. "
        "Default: no undo.",
        maximum=LONGEST_UNDO_HOURS,
    )
    undo_directories: tuple[str, ...] = setting(
        (),
        "For stores of Kafka with undo_window_hours: one directory for quarantines on the file system of "
        "each log directory, outside of all log directories.",
    )
    shield: ShieldMode = setting(
        ShieldMode.AUTO,
        "A second name (hard link) for segments that no lake proves yet. With auto: beside a running broker "
        "while a watch is alive. With on: for all such segments, also without a watch and for a stopped "
        "broker's store.",
    )
    shield_give_up_percent: int = setting(
        SHIELD_GIVE_UP_PERCENT,
        "Above this level of its disk, segments that only the shield has are given up for space; 100: never.",
        maximum=100,
    )


def archive_limit(policy: Policy, *, beside: bool, emergency: bool) -> int | None:
    """Return how many bytes per second one archive task may read and write. None means no limit.

    :param beside: whether the store's broker runs.
    :param emergency: whether the running broker's disk is at a level where it deletes by force or refuses
        writes. Then there is no limit.
    """
    if beside and emergency:
        return None
    if policy.archive_bytes_per_second is None:
        return GENTLE_BYTES_PER_SECOND if beside else None
    return policy.archive_bytes_per_second or None


_COUNT = re.compile(r"(\d+)\s+(segment|position)s?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SparkFrom:
    """The least work for which a Spark job is started. Work of each default size takes about as long as a
    Spark application's start.

    :param size_bytes: bytes of the segments that are archived together.
    :param segments: number of segments that are archived together.
    :param positions: number of positions of groups in queues whose lag is measured.
    """

    size_bytes: int = 2 << 30
    segments: int = 1000
    positions: int = 1_000_000

    @classmethod
    def parse(cls, text: str) -> SparkFrom:
        """Parse the setting. A missing part keeps its default. A single 0 means any work.

        :raises ValueError: the text isn't such a setting.
        """
        if text.strip() == "0":
            return cls(0, 0, 0)
        limits: dict[str, int] = {}
        for part in map(str.strip, text.split(",")):
            # A bare number may be the beginning of one with a comma in it.
            count, size_bytes = _COUNT.fullmatch(part), None if part.isdigit() else parse_size(part)
            name = f"{count[2].lower()}s" if count else "size_bytes"
            if name in limits or (count is None and size_bytes is None):
                raise ValueError(f"expected bytes, segments or positions, each once, found {part!r}")
            limits[name] = int(count[1]) if count else int(size_bytes or 0)
        return cls(**limits)

    @property
    def is_always(self) -> bool:
        """Return whether all work runs as Spark jobs."""
        return not (self.size_bytes or self.segments or self.positions)

    @property
    def of_archive(self) -> str:
        return f"{bytes_text(self.size_bytes)} or {count_text(self.segments, 'segment')}"

    @property
    def of_lag(self) -> str:
        return count_text(self.positions, "position")


@dataclass(frozen=True, slots=True)
class SparkUse:
    """The Spark that a store's connection names, with its master in Spark's notation."""

    master: str
    spark_from: SparkFrom

    @property
    def text(self) -> str:
        return in_spark(self.master)


@dataclass(frozen=True, slots=True)
class WorkPlace:
    """The place where a step's work is done.

    :param text: the place in words. If a Spark is named but not used, the text gives the reason.
    """

    in_spark: bool
    text: str


def archive_place(spark: SparkUse | None, threads: int, size_bytes: int, segments: int) -> WorkPlace:
    """Return the place where segments are archived. Spark isn't started for a plan without segments.

    :param spark: None if the store's connection names no Spark.
    :param threads: number of threads with which the task itself would archive them.
    :param size_bytes: bytes of all segments together.
    """
    if spark is None:
        return WorkPlace(False, process_text(threads))
    limits = spark.spark_from
    if segments and (size_bytes >= limits.size_bytes or segments >= limits.segments):
        return WorkPlace(True, spark.text)
    return WorkPlace(False, f"{process_text(threads)} (below spark_from of {limits.of_archive})")


def lag_place(spark: SparkUse | None, positions: int) -> WorkPlace:
    """Return the place where consumer lag is measured. Spark isn't started if there are no positions."""
    if spark is None:
        return WorkPlace(False, process_text(1))
    limits = spark.spark_from
    if positions and positions >= limits.positions:
        return WorkPlace(True, spark.text)
    return WorkPlace(False, f"{process_text(1)} (below spark_from of {limits.of_lag})")


def in_spark(master: str) -> str:
    return f"in Spark at {master}"


def process_text(threads: int) -> str:
    """Return words that say that the task or command does the work itself."""
    return f"in process, {count_text(threads, 'thread')}"


def places_text(spark: SparkUse | None, threads: int) -> str:
    """Return words for a person on the places where a store is archived and its consumer lag is measured.

    :param threads: number of threads with which the task itself archives.
    """
    if spark is None:
        return process_text(threads)
    if spark.spark_from.is_always:
        return spark.text
    limits = spark.spark_from
    return f"{spark.text} from {limits.of_archive}, or {limits.of_lag}; below that {process_text(threads)}"
