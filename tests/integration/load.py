"""Producers and consumers on a real broker, that say what became of each message (tests/java/Load.java)."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.integration.broker import Broker
from tests.integration.jvm import java_command

START_SECONDS = 180
STOP_SECONDS = 180


@dataclass(frozen=True)
class Sent:
    """A message that the broker said it has."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    sha256: str
    at_ms: int
    micros: int


@dataclass
class Load:
    """Running producers and consumers.

    :param record: what they write down; see Load.java.
    """

    process: subprocess.Popen[bytes]
    record: Path
    console: Path

    def stop(self) -> None:
        """End them, and wait until all of it is written down."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(STOP_SECONDS)
        assert code == 0, self.console.read_text(errors="replace")[-4000:]

    def lines(self) -> list[dict[str, Any]]:
        """What is written down so far."""
        whole = self.record.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def sent(self) -> list[Sent]:
        return [
            Sent(
                line["sent"],
                line["queue"],
                line["queueOffset"],
                line["physicalOffset"],
                line["sha256"],
                line["atMs"],
                line["micros"],
            )
            for line in self.lines()
            if "sent" in line
        ]

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Known when they were stopped."""
        found: dict[str, Any] = self.lines()[-1]["summary"]
        return found


@contextmanager
def running_load(
    broker: Broker,
    name_server_port: int,
    work: Path,
    *,
    topics: Sequence[str],
    groups: Sequence[str] = (),
    queues: int = 4,
    threads: int = 2,
    rate: int = 100,
    body_bytes: int = 1000,
    seed: int = 0,
) -> Iterator[Load]:
    """Producers and consumers for the duration of the block, unless it stops them; topics are created.

    :param rate: messages a second, over all ``threads``; 0: as many as they can.
    :param groups: names; ``name@rate`` takes no more than so many messages a second.
    """
    work.mkdir(parents=True, exist_ok=True)
    record, console = work / "load.jsonl", work / "load-console.log"
    arguments = {
        "name-server": f"127.0.0.1:{name_server_port}",
        "broker": f"127.0.0.1:{broker.port}",
        "record": record,
        "topics": ",".join(topics),
        "queues": queues,
        "threads": threads,
        "rate": rate,
        "body-bytes": body_bytes,
        "seed": seed,
    }
    options = [f"{key}={value}" for key, value in arguments.items()]
    command = java_command(work, "Load", [*options, *(f"group={group}" for group in groups)], ["-Xms64m"])
    with console.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, cwd=work
        )
    load = Load(process, record, console)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not (record.exists() and record.stat().st_size):
            said = console.read_text(errors="replace")[-4000:]
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.1)
        yield load
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.kill()
        process.wait()
