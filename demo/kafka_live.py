"""The live demo of Kafka: only what is proven goes from a real broker under load, and all of it comes back.

One consumer group keeps up, another one lags, and a transaction is open: what these need stays, and is named.
Once the group has read and the transaction has ended, it goes too. Then a second node serves what is in the
lake. Each command is shown as a person would type it. Whatever way the demo ends, no process that it started
lives on.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.brokers.jvm import Jars
from demo.brokers.kafka import Kafka, find_jars
from demo.checks import DemoCheck, tell_checks
from demo.dag_run import Say
from demo.directory import clear, run_demo_in
from demo.kafka_load import (
    CLICKS,
    KEEPS_UP,
    LAGS,
    ORDERS,
    PAYMENTS,
    TOPICS,
    ClientsSaw,
    KafkaLoad,
    make_topics,
    retention_of,
)
from demo.kafka_served import Record, committed, consume, limits
from demo.shell import Shell
from storage_engine.core.extras import KAFKA
from storage_engine.exceptions import StorageEngineError
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig

Served = Mapping[str, Sequence[Record]]
"""What a broker gives a reader of committed records, or a lake has of these, by topic."""
_Hashes = Mapping[tuple[str, int], str]
"""SHA-256 of values by topic and offset."""


@dataclass(frozen=True, slots=True)
class LiveMoment:
    """What stood in the way of deletion at a moment, and where logs began after it.

    :param lagging_at: the position of the group that lags.
    :param transaction_at: the first offset of the open transaction.
    :param starts: by topic.
    """

    lagging_at: int
    transaction_at: int
    starts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class KafkaOutcome:
    """What was seen of a demo.

    :param first: when a group lagged and a transaction was open.
    :param last_starts: where logs began once neither was.
    :param settings: of each topic that keep or expire records: before, held and afterwards.
    :param served: by the broker, when the load had ended and the hold had not.
    """

    clients: ClientsSaw
    first: LiveMoment
    last_starts: Mapping[str, int]
    settings: tuple[object, object, object]
    served: Served


def log_of(topic: str) -> str:
    return f"{topic}-0"


def check_kafka_live(outcome: KafkaOutcome, archived: Served, elsewhere: Served) -> tuple[DemoCheck, ...]:
    """Compare clients, brokers and lake with what they have to be.

    :param archived: what the lake has.
    :param elsewhere: what a second node serves of what was restored.
    """
    clients, first = outcome.clients, outcome.first
    sent = len(clients.acknowledged)
    clicks = sum(topic == CLICKS for topic, _ in clients.acknowledged)
    before, held, after = outcome.settings
    return (
        DemoCheck(not clients.failed and sent > 0, f"no client failed, and {sent} records were acknowledged"),
        DemoCheck(
            clients.kept_up == list(range(clicks)),
            f"group {KEEPS_UP} has read all {clicks} records of {CLICKS}, each once",
        ),
        DemoCheck(
            first.starts[CLICKS] > 0
            and 0 < first.starts[ORDERS] <= first.lagging_at
            and 0 < first.starts[PAYMENTS] <= first.transaction_at,
            f"at first {CLICKS} began at {first.starts[CLICKS]}, {ORDERS} at {first.starts[ORDERS]}: not "
            f"above offset {first.lagging_at}, which group {LAGS} reads next; {PAYMENTS} at "
            f"{first.starts[PAYMENTS]}: not above {first.transaction_at}, where the transaction begins",
        ),
        DemoCheck(
            outcome.last_starts[ORDERS] > first.lagging_at
            and outcome.last_starts[PAYMENTS] > first.transaction_at,
            f"then {ORDERS} began at {outcome.last_starts[ORDERS]}, and {PAYMENTS} at "
            f"{outcome.last_starts[PAYMENTS]}",
        ),
        *_account(outcome, _hashes(archived), _hashes(elsewhere)),
        DemoCheck(
            before != held and before == after, "unmanaged, the topics' settings are as before the hold"
        ),
    )


def _account(outcome: KafkaOutcome, archived: _Hashes, elsewhere: _Hashes) -> tuple[DemoCheck, ...]:
    """Each record that was acknowledged is served or in the lake, and what is in the lake is served again."""
    sent, served = outcome.clients.acknowledged, _hashes(outcome.served)
    gone = sent.keys() - served.keys()
    return (
        DemoCheck(
            bool(gone) and {**archived, **served} == sent,
            f"each of them is served by the broker ({len(served)}) or in the lake ({len(archived)}), "
            "by SHA-256",
        ),
        DemoCheck(
            elsewhere == archived and gone <= elsewhere.keys(),
            f"a second node serves all {len(elsewhere)} from the lake, among them the {len(gone)} that the "
            "first one no longer has",
        ),
    )


def _hashes(records: Served) -> _Hashes:
    return {
        (topic, offset): hashlib.sha256(value or b"").hexdigest()
        for topic, of_topic in records.items()
        for offset, _, value in of_topic
    }


_NAMES = ("node", "lake", "elsewhere")
RETENTION_SECONDS = 10
SETTINGS = {"segment.bytes": str(1 << 20), "retention.ms": str(1000 * RETENTION_SECONDS)}
"""Of each topic: the smallest segments that a broker allows, and an age that a demo can wait for."""
BROKER_SETTINGS = {
    "log.retention.check.interval.ms": 1000,
    "log.initial.task.delay.ms": 0,
    "file.delete.delay.ms": 1000,
}
"""It deletes within seconds what has expired, unless it is kept from that."""
_READ_BY_LAGGING = 1_200
_EXPIRED = 2
"""Segments of each topic behind what is still needed, before anything is deleted."""
_WAIT_SECONDS = 180.0
_APPLIED_SECONDS = 2.5
_IS_HELD, _NOT_YET = 0, 1
SAME_DISK = "--allow-same-disk"
_BLOCK = ("--lag-policy", "block")
_WHATEVER_GOES = ("--leave-unproven", "1000000", "--reason", "the demo is over")


def run_demo_kafka_live(directory: Path, say: Say, tell: Say) -> int:
    """Run the demo in ``directory``, afresh.

    :param say: receives progress, line by line.
    :param tell: receives what commands print and the summary, line by line.
    :return: exit status: 0 if everything held, 1 if something did not, 128 + signal number when
        interrupted.
    :raises MissingExtraError: confluent-kafka isn't installed.
    :raises BadInputError: the directory holds something that is not an earlier demo; no JDK, or no Maven.
    :raises StorageEngineError: a command or a broker failed.
    """
    KAFKA.require("demo-kafka-live")
    return run_demo_in(directory, _NAMES, say, lambda place: _run(place, say, tell))


def _run(directory: Path, say: Say, tell: Say) -> int:
    started = time.monotonic()
    clear(directory, _NAMES)
    node, lake, elsewhere = (directory / name for name in _NAMES)
    jars = find_jars(directory)
    with Kafka(node, jars, BROKER_SETTINGS) as kafka:
        outcome = _beside(kafka, lake, say, tell)
        kafka.stop()
    say("a second node gets the cluster's metadata, and its records from the lake")
    restored = _served_elsewhere(node, lake, elsewhere, jars, tell)
    archived = {topic: committed(open_lake(LakeConfig.local(lake)), log_of(topic)) for topic in TOPICS}
    checks = check_kafka_live(outcome, archived, restored)
    tell_checks(checks, "clients, brokers and lake alone", tell)
    tell(f"Node       {node}")
    tell(f"Lake       {lake}")
    tell(f"Elsewhere  {elsewhere}")
    tell("Everything held." if all(check.holds for check in checks) else "NOT everything held.")
    tell(f"Took {time.monotonic() - started:.0f} s.")
    return 0 if all(check.holds for check in checks) else 1


def _beside(kafka: Kafka, lake: Path, say: Say, tell: Say) -> KafkaOutcome:
    """Hold, archive and delete while the broker serves, and say what was seen."""
    store = kafka.server_properties
    make_topics(kafka.address, SETTINGS)
    before = retention_of(kafka.address)
    say(f"a broker at {kafka.address}: it deletes what is older than {RETENTION_SECONDS} seconds")
    shell = shell_with_hold(tell, kafka.address, lake, store, say)
    held = retention_of(kafka.address)
    load = KafkaLoad(kafka.address)
    try:
        say(f"producers write to {', '.join(TOPICS)}; group {KEEPS_UP} keeps up, group {LAGS} lags")
        lagging_at = load.read_orders(_READ_BY_LAGGING)
        transaction_at = load.begin_transaction()
        say(f"a transaction begins in {PAYMENTS} at offset {transaction_at}, and stays open")
        wait_for_expired(kafka, transaction_at, _EXPIRED)
        shell.run("lag", store)
        say("clean: what is expired and proven goes, other than what somebody still needs")
        shell.run("clean", store, SAME_DISK, *_BLOCK)
        first = LiveMoment(lagging_at, transaction_at, _starts(kafka))
        say(f"the transaction commits, and group {LAGS} reads all that is there")
        load.commit_transaction()
        wait_for_expired(kafka, load.read_orders(), 1)
        shell.run("clean", store, SAME_DISK, *_BLOCK)
        last_starts = _starts(kafka)
    finally:
        clients = load.stop()
    say("the load has ended")
    shell.run("validate", store)
    served = {topic: consume(kafka.address, log_of(topic)) for topic in TOPICS}
    say("the hold ends: from now on the broker deletes by its own rules again, proven or not")
    shell.run("unmanage", store, SAME_DISK, *_WHATEVER_GOES)
    return KafkaOutcome(
        clients=clients,
        first=first,
        last_starts=last_starts,
        settings=(before, held, retention_of(kafka.address)),
        served=served,
    )


def shell_with_hold(tell: Say, address: str, lake: Path, store: Path, say: Say) -> Shell:
    """Make a lake, have the broker's topics held, and return the shell in which that was done.

    :param address: of the broker.
    """
    shell = Shell(
        tell,
        {"STORAGE_ENGINE_BROKER": address, "STORAGE_ENGINE_LAKE": lake, "STORAGE_ENGINE_DELETES_US": "1"},
    )
    shell.run("init-lake", "--broker-type", "kafka")
    hold_back(shell, store, say)
    return shell


def hold_back(shell: Shell, store: Path, say: Say) -> None:
    """Take over the retention of a broker's topics."""
    shell.run("hold", store, SAME_DISK, expected=(_IS_HELD, _NOT_YET))
    say("a broker applies a setting a moment after it shows it")
    time.sleep(_APPLIED_SECONDS)
    shell.run("hold", store, SAME_DISK)


def _starts(kafka: Kafka) -> dict[str, int]:
    return {topic: limits(kafka.address, log_of(topic))[0] for topic in TOPICS}


def wait_for_expired(kafka: Kafka, from_offset: int, count: int) -> None:
    """Wait until of each topic so many closed segments behind an offset have passed their retention."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while any(_expired(kafka, topic, from_offset) < count for topic in TOPICS):
        kafka.check_alive()
        if time.monotonic() > deadline:
            raise StorageEngineError(
                f"The producers: expected {count} segments that have expired within {_WAIT_SECONDS:.0f} s, "
                f"found fewer. This machine is too busy, or see {kafka.log}."
            )
        time.sleep(0.5)


def _expired(kafka: Kafka, topic: str, from_offset: int) -> int:
    directory = kafka.server_properties.parent / "data" / log_of(topic)
    closed = sorted(directory.glob("*.log"))[:-1]
    before = time.time() - RETENTION_SECONDS
    return sum(int(path.stem) >= from_offset and path.stat().st_mtime < before for path in closed)


def _served_elsewhere(node: Path, lake: Path, elsewhere: Path, jars: Jars, tell: Say) -> Served:
    """Restore all logs for a copy of the node that has none of them, and let a broker serve them there."""
    shutil.copytree(node, elsewhere, ignore=shutil.ignore_patterns(*map(log_of, TOPICS), "*.lock", "*.log.*"))
    properties = elsewhere / "server.properties"
    properties.write_text(properties.read_text().replace(str(node), str(elsewhere)))
    restored = elsewhere / "restored"
    Shell(tell).run("restore", "--lake", lake, "--to", restored, "--for-store", properties)
    settings = {"log.dirs": f"{elsewhere / 'data'},{restored}", "log.retention.ms": -1}
    with Kafka(elsewhere, jars, settings) as kafka:
        return {topic: consume(kafka.address, log_of(topic)) for topic in TOPICS}
