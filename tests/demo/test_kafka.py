"""The demo of Kafka from its first line to its last, with a real broker, and where none can be started."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from demo.kafka import run_demo_kafka
from storage_engine.exceptions import BadInputError

HELD = [
    "ok   the lake has 18 segments of 4 logs, each with its file's SHA-256",
    "ok   the 9 restored files of payments-0 are those that were lost, byte for byte",
]
SERVED = [
    "ok   a broker serves the 494 committed records that the lake has, at the same offsets",
    "ok   a new record went to offset 590, behind the last restored one",
    "ok   and it is served behind them",
]


@pytest.mark.integration
@pytest.mark.again
@pytest.mark.timeout(600)
def test_a_broker_serves_the_log_that_the_demo_lost(tmp_path: Path) -> None:
    directory, said, told = tmp_path / "demo", list[str](), list[str]()
    directory.mkdir()
    # What an earlier one left is made anew.
    (directory / ".storage-engine-demo").touch()
    (directory / "node").mkdir()
    assert run_demo_kafka(directory, said.append, told.append) == 0
    assert [line.strip() for line in told if line.startswith("  ok")] == HELD + SERVED
    assert "Everything held." in told
    assert any("future-timestamp" in line for line in told)
    assert any("size-not-reached" in line for line in told)
    assert any("compacted" in line for line in told)
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(one.info["cmdline"])]


@pytest.mark.slow
@pytest.mark.again
@pytest.mark.timeout(600)
def test_without_a_jdk_it_ends_with_what_files_and_lake_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    said, told = list[str](), list[str]()
    (tmp_path / "demo").mkdir()
    assert run_demo_kafka(tmp_path / "demo", said.append, told.append) == 0
    assert [line.strip() for line in told if line.startswith("  ok")] == HELD
    assert any("no broker is started: A real broker needs a JDK" in line for line in said)


def test_it_wipes_no_directory_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    with pytest.raises(BadInputError, match="expected an empty directory or an earlier demo's, found node"):
        run_demo_kafka(tmp_path, print, print)
    assert (tmp_path / "node").is_dir()
