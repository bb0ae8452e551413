"""Our own settings, beyond what the broker's config says, and how each is described once.

Among them are limits above which a step runs as a Spark job: a Spark application costs processor time before
its first task, and a task of Airflow has done smaller work by then.
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
"""Makes an error of a setting's name, what was expected and what was found."""


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    :param kind: ``int``, ``tuple`` of several paths, or the enum whose values may be chosen.
    :param default: None: there is none, and ``help`` explains that.
    :param minimum: of a number.
    :param maximum: of a number; None: no bound.
    :param label: of its field in the connection's form; "": the form has none.
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
        """The values that may be chosen; empty: it has others."""
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
        """The default for a person; empty: there is none."""
        if self.default is None or self.kind is tuple:
            return ""
        return str(self.default.value if isinstance(self.default, Enum) else self.default)

    def read(self, value: object, refuse: Refuse) -> Any:
        """Return the value of a setting; numbers may come as text, as in a connection's URI.

        :raises BadInputError: it is no such value.
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
        """Return absolute paths: tasks are not started where a person is."""
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
        """Return its strictness: a policy of a lower rank asks for less."""
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


_COUNT = re.compile(r"(\d+)\s+(segment|position)s?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SparkFrom:
    """The least work that a Spark job is started for. Each default takes about what an application costs.

    :param size_bytes: of the segments that are archived together.
    :param segments: that are archived together.
    :param positions: of groups in queues, whose lag is measured.
    """

    size_bytes: int = 2 << 30
    segments: int = 1000
    positions: int = 1_000_000

    @classmethod
    def parse(cls, text: str) -> SparkFrom:
        """Read the setting. A part that is missing keeps its default; 0 alone means any work.

        :raises ValueError: it is no such text.
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
        """Return whether any work is a Spark job."""
        return not (self.size_bytes or self.segments or self.positions)

    @property
    def of_archive(self) -> str:
        """Return the limits of archiving in words."""
        return f"{bytes_text(self.size_bytes)} or {count_text(self.segments, 'segment')}"

    @property
    def of_lag(self) -> str:
        """Return the limit of consumer lag in words."""
        return count_text(self.positions, "position")


@dataclass(frozen=True, slots=True)
class SparkUse:
    """The Spark that a store's connection names.

    :param master: that jobs are submitted to, as Spark takes it.
    """

    master: str
    spark_from: SparkFrom

    @property
    def text(self) -> str:
        return in_spark(self.master)


@dataclass(frozen=True, slots=True)
class WorkPlace:
    """The place where a step's work is done.

    :param text: for a person, with the reason where a Spark is there and isn't used.
    """

    in_spark: bool
    text: str


def archive_place(spark: SparkUse | None, threads: int, size_bytes: int, segments: int) -> WorkPlace:
    """Return the place where segments are archived; without any segment no Spark is started.

    :param spark: None: the store has none.
    :param threads: with which the task itself would archive them.
    :param size_bytes: of all segments together.
    """
    if spark is None:
        return WorkPlace(False, in_process(threads))
    limits = spark.spark_from
    if segments and (size_bytes >= limits.size_bytes or segments >= limits.segments):
        return WorkPlace(True, spark.text)
    return WorkPlace(False, f"{in_process(threads)} (below spark_from of {limits.of_archive})")


def lag_place(spark: SparkUse | None, positions: int) -> WorkPlace:
    """Return the place where consumer lag is measured; without any position no Spark is started.

    :param positions: of groups in queues.
    """
    if spark is None:
        return WorkPlace(False, in_process(1))
    limits = spark.spark_from
    if positions and positions >= limits.positions:
        return WorkPlace(True, spark.text)
    return WorkPlace(False, f"{in_process(1)} (below spark_from of {limits.of_lag})")


def in_spark(master: str) -> str:
    """Return in words that a Spark job does the work."""
    return f"in Spark at {master}"


def in_process(threads: int) -> str:
    """Return in words that the task, or the command, does the work itself."""
    return f"in process, {count_text(threads, 'thread')}"


def places_text(spark: SparkUse | None, threads: int) -> str:
    """Return where archive and consumer lag of a store run, for a person.

    :param threads: with which the task itself archives.
    """
    if spark is None:
        return in_process(threads)
    if spark.spark_from.is_always:
        return spark.text
    limits = spark.spark_from
    return f"{spark.text} from {limits.of_archive}, or {limits.of_lag}; below that {in_process(threads)}"
