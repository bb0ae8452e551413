"""Histories of what operators do lose nothing; and where a protection is taken out, the harness says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.rounds import rounds

pytestmark = pytest.mark.slow

SECONDS = rounds("STORAGE_ENGINE_HISTORY_SECONDS", 60, 3600)


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


def test_what_operators_do_loses_nothing() -> None:
    said = histories("--seconds", SECONDS, "--seed", os.environ.get("STORAGE_ENGINE_SEED", "1"))
    (count,) = re.findall(r"^(\d+) histories, \d+ operations, 0 failures", said, re.MULTILINE)
    assert int(count) > 1


def test_a_history_without_a_protection_is_found_to_lose_something() -> None:
    said = histories("--check").splitlines()
    assert [line.endswith("nothing is lost") for line in said] == [True, False] * 2
