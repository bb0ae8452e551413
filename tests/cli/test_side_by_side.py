"""Our commands on one store and lake at a time, as DAGs and people start them: none refuses another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from storage_engine.rocketmq.sample.writing import SampleRequest, write_sample
from tests.cli.conftest import Cli
from tests.rounds import ALL

SECONDS = float(os.environ.get("STORAGE_ENGINE_SIDE_BY_SIDE_SECONDS") or (300 if ALL else 0))
STORES = 2 if ALL else 1
END_MS = time.time_ns() // 10**6 // 86_400_000 * 86_400_000
SEGMENT_BYTES = 1 << 20


def sample(directory: Path, seed: int) -> str:
    """A store whose log has some 20 segments, all but the last days' expired."""
    request = SampleRequest(
        directory, messages=40_000, end_ms=END_MS, seed=seed, segment_bytes=SEGMENT_BYTES, topics=2, days=7
    )
    return write_sample(request).store


def segments(store: str) -> list[str]:
    return sorted(path.name for path in (Path(store) / "commitlog").iterdir())


def roles(store: str, lake: str) -> list[list[list[str]]]:
    """Return what each process does: two that delete, one that archives, and one that looks."""
    both = [store, "--lake", lake]
    clean = ["clean", *both, "--manual", "--max-segments", "1", "--json"]
    looks = [["plan", *both], ["lag", store], ["validate", *both], ["verify", *both], ["inspect", store]]
    if not ALL:
        looks = looks[:1]
    return [[clean], [clean], [["archive", *both, "--budget", "1MiB"]], looks]


def started(commands: list[list[str]]) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tests.cli.side_by_side_runner", json.dumps(commands), str(SECONDS), "1"]
    environment = {name: value for name, value in os.environ.items() if name != "STORAGE_ENGINE_WAIT"}
    root = Path(__file__).parents[2]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(words, **pipes, text=True, env=environment, cwd=root)


@pytest.mark.again
def test_no_command_of_ours_refuses_another(tmp_path: Path, cli: Cli) -> None:
    """With 300 s: eight processes on two stores and one lake."""
    lake = str(tmp_path / "lake")
    stores = [sample(tmp_path / f"sample-{seed}", seed) for seed in range(STORES)]
    assert cli("init-lake", "--lake", lake).exit_code == 0
    before = {store: segments(store) for store in stores}
    processes = [started(commands) for store in stores for commands in roles(store, lake)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        results: list[dict[str, Any]] = []
        for process in processes:
            lines, _ = process.communicate(timeout=SECONDS + 900)
            results += map(json.loads, lines.splitlines())
    finally:
        for process in processes:
            process.kill()
            process.wait()
    refused = [(one["words"][0], one["code"], one["err"]) for one in results if one["code"] != 0]
    assert refused == []
    for store in stores:
        left = segments(store)
        assert left != before[store]
        assert before[store][-len(left) :] == left
        assert cli("verify", store, "--lake", lake).exit_code == 0
