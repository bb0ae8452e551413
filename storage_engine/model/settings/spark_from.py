"""Limits above which a step runs as a Spark job. Pure.

A Spark application costs processor time before its first task: smaller work the task itself has done by then.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from storage_engine.core.wording import bytes_text, count_text, parse_size

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
    """Return where segments are archived. Of none no Spark is started.

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
    """Return where consumer lag is measured. Of no position no Spark is started.

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
