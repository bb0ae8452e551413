"""The demo of reading on: a group that stopped reads what its broker has deleted meanwhile, and the live end.

A broker serves producers, and what is proven is deleted from it. The group's client is started again with
another address and nothing else. Whatever way the demo ends, no process that it started lives on.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from demo.brokers.jvm import HOST, free_ports
from demo.brokers.kafka import Kafka, find_jars
from demo.checks import DemoCheck, tell_checks
from demo.dag_run import Say
from demo.directory import clear, run_demo_in
from demo.kafka_live import (
    BROKER_SETTINGS,
    RETENTION_SECONDS,
    SAME_DISK,
    SETTINGS,
    log_of,
    shell_with_hold,
    wait_for_expired,
)
from demo.kafka_load import LAGS, ORDERS, KafkaLoad, make_topics
from demo.kafka_served import limits
from demo.shell import MAIN
from storage_engine.core.extras import KAFKA, SERVER
from storage_engine.exceptions import StorageEngineError
from storage_engine.project.up import ProcessTree

_NAMES = ("node", "lake")
_READ_BEFORE = 600
_EXPIRED = 2
_WAIT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class ReadOnOutcome:
    """What was seen of a demo.

    :param sent: SHA-256 of each value that the broker took, by offset.
    :param stopped_at: the group's position when it stopped.
    :param starts: where the broker's log began when the group started again, and when it had read all.
    :param read: offsets in the order in which the group read them, with the SHA-256 of each value.
    """

    sent: Mapping[int, str]
    stopped_at: int
    starts: tuple[int, int]
    read: Sequence[tuple[int, str]]


def check_read_on(outcome: ReadOnOutcome) -> tuple[DemoCheck, ...]:
    """Compare what a group read with what was written."""
    first, last = outcome.starts
    end = max(outcome.sent) + 1
    offsets = [offset for offset, _ in outcome.read]
    return (
        DemoCheck(
            outcome.stopped_at < first,
            f"group {LAGS} stopped at offset {outcome.stopped_at}, and the broker began at {first} when it "
            "started again",
        ),
        DemoCheck(first < last, f"the broker deleted on while it read: up to {last}"),
        DemoCheck(
            offsets == list(range(outcome.stopped_at, end)),
            f"it has read each offset from {outcome.stopped_at} up to the live end {end}, once and in order",
        ),
        DemoCheck(
            all(outcome.sent.get(offset) == value for offset, value in outcome.read),
            "and each value as it was written, by SHA-256",
        ),
    )


class _Reader:
    """The group's client, at whichever address; it reads and commits until it is told to end."""

    def __init__(self, address: str) -> None:
        self.read: list[tuple[int, str]] = []
        self.failed: list[str] = []
        self._address, self._ending = address, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_for(self, offset: int) -> None:
        """Wait until it has read an offset.

        :raises StorageEngineError: it hasn't in time, or has failed.
        """
        deadline = time.monotonic() + _WAIT_SECONDS
        while not self.read or self.read[-1][0] < offset:
            if self.failed or time.monotonic() > deadline:
                last = self.read[-1][0] if self.read else None
                raise StorageEngineError(
                    f"Group {LAGS}: expected it to read offset {offset} within {_WAIT_SECONDS:.0f} s, found "
                    f"{last}. {' '.join(self.failed[:1])}"
                )
            time.sleep(0.1)

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(_WAIT_SECONDS)

    def _run(self) -> None:
        from confluent_kafka import Consumer

        consumer = Consumer({"bootstrap.servers": self._address, "group.id": LAGS, "log_level": 0})
        consumer.subscribe([ORDERS])
        while not self._ending.is_set():
            # A few at a time: the broker is to delete while there is more to read.
            for message in consumer.consume(100, 0.5):
                value = message.value()
                if message.error() is None and isinstance(value, bytes):
                    self.read.append((message.offset() or 0, hashlib.sha256(value).hexdigest()))
                else:
                    self.failed.append(str(message.error()))
        consumer.close()


def run_demo_read_on(directory: Path, say: Say, tell: Say) -> int:
    """Run the demo in ``directory``, afresh.

    :param say: receives progress, line by line.
    :param tell: receives what commands print and the summary, line by line.
    :return: exit status: 0 if everything held, 1 if something did not, 128 + signal number when
        interrupted.
    :raises MissingExtraError: confluent-kafka or kio isn't installed.
    :raises BadInputError: the directory holds something that is not an earlier demo; no JDK, or no Maven.
    :raises StorageEngineError: a command, a broker or the group's client failed.
    """
    KAFKA.require("demo-read-on")
    SERVER.require("demo-read-on")
    return run_demo_in(directory, _NAMES, say, lambda place: _run(place, say, tell))


def _run(directory: Path, say: Say, tell: Say) -> int:
    started = time.monotonic()
    clear(directory, _NAMES)
    with Kafka(directory / "node", find_jars(directory), BROKER_SETTINGS) as kafka:
        outcome = _beside(kafka, directory / "lake", say, tell)
    checks = check_read_on(outcome)
    tell_checks(checks, "the group and the broker alone", tell)
    held = all(check.holds for check in checks)
    tell("Everything held." if held else "NOT everything held.")
    tell(f"Took {time.monotonic() - started:.0f} s.")
    return 0 if held else 1


def _beside(kafka: Kafka, lake: Path, say: Say, tell: Say) -> ReadOnOutcome:
    store = kafka.server_properties
    make_topics(kafka.address, SETTINGS)
    say(f"a broker at {kafka.address}: what is older than {RETENTION_SECONDS} seconds may go")
    shell = shell_with_hold(tell, kafka.address, lake, store, say)
    load = KafkaLoad(kafka.address)
    try:
        stopped_at = load.read_orders(_READ_BEFORE)
        say(f"producers write; group {LAGS} has read {ORDERS} up to offset {stopped_at}, and stops")
        wait_for_expired(kafka, stopped_at, _EXPIRED)
        say("clean: what is expired and proven goes, what the group has not read among it")
        shell.run("clean", store, SAME_DISK)
        first = limits(kafka.address, log_of(ORDERS))[0]
        with _serving(lake, kafka, tell) as address:
            say(f"group {LAGS} starts again, with {address} as its brokers and nothing else changed")
            reader = _Reader(address)
            reader.wait_for(stopped_at)
            wait_for_expired(kafka, first, 1)
            shell.run("clean", store, SAME_DISK)
            last = limits(kafka.address, log_of(ORDERS))[0]
            clients = load.stop()
            sent = {
                offset: value for (topic, offset), value in clients.acknowledged.items() if topic == ORDERS
            }
            say("the load has ended")
            reader.wait_for(max(sent))
            reader.stop()
    finally:
        load.stop()
    return ReadOnOutcome(sent, stopped_at, (first, last), reader.read)


@contextmanager
def _serving(lake: Path, kafka: Kafka, tell: Say) -> Iterator[str]:
    """Run serve-lake for the duration of the block; where it serves."""
    address, log, tree = f"{HOST}:{free_ports(1)}", lake.parent / "serve-lake.log", ProcessTree()
    log.unlink(missing_ok=True)
    words = ["serve-lake", "--lake", str(lake), "--kafka", address, "--upstream", kafka.address]
    tell(f"\n$ storage-engine {' '.join(words)} &")
    try:
        tree.start("serve-lake", [sys.executable, "-c", MAIN, *words], dict(os.environ), log)
        deadline = time.monotonic() + _WAIT_SECONDS
        while " served at " not in log.read_text():
            if tree.ended() or time.monotonic() > deadline:
                raise StorageEngineError(f"serve-lake: expected it to serve. It said:\n{log.read_text()}")
            time.sleep(0.1)
        yield address
    finally:
        tree.stop()
        for line in log.read_text().splitlines():
            tell(f"  {line}")
