"""Kafka's own UnifiedLog deletes what the rules of retention say: the kept runs, and new logs by chance."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.integration.kafka_retention import java_retention
from tests.kafka.retention_runs import COUNT, SEED, VERSIONS, check, kept_runs, runs_of

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.timeout(1_200)]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_kept_runs_are_the_broker_s(version: str, tmp_path: Path) -> None:
    made = java_retention(version, SEED, COUNT, tmp_path)

    assert made == [run.line for run in kept_runs() if run.version == version]


@pytest.mark.parametrize("version", VERSIONS)
def test_logs_by_chance_lose_what_the_rules_say(version: str, tmp_path: Path) -> None:
    check(runs_of(java_retention(version, random.randrange(1 << 32), 500, tmp_path)))
