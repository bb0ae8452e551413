"""The demo of reading on with a real broker, what has to hold after it, and that nothing of it is left."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from demo.read_on import ReadOnOutcome, check_read_on, run_demo_read_on
from tests.project.test_local_airflow import left_over

SENT = {offset: f"sha-{offset}" for offset in range(20)}
OUTCOME = ReadOnOutcome(sent=SENT, stopped_at=5, starts=(8, 12), read=[*SENT.items()][5:])


def failing(outcome: ReadOnOutcome) -> list[int]:
    return [number for number, check in enumerate(check_read_on(outcome)) if not check.holds]


def test_each_thing_that_is_wrong_is_found() -> None:
    read = OUTCOME.read
    assert failing(OUTCOME) == []
    assert failing(replace(OUTCOME, starts=(5, 12))) == [0]
    assert failing(replace(OUTCOME, starts=(8, 8))) == [1]
    for other in (read[1:], read[:-1], [read[0], *read], [read[1], read[0], *read[2:]]):
        assert failing(replace(OUTCOME, read=other)) == [2]
    assert failing(replace(OUTCOME, read=[(5, "another"), *read[1:]])) == [3]


@pytest.mark.integration
@pytest.mark.again
@pytest.mark.timeout(1_200)
def test_a_group_reads_what_was_deleted_and_on_to_the_live_end(tmp_path: Path) -> None:
    said, told = list[str](), list[str]()
    directory = tmp_path / f"read-on-of-{os.getpid()}-{time.monotonic_ns()}"
    directory.mkdir()
    assert run_demo_read_on(directory, said.append, told.append) == 0, told[-20:]
    assert len([line for line in told if line.startswith("  ok")]) == 4
    assert any("group billing: begins in orders-0 at offset 600" in line for line in told)
    assert left_over(directory) == []
    shutil.rmtree(directory)
