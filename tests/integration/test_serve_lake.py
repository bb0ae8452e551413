"""Consumers of Kafka read archived records from serve-lake, with their own clients, at their own offsets."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import ConfigResource

from storage_engine.kafka.codec.codec import CODEC
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake_server.users import set_user
from storage_engine.spark.session import spark_session
from tests.docs.code_blocks import blocks_of
from tests.integration.jars import JAVA_PROJECTS, class_path, java
from tests.integration.kafka_broker import SECONDS, admin_of, kafka_jars
from tests.integration.secured import certificate
from tests.kafka.lakes import archivable_segments, archive, new_lake
from tests.kafka_fixture import unpack
from tests.rounds import again_but
from tests.services.command_line import run_command

pytestmark = pytest.mark.integration

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kafka-read.md"
COMMAND = str(Path(sys.executable).with_name("storage-engine"))
LEVELS = ("read_uncommitted", "read_committed")
SERVED = re.compile(
    r"file://\S+: \d+ partitions? of \d+ topics? of cluster \S+ (?:is|are) served at (\S+:\d+)\."
)
Record = tuple[int, int, int, bytes | None, bytes | None]
"""Partition, offset, time in ms, key and value."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("serve-lake")


@pytest.fixture(scope="module")
def node(base: Path) -> Path:
    return unpack(base / "node")


@pytest.fixture(scope="module")
def lake(base: Path, node: Path) -> Lake:
    lake = new_lake(base / "lake")
    archive(lake, node, archivable_segments(node))
    return lake


@pytest.fixture(scope="module")
def address(lake: Lake, base: Path) -> Iterator[str]:
    with serving(base / "lake") as (found, _):
        yield found


@contextmanager
def serving(lake: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the command for the duration of the block, on a port that is free; its address and its process."""
    words = (COMMAND, "serve-lake", "--lake", str(lake))
    process = subprocess.Popen(
        [*words, *(() if "--kafka" in options else ("--kafka", "127.0.0.1:0")), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := SERVED.match(line):
                break
        else:
            pytest.fail("serve-lake ended before it served")
        yield found[1], process
    finally:
        process.kill()
        process.communicate()


def archived(node: Path, lake: Lake, topic: str, level: str) -> list[Record]:
    """The records of a topic that are archived, by the segments that its broker wrote.

    Of committed ones those below the first record of a transaction whose marker isn't archived.
    """
    rows = lake.messages().scan(row_filter=f"topic = '{topic}' and kind = 'message'").to_arrow().to_pylist()
    committed = {(row["partition"], row["offset"]) for row in rows if row["state"] == "committed"}
    found: list[Record] = []
    open_since: dict[tuple[int, int], int] = {}
    for segment in archivable_segments(node):
        name, _, number_text = segment.log.rpartition("-")
        if name != topic:
            continue
        data, number = memoryview(Path(segment.facts.path).read_bytes()), int(number_text)
        for decoded, _ in CODEC.decode(data, segment.base_offset):
            for row in decoded.to_pylist():
                if row["kind"] == "control":
                    open_since.pop((number, row["producer_id"]), None)
                elif row["kind"] == "message":
                    if row["transactional"]:
                        open_since.setdefault((number, row["producer_id"]), row["offset"])
                    time_ms = round(row["timestamp"].timestamp() * 1000)
                    found.append((number, row["offset"], time_ms, row["key"], row["value"]))
    if level == LEVELS[0]:
        return sorted(found)
    stable = {
        number: min((at for (of, _), at in open_since.items() if of == number), default=1 << 62)
        for number in {one[0] for one in found}
    }
    return sorted(one for one in found if one[:2] in committed and one[1] < stable[one[0]])


def consumer_at(address: str, group: str, **settings: Any) -> Consumer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            "enable.partition.eof": True,
            "log_level": 0,
            **named,
        }
    )


def consumed(consumer: Consumer, topic: str, first: int = 0) -> list[Record]:
    """What a consumer reads of a topic, from an offset up to the end of each partition."""
    partitions = consumer.list_topics(topic, timeout=SECONDS).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, first) for number in partitions])
    found: list[Record] = []
    ended: set[int] = set()
    while len(ended) < len(partitions):
        message = consumer.poll(SECONDS)
        assert message is not None
        if (error := message.error()) is None:
            found.append(record_of(message))
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(int(str(message.partition())))
    return sorted(found)


def record_of(message: Message) -> Record:
    key, value = message.key(), message.value()
    assert not isinstance(key, str)
    assert not isinstance(value, str)
    return message.partition() or 0, message.offset() or 0, message.timestamp()[1], key, value


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("topic", again_but(("txn", "javacodec", "hdrs", "plain", "delrec"), "txn"))
def test_librdkafka_reads_what_the_broker_wrote(
    address: str, node: Path, lake: Lake, topic: str, level: str
) -> None:
    consumer = consumer_at(address, f"all-{topic}", isolation_level=level)
    first = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=SECONDS)[0]
    # Of the topic "delrec" records were deleted up to one inside a segment.
    assert (first > 0) == (topic == "delrec")
    expected = [one for one in archived(node, lake, topic, level) if one[1] >= first]
    assert expected
    assert consumed(consumer, topic, first) == expected
    consumer.close()


@pytest.mark.parametrize("level", LEVELS)
def test_aiokafka_reads_it(address: str, node: Path, lake: Lake, level: str) -> None:
    async def read() -> list[Record]:
        consumer = AIOKafkaConsumer(bootstrap_servers=address, isolation_level=level, check_crcs=True)
        await consumer.start()
        try:
            partitions = [AioPartition("txn", number) for number in (0, 1)]
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            ends = await consumer.end_offsets(partitions)
            found: list[Record] = []
            for partition in partitions:
                while await consumer.position(partition) < ends[partition]:
                    got = await consumer.getmany(partition, timeout_ms=1000)
                    found += [
                        (one.partition, one.offset, one.timestamp, one.key, one.value)
                        for one in got.get(partition, [])
                    ]
            return sorted(found)
        finally:
            await consumer.stop()

    assert asyncio.run(read()) == archived(node, lake, "txn", level)


@pytest.mark.again
@pytest.mark.parametrize("version", ["3.9.2", "4.3.1"])
@pytest.mark.parametrize("level", LEVELS)
def test_java_reads_it_as_a_group(
    address: str, node: Path, lake: Lake, tmp_path: Path, version: str, level: str
) -> None:
    found = sorted(
        (int(p), int(o), int(t), k, v)
        for p, o, t, k, v in map(str.split, read_by_java(address, version, level))
    )
    assert found == [(*one[:3], digest(one[3]), digest(one[4])) for one in archived(node, lake, "txn", level)]


def read_by_java(address: str, version: str, level: str, protocol: str = "classic") -> list[str]:
    words = [java(), "-Xmx128m", "-cp", kafka_jars(version).class_path]
    words += [str(JAVA_PROJECTS / "kafka_broker" / "ReadsOn.java"), address, level, "txn"]
    words += [f"java-{version}-{level}", protocol]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=True).stdout.splitlines()


@pytest.mark.again
@pytest.mark.parametrize("version", ["3.9.2", "4.3.1"])
def test_java_says_that_the_server_has_no_groups_of_kip_848(address: str, version: str) -> None:
    (said,) = read_by_java(address, version, LEVELS[0], "consumer")
    assert "group.protocol=classic" in said or "does not support the new CONSUMER group protocol" in said


def as_bytes(data: bytearray | None) -> bytes | None:
    return None if data is None else bytes(data)


COLUMNS = ("partition", "offset", "unix_millis(timestamp) AS time_ms", "key", "value")


@pytest.mark.again
def test_sparks_kafka_source_reads_it(address: str, node: Path, lake: Lake) -> None:
    jobs = list(itertools.product(("txn", "javacodec", "hdrs", "plain"), LEVELS))
    for job, found in zip(jobs, read_by_spark(address, jobs), strict=True):
        assert found == archived(node, lake, *job), job


def read_by_spark(address: str, jobs: Iterable[tuple[str, str]]) -> list[list[Record]]:
    """What Spark's Kafka source reads of topics at levels of isolation."""
    jars, every = class_path(JAVA_PROJECTS / "spark_kafka").replace(os.pathsep, ","), []
    with spark_session("reads the lake", settings={"spark.jars": jars}) as spark:
        for topic, level in jobs:
            options = {"kafka.bootstrap.servers": address, "subscribe": topic, "kafka.isolation.level": level}
            rows = spark.read.format("kafka").options(**options).load().selectExpr(*COLUMNS).collect()
            every.append(
                sorted((one.partition, one.offset, one.time_ms, *map(as_bytes, one[3:])) for one in rows)
            )
    return every


@pytest.mark.again
def test_a_sink_of_kafka_connect_writes_it(address: str, node: Path, lake: Lake, tmp_path: Path) -> None:
    values = [one[4] for one in archived(node, lake, "javacodec", LEVELS[0])]
    assert_connect_writes(address, "javacodec", values, tmp_path)


def assert_connect_writes(address: str, topic: str, values: Iterable[bytes | None], directory: Path) -> None:
    """Have a sink of connect-standalone write a topic's values, one a line, until all are there."""
    written = directory / "written"
    worker = {
        "bootstrap.servers": address,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "offset.storage.file.filename": directory / "offsets",
        "listeners": "http://127.0.0.1:0",
        "consumer.auto.offset.reset": "earliest",
        "plugin.discovery": "only_scan",
    }
    sink = {
        "name": "lines",
        "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
        "topics": topic,
        "file": written,
    }
    for name, settings in (("worker", worker), ("sink", sink)):
        lines = [f"{key}={value}\n" for key, value in settings.items()]
        (directory / f"{name}.properties").write_text("".join(lines))
    words = [java(), "-Xmx256m", "-cp", class_path(JAVA_PROJECTS / "kafka_connect")]
    words += ["org.apache.kafka.connect.cli.ConnectStandalone"]
    expected = b"".join(b"%b\n" % (b"null" if value is None else value) for value in values)
    with (directory / "log").open("wb") as log:
        connect = subprocess.Popen(
            [*words, *(str(directory / f"{name}.properties") for name in ("worker", "sink"))],
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + 300
        while not written.exists() or written.stat().st_size < len(expected):
            said = (directory / "log").read_text()
            assert connect.poll() is None, said[-4000:]
            assert time.monotonic() < deadline, said[-4000:]
            time.sleep(0.2)
    finally:
        connect.kill()
        connect.wait()
    assert written.read_bytes() == expected


@pytest.mark.again
@pytest.mark.parametrize("level", LEVELS)
def test_the_console_consumer_prints_it(address: str, node: Path, lake: Lake, level: str) -> None:
    for topic in ("txn", "plain"):
        expected = archived(node, lake, topic, level)
        assert printed(address, topic, len(expected), level) == expected


def printed(address: str, topic: str, count: int, level: str) -> list[Record]:
    """What Kafka's console consumer prints of a topic that has so many records."""
    shown = ("timestamp", "partition", "offset", "key", "value")
    separators = {"key.separator": "\x1e", "line.separator": "\x1f", "null.literal": "\x1d"}
    settings = {**{f"print.{name}": "true" for name in shown}, **separators}
    words = [java(), "-Xmx128m", "-cp", class_path(JAVA_PROJECTS / "kafka_connect")]
    words += ["org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", address]
    words += ["--topic", topic, "--from-beginning", "--isolation-level", level, "--max-messages", str(count)]
    for name, value in settings.items():
        words += ["--formatter-property", f"{name}={value}"]
    ended = subprocess.run(words, capture_output=True, timeout=300, check=True)
    found = []
    for line in ended.stdout.split(b"\x1f")[:-1]:
        time_text, partition, offset, key, value = line.split(b"\x1e")
        at, number, time_ms = (int(one.rpartition(b":")[2]) for one in (offset, partition, time_text))
        found.append((number, at, time_ms, *(None if one == b"\x1d" else one for one in (key, value))))
    return sorted(found)


def digest(data: bytes | None) -> str:
    return "null" if data is None else hashlib.sha256(data).digest()[:8].hex()


def test_a_group_goes_on_where_it_was_after_the_server_was_killed(
    lake: Lake, base: Path, tmp_path: Path
) -> None:
    positions = str(tmp_path / "positions.json")
    with serving(base / "lake", "--positions", positions) as (address, process):
        consumer = consumer_at(address, "reader", enable_auto_commit=False)
        consumer.subscribe(["plain"])
        first = [next_message(consumer) for _ in range(100)]
        consumer.commit(asynchronous=False)
        process.kill()
        process.wait()
        consumer.close()
    with serving(base / "lake", "--positions", positions) as (address, _):
        consumer = consumer_at(address, "reader")
        consumer.subscribe(["plain"])
        assert next_message(consumer).offset() == (first[-1].offset() or 0) + 1
        consumer.close()


def next_message(consumer: Consumer) -> Message:
    while (message := consumer.poll(SECONDS)) is None or message.error() is not None:
        assert message is not None, "nothing came"
    return message


def test_the_partitions_of_a_group_are_shared_by_its_members(address: str) -> None:
    members = [consumer_at(address, "shared") for _ in range(2)]
    for member in members:
        member.subscribe(["txn"])
    while sorted(len(member.assignment()) for member in members) != [1, 1]:
        for member in members:
            member.poll(0.2)
    members[0].close()
    while len(members[1].assignment()) != 2:
        members[1].poll(0.2)
    members[1].close()


def test_a_member_with_an_id_of_its_own_goes_on_at_once_when_it_starts_again(address: str) -> None:
    settings = {"group_instance_id": "one", "max_poll_interval_ms": 300_000, "session_timeout_ms": 45_000}
    for _ in range(2):
        member = consumer_at(address, "static", **settings)
        member.subscribe(["plain"])
        # Far below the time that a group waits for a member that went.
        assert member.poll(30) is not None
        # It leaves without a word, as one that was killed.
        member.unsubscribe()
        del member


def test_administrators_see_the_server_its_topics_and_its_groups(address: str) -> None:
    member = consumer_at(address, "described")
    member.subscribe(["txn"])
    while not member.assignment():
        member.poll(0.2)
    admin = admin_of(address)
    (node,) = admin.describe_cluster(request_timeout=SECONDS).result(SECONDS).nodes
    assert f"{node.host}:{node.port}" == address
    listed = admin.list_consumer_groups(request_timeout=SECONDS).result(SECONDS)
    assert "described" in {one.group_id for one in listed.valid}
    (described,) = admin.describe_consumer_groups(["described"], request_timeout=SECONDS).values()
    (found,) = described.result(SECONDS).members
    assert {(one.topic, one.partition) for one in found.assignment.topic_partitions} == {
        ("txn", 0),
        ("txn", 1),
    }
    for topic, is_there in (("txn", True), ("nothing", False)):
        (config,) = admin.describe_configs([ConfigResource("topic", topic)]).values()
        if is_there:
            assert config.result(SECONDS) == {}
        else:
            with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
                config.result(SECONDS)
    member.close()


def test_seeks_by_time_find_the_first_record_of_it(address: str, node: Path, lake: Lake) -> None:
    records = [one for one in archived(node, lake, "plain", LEVELS[0]) if one[0] == 0]
    consumer = consumer_at(address, "by-time")
    for at in (records[0][2] - 1, records[len(records) // 2][2], records[-1][2]):
        (found,) = consumer.offsets_for_times([TopicPartition("plain", 0, at)], timeout=SECONDS)
        assert found.offset == next(one[1] for one in records if one[2] >= at)
    (found,) = consumer.offsets_for_times([TopicPartition("plain", 0, records[-1][2] + 1)], timeout=SECONDS)
    assert found.offset == -1
    consumer.close()


def test_what_is_produced_is_refused(address: str) -> None:
    producer = Producer({"bootstrap.servers": address, "log_level": 0, "message.timeout.ms": 20_000})
    refused: list[Any] = []
    producer.produce("plain", b"new", on_delivery=lambda error, _: refused.append(error))
    producer.flush(SECONDS)
    assert [one.code() for one in refused] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]


def test_it_is_served_as_the_page_says(lake: Lake, base: Path, tmp_path: Path) -> None:
    """The commands of docs/kafka-read.md, with this lake and a free port."""
    users = tmp_path / "users.json"
    set_user(users, "analyst", "secret", ["hdrs", "tx-*"])
    server_pem, server_key = certificate(tmp_path)
    blocks = [
        one.text for one in blocks_of(PAGE) if "serve-lake" in one.text and "--upstream" not in one.text
    ]
    plain, secured = (
        shlex.split(text.removeprefix("$ ").partition("\nfile:")[0].replace("\\\n", " "))[4:]
        for text in blocks
    )
    assert SERVED.match(blocks[0].splitlines()[1])
    with serving(base / "lake", *at_a_free_port(plain), "--positions", str(tmp_path / "a")) as (address, _):
        consumer = consumer_at(address, "page")
        assert consumed(consumer, "hdrs")
        consumer.close()
    files = {"server.pem": server_pem, "server.key": server_key, "users.json": users}
    words = [str(files.get(word, word)) for word in at_a_free_port(secured)]
    # Who is told another name can't connect by it here.
    words[words.index("--advertised") + 1] = words[words.index("--kafka") + 1]
    with serving(base / "lake", *words, "--positions", str(tmp_path / "b")) as (address, _):
        consumer = consumer_at(
            address,
            "page",
            security_protocol="SASL_SSL",
            ssl_ca_location=str(server_pem),
            ssl_endpoint_identification_algorithm="none",
            sasl_mechanism="SCRAM-SHA-256",
            sasl_username="analyst",
            sasl_password="secret",
        )
        assert consumed(consumer, "hdrs")
        consumer.close()


def at_a_free_port(words: list[str]) -> list[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        words[words.index("--kafka") + 1] = f"127.0.0.1:{free.getsockname()[1]}"
    return words


@pytest.mark.parametrize("mechanism", again_but(["PLAIN", "SCRAM-SHA-256"], "SCRAM-SHA-256"))
def test_a_user_reads_its_topics_alone(lake: Lake, base: Path, tmp_path: Path, mechanism: str) -> None:
    users = tmp_path / "users.json"
    set_user(users, "reader", "secret", ["tx*"])
    assert "secret" not in users.read_text()
    with serving(base / "lake", "--users", str(users), "--positions", str(tmp_path / "p.json")) as (
        address,
        _,
    ):
        login = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
            "sasl_username": "reader",
        }
        consumer = consumer_at(address, "users", sasl_password="secret", **login)
        assert set(consumer.list_topics(timeout=SECONDS).topics) == {"txn"}
        assert consumed(consumer, "txn")
        consumer.close()
        for wrong in ({"sasl_password": "other", **login}, {}):
            stranger = consumer_at(address, "users", **wrong)
            with pytest.raises(KafkaException):
                stranger.list_topics(timeout=5)
            stranger.close()


def test_a_file_of_users_that_others_can_read_is_refused(lake: Lake, base: Path, tmp_path: Path) -> None:
    users = tmp_path / "users.json"
    set_user(users, "reader", "secret", ["*"])
    users.chmod(0o644)
    for options, expected in (
        (["--users", str(users)], "only its owner"),
        (["--kafka", "0.0.0.0:0"], "expected TLS"),
        (["--cluster", "another"], "expected an archived cluster"),
        (["--upstream-ca", str(users)], "expected --upstream BROKERS"),
        (["--upstream", "127.0.0.1:1", "--upstream-ca", str(users)], "expected usable certificates as PEM"),
        (
            ["--upstream", "127.0.0.1:1", "--kafka", "127.0.0.1:0"],
            "expected a broker that answers, found none",
        ),
    ):
        positions = ("--positions", tmp_path / "positions.json")
        ended = run_command("serve-lake", "--lake", base / "lake", *positions, *options)
        assert ended.exit_code in (1, 2)
        assert expected in ended.err
        assert "Nothing was started" in ended.err
