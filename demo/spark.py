"""What Spark itself wrote down of a demo's jobs: its event log, read without Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from demo.checks import DemoCheck
from storage_engine.core.wording import count_text

JOBS = ("storage-engine consumer lag", "storage-engine archive")
"""Names of the applications that a cleanup's two Spark jobs run as, in their order."""


def event_log_conf(directory: Path) -> dict[str, str]:
    """Return the Spark settings by which each application writes its events as lines of JSON, a file each."""
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": directory.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }


def check_spark(directory: Path) -> DemoCheck:
    """Both jobs ran in Spark, by the event log."""
    stages = count_stages(directory)
    found = ", ".join(f"{name} ({count_text(count, 'stage')})" for name, count in stages.items()) or "none"
    return DemoCheck(
        tuple(stages) == JOBS and all(stages.values()), f"the jobs ran in Spark, by its event log: {found}"
    )


def count_stages(directory: Path) -> Mapping[str, int]:
    """Return how many stages each application completed, by its name, in the order in which they started."""
    started: list[tuple[int, str, int]] = []
    for path in directory.glob("[!.]*"):
        events = [json.loads(line) for line in path.read_text().splitlines()]
        kinds = Counter(event["Event"] for event in events)
        for event in events:
            if event["Event"] == "SparkListenerApplicationStart":
                stages = kinds["SparkListenerStageCompleted"]
                started.append((event["Timestamp"], event["App Name"], stages))
    return {name: stages for _, name, stages in sorted(started)}
