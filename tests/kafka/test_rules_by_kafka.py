"""The retention rules against Kafka's own UnifiedLog#deleteOldSegments, on random logs."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from storage_engine.kafka.rules import (
    LogFacts,
    RetentionSettings,
    Rule,
    SegmentFacts,
    Stop,
    delete_old_segments,
)
from tests.integration.jars import JAVA_PROJECTS, class_path, java

LOGS = 600
NOW_MS = 1_800_000_000_000

pytestmark = [pytest.mark.integration, pytest.mark.again]


def random_log(chance: random.Random) -> tuple[RetentionSettings, int, int, list[tuple[int, int, int]]]:
    """Return settings, log start, high watermark, and of each segment records, bytes of one, timestamp."""
    segments = [
        (
            chance.randint(1, 5),
            chance.choice((1, 40, 200)),
            NOW_MS - chance.choice((-50, 0, 10, 100, 100, 5000)),
        )
        for _ in range(chance.randint(1, 6))
    ]
    if chance.random() < 0.4:
        segments = [(count, size, NOW_MS - 9000) for count, size, _ in segments]
    end = sum(count for count, _, _ in segments)
    if chance.random() < 0.3:
        segments.append((0, 0, 0))
    watermark = end if chance.random() < 0.6 else chance.randint(0, end)
    start = chance.choice((0, watermark, chance.randint(0, watermark)))
    settings = RetentionSettings(
        delete=chance.random() < 0.85,
        retention_ms=chance.choice((-1, 0, 10, 99, 100, 4000)),
        retention_bytes=chance.choice((-1, -1, 0, 100, 300, 1000, 3000)),
    )
    return settings, start, watermark, segments


@pytest.mark.parametrize("version", ["kafka39", "kafka43"])
def test_what_goes_is_what_kafka_deletes(tmp_path: Path, version: str) -> None:
    chance = random.Random(17)
    cases = [random_log(chance) for _ in range(LOGS)]
    lines = [
        " ".join(
            [
                str(settings.retention_ms),
                str(settings.retention_bytes),
                "delete" if settings.delete else "compact",
                f"{start} {watermark} {NOW_MS}",
                *(":".join(map(str, segment)) for segment in segments),
            ]
        )
        for settings, start, watermark, segments in cases
    ]
    run = subprocess.run(
        [java(), "-cp", class_path(JAVA_PROJECTS / version), "Retention", str(tmp_path)],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    rules: Counter[Rule] = Counter()
    stops: Counter[Stop] = Counter()
    answers = [line for line in run.stdout.splitlines() if " | " in line]
    assert len(answers) == LOGS
    for (settings, start, watermark, _), answer in zip(cases, answers, strict=True):
        before, _, after = answer.partition(" | ")
        end, *parts = before.split()
        facts = tuple(SegmentFacts(*map(int, part.split(":"))) for part in parts)
        found = delete_old_segments(LogFacts(facts, start, watermark, int(end)), settings, NOW_MS)
        gone = {one.base_offset for one in found.deletions}
        # Where all go the broker begins an empty segment first.
        left = [one.base_offset for one in facts if one.base_offset not in gone] or [int(end)]
        assert left == [int(base) for base in after.split()], (settings, start, watermark, answer)
        rules.update(one.rule for one in found.deletions)
        stops.update(halt.stop for halt in found.halts)
    assert set(rules) == set(Rule)
    assert min(rules.values()) > 50
    assert {Stop.HIGH_WATERMARK, Stop.EMPTY, Stop.FUTURE, Stop.KEPT, Stop.END, Stop.POLICY, Stop.OFF} <= set(
        stops
    )
