"""Histories of what operators do lose nothing; and where a protection is taken out, the harness says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.rounds import rounds

pytestmark = [pytest.mark.slow, pytest.mark.again]

SECONDS = rounds("STORAGE_ENGINE_HISTORY_SECONDS", 3, 3600)


def histories(*words: object) -> str:
    """Run ``python -m tests.histories`` with these words, to a good end; returns what it said."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.histories", *map(str, words)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-4_000:]
    return ran.stdout


@pytest.fixture(scope="module")
def said() -> str:
    """What one process said: it takes seconds to import and compile what its forks need."""
    return histories("--check", "--seconds", SECONDS, "--seed", os.environ.get("STORAGE_ENGINE_SEED", "1"))


def test_what_operators_do_loses_nothing(said: str) -> None:
    (count,) = re.findall(r"^(\d+) histories, \d+ operations, 0 failures", said, re.MULTILINE)
    assert int(count) > 0


def test_a_history_without_a_protection_is_found_to_lose_something(said: str) -> None:
    found = said.splitlines()[:4]
    assert [line.endswith("nothing is lost") for line in found] == [True, False] * 2
