"""Logs by chance, and what ``UnifiedLog#deleteOldSegments`` of Kafka's own classes deleted of them.

``tests/fixtures/kafka/retention-runs.jsonl.xz`` keeps what the classes of Kafka 3.9.2 and 4.3.1 did with the
same logs (``tests/java/kafka``).
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage_engine.kafka.retention_rules import (
    LogFacts,
    RetentionSettings,
    SegmentFacts,
    delete_old_segments,
)

KEPT = Path(__file__).resolve().parents[1] / "fixtures" / "kafka" / "retention-runs.jsonl.xz"
VERSIONS = ("3.9.2", "4.3.1")
SEED, COUNT = 20_261_124, 900


@dataclass(frozen=True)
class RetentionRun:
    """One log and what the broker's class made of it.

    :param deleted: base offsets.
    :param copied: remote storage has all that it needs to have; true of logs without.
    """

    version: str
    log: LogFacts
    settings: RetentionSettings
    now_ms: int
    deleted: tuple[int, ...]
    copied: bool
    new_start: int
    line: str

    @classmethod
    def of(cls, line: str) -> RetentionRun:
        """Read a line that the Java program printed."""
        given: dict[str, Any] = json.loads(line)
        policy = given["policy"].split(",")
        retention_ms, retention_bytes, local_ms, local_bytes = given["retention"]
        # Compacted logs have no remote storage, and one that copies nothing goes by the whole retention.
        remote = given["remote"] and "compact" not in policy
        copies = remote and not given["copy_disabled"]
        settings = RetentionSettings(
            # Kafka 4.3 trims what remote storage has by local retention, even with an empty policy.
            delete="delete" in policy or (copies and given["version"] != "3.9.2"),
            compact="compact" in policy,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            remote=copies,
            local_retention_ms=local_ms,
            local_retention_bytes=local_bytes,
        )
        segments = tuple(
            SegmentFacts(base, size, record_ms if record_ms >= 0 else mtime_ms)
            for base, size, record_ms, mtime_ms in given["segments"]
        )
        start = given["local_start"] if remote else given["start"]
        kept = set(given["kept"])
        return cls(
            version=given["version"],
            log=LogFacts(segments, start, given["high_watermark"], given["end"]),
            settings=settings,
            now_ms=given["now_ms"],
            deleted=tuple(one.base_offset for one in segments if one.base_offset not in kept),
            copied=not copies or given["highest_remote"] >= given["end"] - 1,
            new_start=given["new_local_start"] if remote else given["new_start"],
            line=line,
        )

    @property
    def expected(self) -> tuple[int, ...]:
        """Return what the rules of this package delete."""
        found = delete_old_segments(self.log, self.settings, self.now_ms)
        return tuple(one.base_offset for one in found.deletions)


def runs_of(lines: Iterable[str]) -> list[RetentionRun]:
    return [RetentionRun.of(line) for line in lines]


def kept_runs() -> list[RetentionRun]:
    return runs_of(lzma.decompress(KEPT.read_bytes()).decode().splitlines())


def check(runs: Iterable[RetentionRun]) -> None:
    """Hold the rules against what the broker's class deleted.

    Where remote storage lacks something, the broker keeps that too: then the rules are an upper bound.
    """
    for run in runs:
        if run.copied:
            assert run.deleted == run.expected, run.line
        else:
            assert run.deleted == run.expected[: len(run.deleted)], run.line
        if run.deleted:
            left = [one.base_offset for one in run.log.segments[len(run.deleted) :]]
            begins = left[0] if left else run.log.end_offset
            assert run.new_start == max(run.log.start_offset, begins), run.line
