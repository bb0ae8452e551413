"""Hold, observe and delete 1,000 partitions beside a real Kafka broker: ``python -m benchmarks.kafka_live``.

Each partition has two closed segments that have expired, and an active one. The hold is set, renewed with
nothing to do, and observed. Then closed segments are archived, which isn't measured, and a release deletes
from all partitions what is proven. A producer in a process of its own sends at a steady rate all the while.
Spans in which nothing else happens lie between, so that a busy machine slows both. Said of each are the
seconds, the requests of our client by name, the processor seconds of the broker beyond what the producer
takes, and how long the producer waits.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.common import Bench, report
from demo.brokers.kafka import Kafka, find_jars
from storage_engine.core.clock import clock_ms
from storage_engine.cycle import archive_here
from storage_engine.kafka.cluster.client import Cluster
from storage_engine.lake.move.making import make_lake
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.lag import LagSummary
from storage_engine.model.settings.policy import LagPolicy, Policy
from storage_engine.model.settings.store_settings import WE_DELETE
from storage_engine.project.up import interruptible
from storage_engine.retention import steps
from storage_engine.retention.hold.holding import hold
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore

TOPICS, PARTITIONS = 100, 10
HOUR_MS = 3_600_000
RECORDS, RECORD_BYTES = 25, 1000
"""Of each partition; three segments."""
SEGMENT_BYTES = 11_000
LIMITS_PROCESSOR_SECONDS = {"hold": 5.0, "renew": 5.0, "observe": 3.0, "release": 30.0}
"""Aims, for all partitions: what this process takes, whoever else is busy."""
MUST_WAIT = 0.5
"""An aim: beside us a record's p99 is at most twice as long."""
RATE = 500
ALONE_SECONDS = 15.0
LOOKS = 3
_WAIT_SECONDS = 60.0
_LOADED = "loaded"

SETTINGS = {
    "log.retention.check.interval.ms": 1000,
    # Nothing expires before it is held.
    "log.initial.task.delay.ms": 24 * HOUR_MS,
    "file.delete.delay.ms": 1000,
}
_NO_LAG = LagSummary(0, 0, 0, 0, 0, (), 0)


@dataclass(frozen=True, slots=True)
class Span:
    """Something that was done, or nothing.

    :param processor_seconds: of this process.
    :param broker_seconds: of the broker's processors.
    :param requests: of our client by name.
    """

    begin: float
    end: float
    processor_seconds: float
    broker_seconds: float
    requests: Mapping[str, int]

    @property
    def seconds(self) -> float:
        return self.end - self.begin


class Counted:
    """An AdminClient whose requests are counted by name."""

    def __init__(self, admin: AdminClient, counts: Counter[str]) -> None:
        self._admin, self._counts = admin, counts

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._admin, name)
        if name == "poll" or not callable(found):
            return found

        def call(*words: Any, **named: Any) -> Any:
            self._counts[name] += 1
            return found(*words, **named)

        return call


class Watched:
    """A broker's processor time, and our requests to it, by what was done."""

    def __init__(self, kafka: Kafka, counts: Counter[str]) -> None:
        own = psutil.Process().children(recursive=True)
        (self._java,) = [one for one in own if str(kafka.server_properties) in one.cmdline()]
        self._counts = counts

    def span(self, do: Callable[[], object]) -> Span:
        self._counts.clear()
        broker, ours, begin = self._processor_seconds(), time.process_time(), time.monotonic()
        do()
        end, ours = time.monotonic(), time.process_time() - ours
        return Span(begin, end, ours, self._processor_seconds() - broker, dict(self._counts))

    def alone(self) -> Span:
        return self.span(lambda: time.sleep(ALONE_SECONDS))

    def _processor_seconds(self) -> float:
        used = self._java.cpu_times()
        return float(used.user + used.system)


def send_steadily(address: str, ending: Event, told: Any) -> None:
    """Send until it is to end, then tell when each record was sent, and for how long it waited."""
    producer = Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": 0, "log_level": 0})
    waited: list[tuple[float, float]] = []
    begin = time.monotonic()
    number = 0
    while not ending.is_set():
        due = begin + number / RATE
        time.sleep(max(0.0, due - time.monotonic()))
        sent = time.monotonic()
        producer.produce(
            _LOADED,
            b"x" * RECORD_BYTES,
            partition=0,
            on_delivery=lambda error, _, sent=sent: waited.append(
                (sent, math.inf if error else time.monotonic() - sent)
            ),
        )
        producer.poll(0)
        number += 1
    producer.flush(_WAIT_SECONDS)
    told.put(waited)


@contextmanager
def steady_producer(address: str, waited: list[tuple[float, float]]) -> Iterator[None]:
    """Let a process of its own send all the while; what its records waited is there in the end."""
    spawned = multiprocessing.get_context("spawn")
    ending, told = spawned.Event(), spawned.Queue()
    process = spawned.Process(target=send_steadily, args=(address, ending, told), daemon=True)
    process.start()
    try:
        yield
        ending.set()
        waited += told.get(timeout=2 * _WAIT_SECONDS)
    finally:
        process.terminate()
        process.join()


def fill(address: str, topics: int) -> None:
    """Write what has expired by the topics' own settings."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    config = {"retention.ms": str(HOUR_MS), "internal.segment.bytes": str(SEGMENT_BYTES)}
    names = [f"topic-{number:04d}" for number in range(topics)]
    wanted = [NewTopic(name, PARTITIONS, 1, config=config) for name in names]
    for made in admin.create_topics([*wanted, NewTopic(_LOADED, 1, 1)]).values():
        made.result(_WAIT_SECONDS)
    producer = Producer(
        {"bootstrap.servers": address, "linger.ms": 50, "batch.num.messages": 5, "log_level": 0}
    )
    made_ms = clock_ms() - 2 * HOUR_MS
    for _ in range(RECORDS):
        for name in names:
            for partition in range(PARTITIONS):
                producer.produce(name, b"v" * RECORD_BYTES, partition=partition, timestamp=made_ms)
                producer.poll(0)
        producer.flush(_WAIT_SECONDS)
    if left := producer.flush(_WAIT_SECONDS):
        raise AssertionError(f"expected all records to be taken, found {left} that aren't")


def held(store: ManagedStore) -> None:
    """Hold the store until the hold counts."""
    while not hold(store).status.held:
        time.sleep(1.0)


def measured(
    store: ManagedStore, kafka: Kafka, counts: Counter[str], partitions: int
) -> tuple[dict[str, Span], list[Span]]:
    """Do it all. :return: the spans by what was done, and those in which nothing was."""
    watched, spans = Watched(kafka, counts), dict[str, Span]()
    with opened(store) as context:
        # What is imported and compiled at first use is there from then on.
        context.broker.hold.status(clock_ms())
        context.broker.snapshot(clock_ms())
    alone = [watched.alone()]
    spans["hold"] = watched.span(lambda: hold(store))
    held(store)
    alone.append(watched.alone())
    spans["renew"] = watched.span(lambda: hold(store))
    with opened(store) as context:
        broker = context.broker
        looks = watched.span(lambda: [broker.hold.status(clock_ms()) for _ in range(LOOKS)])
    spans["observe"] = looks
    alone.append(watched.alone())
    steps.make_plan(store, "run")
    steps.archive_planned(store, "run", archive_here)
    steps.record_lag(store, "run", _NO_LAG, [])
    spans["release"] = watched.span(lambda: steps.release(store, "run"))
    alone.append(watched.alone())
    # Asked again, a run says what it did.
    logs = {one.log for one in steps.release(store, "run").deleted}
    if len(logs) != partitions:
        raise AssertionError(f"expected deletions of {partitions} logs, found {len(logs)}")
    return spans, alone


def figures(spans: Mapping[str, Span], alone: Sequence[Span]) -> dict[str, float | int]:
    """Return seconds, requests and the broker's processor seconds of each thing that was done."""
    idle = sum(one.broker_seconds for one in alone) / sum(one.seconds for one in alone)
    found: dict[str, float | int] = {"broker_idle_processor_seconds_per_second": idle}
    for name, span in spans.items():
        times = LOOKS if name == "observe" else 1
        found[f"{name}_seconds"] = span.seconds / times
        found[f"{name}_processor_seconds"] = span.processor_seconds / times
        found[f"{name}_requests"] = sum(span.requests.values()) // times
        extra = span.broker_seconds - idle * span.seconds
        found[f"{name}_broker_processor_seconds"] = max(0.0, extra) / times
        found |= {f"{name}_{request}": count // times for request, count in span.requests.items()}
    return found


def p99_ms(waited: Sequence[tuple[float, float]], spans: Sequence[Span]) -> float:
    """Return what the slowest hundredth of the records sent in some spans waited at the least."""
    there = sorted(
        seconds for sent, seconds in waited if any(span.begin <= sent < span.end for span in spans)
    )
    return 1000 * there[math.ceil(0.99 * len(there)) - 1]


def run(topics: int = TOPICS, directory: Path | None = None) -> list[Bench]:
    counts: Counter[str] = Counter()
    connected = Cluster._connect

    def counted(self: Cluster, settings: Mapping[str, str]) -> Any:
        return Counted(connected(self, settings), counts)

    Cluster._connect = counted  # type: ignore[method-assign]
    waited: list[tuple[float, float]] = []
    with interruptible(), tempfile.TemporaryDirectory(dir=directory) as work:
        root = Path(work).resolve()
        with Kafka(root / "node", find_jars(root), SETTINGS) as kafka:
            fill(kafka.address, topics)
            policy = Policy(lag_policy=LagPolicy.IGNORE)
            store = ManagedStore.local(
                "bench", str(kafka.server_properties), root / "managed", broker="kafka", policy=policy
            )
            live = LiveBroker(kafka.address, deletes=WE_DELETE, allow_same_disk=True)
            store = replace(store, live=live)
            make_lake(store.lake, "kafka")
            with steady_producer(kafka.address, waited):
                spans, alone = measured(store, kafka, counts, topics * PARTITIONS)
    detail = {"partitions": topics * PARTITIONS, **figures(spans, alone)}
    with_us, without = p99_ms(waited, list(spans.values())), p99_ms(waited, alone)
    detail |= {"record_p99_ms": with_us, "record_p99_ms_alone": without}
    benches = [
        Bench(f"kafka-live-{name}", limit / float(detail[f"{name}_processor_seconds"]), 1.0, detail)
        for name, limit in LIMITS_PROCESSOR_SECONDS.items()
    ]
    return [*benches, Bench("kafka-live-record-p99", without / with_us, MUST_WAIT, detail)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=TOPICS, help="of ten partitions each")
    parser.add_argument("--directory", type=Path, help="on the disk to measure; default: for temporary files")
    asked = parser.parse_args()
    report(run(asked.topics, asked.directory))
