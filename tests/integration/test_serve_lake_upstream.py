"""Consumers read on from a lake into the live cluster: one log, each record once, and never another's."""

from __future__ import annotations

import asyncio
import itertools
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from kio.schema.errors import ErrorCode

from demo.brokers.kafka import Kafka
from storage_engine.kafka.format.transaction_index import parse_transaction_index
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake_server.archive_reader import LakeReader
from storage_engine.lake_server.archived_partitions import read_archive
from storage_engine.lake_server.group_answers import CommittedPositions, give_back
from storage_engine.lake_server.partition_logs import Logs, PartitionRecords
from storage_engine.lake_server.upstream import (
    ClusterView,
    FetchLimits,
    PartitionFetch,
    PartitionKey,
    Upstream,
)
from storage_engine.model.store import Segment
from tests.docs.code_blocks import blocks_of
from tests.integration import kafka_transactions
from tests.integration.kafka_broker import (
    SECONDS,
    VERSIONS,
    admin_of,
    make_topics,
    produce,
    running_kafka,
    served,
    small,
)
from tests.integration.kafka_cluster import Cluster, running_cluster
from tests.integration.secured import certificate
from tests.integration.test_kafka_live import PLAIN_PASSWORD, PLAIN_USER, SASL, SETTINGS
from tests.integration.test_serve_lake import (
    COMMAND,
    LEVELS,
    PAGE,
    assert_connect_writes,
    at_a_free_port,
    consumer_at,
    printed,
    read_by_spark,
    serving,
)
from tests.kafka.lakes import archive, new_lake, segments_of
from tests.kafka_fixture import unpack
from tests.rounds import ALL, again_but

pytestmark = pytest.mark.integration

VALUE_BYTES = 500


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as kafka:
        yield kafka


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return new_lake(tmp_path / "lake")


@contextmanager
def onward(
    directory: Path, kafka: Kafka | Cluster, *options: str
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve the lake in a directory with the cluster behind it, as docs/kafka-read.md says."""
    (block,) = (one.text for one in blocks_of(PAGE) if "--upstream" in one.text)
    words = at_a_free_port(shlex.split(block.removeprefix("$ "))[4:])
    words[words.index("--upstream") + 1] = kafka.address
    with serving(directory / "lake", *words, *options) as server:
        yield server


def lines_of(process: subprocess.Popen[str]) -> str:
    """What a server has said since it served; it ends."""
    process.send_signal(signal.SIGTERM)
    return process.communicate(timeout=SECONDS)[0]


def fill(kafka: Kafka, topic: str, count: int, first: int = 0) -> None:
    values = (b"%d " % number + b"x" * VALUE_BYTES for number in range(first, first + count))
    produce(kafka.address, topic, values, batch_num_messages=5)


def closed(kafka: Kafka, topic: str) -> list[Segment]:
    return segments_of(kafka.server_properties.parent, f"{topic}-0")[:-1]


def keep(lake: Lake, kafka: Kafka, segments: Sequence[Segment]) -> int:
    """Archive segments; the offset behind them."""
    archive(lake, kafka.server_properties.parent, segments)
    return segments[-1].end_offset


def delete(kafka: Kafka | Cluster, topic: str, before: int, partition: int = 0) -> None:
    """Delete the broker's records below an offset."""
    admin = admin_of(kafka.address)
    (done,) = admin.delete_records([TopicPartition(topic, partition, before)]).values()
    done.result(SECONDS)


def read(consumer: Consumer, topic: str, first: int, end: int) -> dict[int, bytes | None]:
    """What a consumer gets from an offset on, in order, up to one before ``end`` at least."""
    consumer.assign([TopicPartition(topic, 0, first)])
    found: dict[int, bytes | None] = {}
    while not found or max(found) < end - 1:
        message = consumer.poll(SECONDS)
        assert message is not None, f"nothing came behind {max(found, default=first)}"
        if (error := message.error()) is None:
            assert max(found, default=-1) < (message.offset() or 0)
            found[message.offset() or 0] = value_of(message)
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
    return found


def value_of(message: Message) -> bytes | None:
    value = message.value()
    assert not isinstance(value, str)
    return value


def test_records_that_only_the_lake_has_are_followed_by_the_clusters_up_to_the_live_end(
    kafka: Kafka, lake: Lake, tmp_path: Path
) -> None:
    make_topics(kafka.address, "orders", "later", **small(VERSIONS[-1]))
    fill(kafka, "orders", 400)
    expected = served(kafka.address, "orders")
    segments = closed(kafka, "orders")
    seam = keep(lake, kafka, segments[: len(segments) // 2])
    delete(kafka, "orders", seam)
    with onward(tmp_path, kafka) as (address, process):
        consumer = consumer_at(address, "onward")
        # Neither clients nor groups are told another broker than this server.
        assert [f"{one.host}:{one.port}" for one in consumer.list_topics().brokers.values()] == [address]
        assert consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=SECONDS) == (0, 400)
        assert read(consumer, "orders", 0, 400) == expected
        # It waits at the end, and what is written comes.
        fill(kafka, "orders", 5, first=400)
        assert list(read(consumer, "orders", 398, 405)) == list(range(398, 405))
        # The cluster deletes on while a reader is behind: the lake's newest commit has it.
        read(consumer, "orders", seam, seam + 1)
        delete(kafka, "orders", keep(lake, kafka, segments[len(segments) // 2 :]))
        assert {at: value for at, value in read(consumer, "orders", seam, 405).items() if at < 400} == {
            at: value for at, value in expected.items() if at >= seam
        }
        # A topic of which nothing is archived is the cluster's alone.
        fill(kafka, "later", 3)
        assert list(read(consumer, "later", 0, 3)) == [0, 1, 2]
        consumer.close()
        assert "LOST" not in lines_of(process)


@pytest.mark.again
def test_an_answer_of_the_cluster_is_no_longer_than_a_connection_may_hold(
    kafka: Kafka, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topics(kafka.address, "held", **small(VERSIONS[-1]))
    fill(kafka, "held", 200)
    seam = keep(lake, kafka, closed(kafka, "held")[:1])
    host, _, port = kafka.address.rpartition(":")

    async def fetched() -> int:
        reader = LakeReader(lake, None, cache_bytes=1 << 20, skip_holes=False)
        with closing(reader), closing(Upstream([(host, int(port))], reader.archive.cluster)) as upstream:
            await upstream.connect()
            asked = [PartitionFetch(("held", 0), seam, 1 << 20)]
            (found,) = await Logs(reader, upstream, print).fetch(asked, FetchLimits(0, 1 << 20, 1, 0.0))
            return len(found.records)

    whole = asyncio.run(fetched())
    monkeypatch.setattr("storage_engine.lake_server.partition_logs._MOST_OF_CLUSTER", whole // 2)
    assert 0 < asyncio.run(fetched()) <= whole // 2


@pytest.mark.again
def test_other_clients_read_what_both_have(kafka: Kafka, lake: Lake, tmp_path: Path) -> None:
    """Kafka's console consumer, Spark's Kafka source and a sink of Kafka Connect."""
    make_topics(kafka.address, "both", **small(VERSIONS[-1]))
    fill(kafka, "both", 400)
    expected = served(kafka.address, "both")
    assert list(expected) == list(range(400))
    segments = closed(kafka, "both")
    delete(kafka, "both", keep(lake, kafka, segments[: len(segments) // 2]))
    with onward(tmp_path, kafka) as (address, _):
        (by_spark,) = read_by_spark(address, [("both", LEVELS[0])])
        for found in (by_spark, printed(address, "both", len(expected), LEVELS[0])):
            assert {offset: value for _, offset, _, _, value in found} == expected
        assert_connect_writes(address, "both", expected.values(), tmp_path)


@pytest.mark.again
def test_partitions_of_several_leaders_are_read_on_also_when_one_of_them_goes(
    lake: Lake, tmp_path: Path
) -> None:
    topic, numbers = "spread", range(3)
    with running_cluster(tmp_path / "cluster") as cluster:

        def fill_all(first: int, end: int) -> None:
            for number in numbers:
                values = (b"%d " % at + b"x" * VALUE_BYTES for at in range(first, end))
                produce(cluster.address, topic, values, partition=number, batch_num_messages=5)

        make_topics(cluster.address, topic, partitions=3, replicas=3, **small(VERSIONS[-1]))
        fill_all(0, 200)
        leaders = [cluster.leader(topic, number) or 0 for number in numbers]
        assert len(set(leaders)) == 3
        for number, leader in enumerate(leaders):
            directory = cluster.nodes[leader].server_properties.parent
            segments = segments_of(directory, f"{topic}-{number}")[:-1]
            archive(lake, directory, segments)
            delete(cluster, topic, segments[-1].end_offset, number)
        with onward(tmp_path, cluster) as (address, _):
            consumer = consumer_at(address, "spread")
            consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
            found: dict[int, list[int]] = {number: [] for number in numbers}

            def read_up_to(end: int) -> None:
                while any(len(offsets) < end for offsets in found.values()):
                    message = next_record(consumer)
                    found[message.partition() or 0].append(message.offset() or 0)

            read_up_to(200)
            cluster.nodes[leaders[0]].kill()
            fill_all(200, 250)
            read_up_to(250)
            consumer.close()
    assert all(offsets == list(range(250)) for offsets in found.values())


@pytest.mark.again
def test_a_cluster_is_asked_by_tls(lake: Lake, tmp_path: Path) -> None:
    pem, key = certificate(tmp_path)
    keystore = tmp_path / "keystore.pem"
    keystore.write_bytes(key.read_bytes() + pem.read_bytes())
    settings = {
        "listener.name.tls.ssl.keystore.type": "PEM",
        "listener.name.tls.ssl.keystore.location": keystore,
    }
    with running_kafka(tmp_path / "node", VERSIONS[-1], settings, {"TLS": "SSL"}) as kafka:
        make_topics(kafka.address, "by-tls", **small(VERSIONS[-1]))
        fill(kafka, "by-tls", 200)
        delete(kafka, "by-tls", keep(lake, kafka, closed(kafka, "by-tls")))
        options = ("--upstream", kafka.addresses["TLS"], "--upstream-ca", str(pem))
        with serving(tmp_path / "lake", *options) as (address, _):
            consumer = consumer_at(address, "by-tls")
            assert list(read(consumer, "by-tls", 0, 200)) == list(range(200))
            consumer.close()
        # Whose certificate nobody named as signed is no broker of the cluster.
        (tmp_path / "other").mkdir()
        other, _ = certificate(tmp_path / "other")
        words = (COMMAND, "serve-lake", "--lake", str(tmp_path / "lake"), *options[:-1], str(other))
        ended = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS)
        assert ended.returncode != 0
        assert "CERTIFICATE_VERIFY_FAILED" in ended.stderr


@pytest.mark.again
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_a_cluster_that_demands_a_login_is_read_on_into(lake: Lake, tmp_path: Path, mechanism: str) -> None:
    topic, secret = "by-login", "lake-secret"
    # Each login is good for seconds: what is asked later is asked on another connection.
    settings = {name: value for name, value in SETTINGS.items() if "sasl" in name}
    for kind in ("plain", "scram-sha-512"):
        settings[f"listener.name.sasl.{kind}.connections.max.reauth.ms"] = 3000
    scram = ("--add-scram", f"SCRAM-SHA-512=[name={PLAIN_USER},password={PLAIN_PASSWORD}]")
    with running_kafka(tmp_path / "node", VERSIONS[-1], settings, {SASL: "SASL_PLAINTEXT"}, scram) as kafka:
        make_topics(kafka.address, topic, **small(VERSIONS[-1]))
        fill(kafka, topic, 200)
        delete(kafka, topic, keep(lake, kafka, closed(kafka, topic)))
        login = tmp_path / "login.properties"
        options = ("--upstream", kafka.addresses[SASL], "--upstream-login", str(login))
        words = (COMMAND, "serve-lake", "--lake", str(tmp_path / "lake"), *options)

        def write(password: str) -> None:
            login.write_text(
                f"sasl.mechanism={mechanism}\nsasl.username={PLAIN_USER}\nsasl.password={password}\n"
            )

        for password, mode, said in (
            (secret, 0o600, "expected that a broker accepts it, found"),
            (PLAIN_PASSWORD, 0o640, "that only its owner can read"),
        ):
            write(password)
            login.chmod(mode)
            ended = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS)
            assert (ended.returncode != 0, said in ended.stderr) == (True, True), ended.stderr
            assert password not in ended.stderr
        login.chmod(0o600)
        with serving(tmp_path / "lake", *options) as (address, process):
            consumer = consumer_at(address, topic)
            assert list(read(consumer, topic, 0, 200)) == list(range(200))
            time.sleep(4)
            fill(kafka, topic, 5, first=200)
            assert list(read(consumer, topic, 198, 205)) == list(range(198, 205))
            consumer.close()
            # No broker has ended a connection for want of another login.
            assert lines_of(process) == ""


@pytest.mark.parametrize("level", again_but(LEVELS, "read_committed"))
def test_transactions_that_are_open_at_the_seam_end_as_the_cluster_says(
    kafka: Kafka, lake: Lake, tmp_path: Path, level: str
) -> None:
    """Wherever the lake ends, a reader gets what it gets of the broker that has everything."""
    topic = kafka_transactions.TOPIC
    if topic not in admin_of(kafka.address).list_topics(timeout=SECONDS).topics:
        make_topics(kafka.address, topic, internal_segment_bytes=kafka_transactions.SEGMENT_BYTES)
        kafka_transactions.write(kafka.address, 20)
        abort_over_segments(kafka, topic)
    expected = served(kafka.address, topic, level)
    segments = closed(kafka, topic)
    end = max(expected) + 1
    log = kafka.server_properties.parent / "data" / f"{topic}-0"
    aborted = [
        one
        for path in log.glob("*.txnindex")
        for one in parse_transaction_index(path.read_bytes(), path.name)
    ]
    crossed = [
        place
        for place in range(1, len(segments))
        if any(one.first_offset < segments[place].base_offset <= one.last_offset for one in aborted)
    ]
    places = sorted({*range(1, len(segments), 5), *crossed[:3]}) if ALL else crossed[:1]
    assert crossed
    kept = 0
    for place in places:
        keep(lake, kafka, segments[kept:place])
        kept = place
        with onward(tmp_path, kafka) as (address, _):
            consumer = consumer_at(address, "transactions", isolation_level=level)
            assert read(consumer, topic, 0, end) == expected, place
            consumer.close()


def abort_over_segments(kafka: Kafka, topic: str) -> None:
    """Write a transaction that is open while other records fill segments, and more behind its marker."""
    inside = Producer({"bootstrap.servers": kafka.address, "transactional.id": topic, "log_level": 0})
    inside.init_transactions(SECONDS)
    inside.begin_transaction()
    inside.produce(topic, b"aborted", partition=0)
    inside.flush(SECONDS)
    fill(kafka, topic, 100, first=100)
    inside.abort_transaction(SECONDS)
    fill(kafka, topic, 100, first=200)


@pytest.mark.again
def test_what_is_open_at_the_seam_waits_while_the_cluster_is_away_and_the_lake_is_served(
    kafka: Kafka, lake: Lake, tmp_path: Path
) -> None:
    topic = "away"
    make_topics(kafka.address, topic, **small(VERSIONS[-1]))
    fill(kafka, topic, 100)
    abort_over_segments(kafka, topic)
    expected = served(kafka.address, topic, "read_committed")
    assert 100 not in expected
    seam = keep(lake, kafka, [one for one in closed(kafka, topic) if one.base_offset < 150])
    assert 150 < seam < 200
    end = max(expected) + 1
    with onward(tmp_path, kafka) as (address, process):
        every, committed = (consumer_at(address, level, isolation_level=level) for level in LEVELS)
        kafka.kill()
        assert max(read(every, topic, 0, seam)) == seam - 1
        assert list(read(committed, topic, 0, 100)) == list(range(100))
        # Neither goes on; the lake tells no outcome.
        for consumer in (every, committed):
            assert nothing_comes(consumer)
        kafka.start()
        assert read(committed, topic, 0, end) == expected
        assert max(read(every, topic, seam, end)) == end - 1
        every.close()
        committed.close()
        assert process.stdout is not None
        said = list(itertools.takewhile(lambda line: line != "the cluster answers again\n", process.stdout))
        assert any(line.startswith("the cluster doesn't answer, and only the lake") for line in said)


@pytest.mark.again
def test_what_neither_has_is_refused_or_skipped_by_name(kafka: Kafka, lake: Lake, tmp_path: Path) -> None:
    make_topics(kafka.address, "lost", **small(VERSIONS[-1]))
    fill(kafka, "lost", 400)
    segments = closed(kafka, "lost")
    seam = keep(lake, kafka, segments[:3])
    first = segments[5].base_offset
    delete(kafka, "lost", first)
    span = f"lost-0 is not served: offsets [{seam}, {first}) are neither in the lake nor at the cluster: LOST"
    with onward(tmp_path, kafka) as (address, process):
        consumer = consumer_at(address, "lost")
        assert max(read(consumer, "lost", 0, seam)) == seam - 1
        assert nothing_comes(consumer)
        consumer.close()
        assert lines_of(process).count(span) == 1
    with onward(tmp_path, kafka, "--holes", "skip") as (address, process):
        consumer = consumer_at(address, "lost")
        assert list(read(consumer, "lost", 0, 400)) == [*range(seam), *range(first, 400)]
        # Far behind every end an offset is out of range, as at a broker.
        consumer.assign([TopicPartition("lost", 0, 1_000_000)])
        assert next_record(consumer).offset() == 0
        consumer.close()
        assert lines_of(process).count(f"offsets [{seam}, {first}) are neither") == 1


def nothing_comes(consumer: Consumer) -> bool:
    messages = [consumer.poll(0.5) for _ in range(6)]
    return all(one is None or one.error() is not None for one in messages)


def next_record(consumer: Consumer) -> Message:
    while (message := consumer.poll(SECONDS)) is None or message.error() is not None:
        assert message is not None, "nothing came"
    return message


@pytest.mark.again
def test_a_cluster_with_other_records_is_refused_behind_the_seam(
    kafka: Kafka, lake: Lake, tmp_path: Path
) -> None:
    """Its log was cut below what is archived, as after an election of a replica that lacked it."""
    make_topics(kafka.address, "cut", **small(VERSIONS[-1]))
    fill(kafka, "cut", 200)
    segments = closed(kafka, "cut")
    seam = keep(lake, kafka, segments)
    with onward(tmp_path, kafka) as (address, process):
        consumer = consumer_at(address, "cut")
        # That the logs were the same once says nothing of what another leader has.
        assert list(read(consumer, "cut", 0, 200)) == list(range(200))
        kafka.stop()
        log = kafka.server_properties.parent / "data" / "cut-0"
        for path in log.iterdir():
            if path.stem.isdecimal() and int(path.stem) >= segments[-1].base_offset:
                path.unlink()
        kafka.start()
        assert list(read(consumer, "cut", 0, seam)) == list(range(seam))
        assert nothing_comes(consumer)
        fill(kafka, "cut", 200, first=1000)
        assert nothing_comes(consumer)
        # What is archived is served still.
        assert list(read(consumer, "cut", 0, seam)) == list(range(seam))
        consumer.close()
        said = lines_of(process)
    assert f"cut-0 is not served: the cluster's log ends at offset {segments[-1].base_offset}" in said
    (other,) = re.findall(r"cut-0 is not served: the cluster has another record at offset (\d+) than", said)
    assert segments[-1].base_offset < int(other) < seam
    assert "Traceback" not in said, said


@pytest.mark.again
def test_another_topic_of_the_name_is_refused_by_name(kafka: Kafka, lake: Lake, tmp_path: Path) -> None:
    make_topics(kafka.address, "again", **small(VERSIONS[-1]))
    fill(kafka, "again", 200)
    seam = keep(lake, kafka, closed(kafka, "again"))
    admin = admin_of(kafka.address)
    (gone,) = admin.delete_topics(["again"]).values()
    gone.result(SECONDS)
    with onward(tmp_path, kafka) as (address, _):
        # The name is nobody's any more: the lake's part is all there is.
        consumer = consumer_at(address, "again")
        assert consumer.get_watermark_offsets(TopicPartition("again", 0), timeout=SECONDS) == (0, seam)
        # Nor does a reader begin again that was behind it: a broker that starts names no topic either.
        consumer.assign([TopicPartition("again", 0, seam + 5)])
        assert nothing_comes(consumer)
        consumer.close()
    make_topics(kafka.address, "again", **small(VERSIONS[-1]))
    fill(kafka, "again", 300, first=1000)
    with onward(tmp_path, kafka) as (address, process):
        consumer = consumer_at(address, "again")
        assert list(read(consumer, "again", 0, seam)) == list(range(seam))
        assert nothing_comes(consumer)
        consumer.close()
        assert "again-0 is not served: the cluster has another topic of this name" in lines_of(process)
    # Nor are positions in one taken for those in the other.
    place = TopicPartition("again", 0, 50)
    client = consumer_at(kafka.address, "of-both", enable_auto_commit=False)
    client.commit(offsets=[TopicPartition("again", 0, 7)], asynchronous=False)
    with onward(tmp_path, kafka, "--groups", "upstream") as (address, process):
        consumer = consumer_at(address, "of-both", enable_auto_commit=False, session_timeout_ms=6000)
        with pytest.raises(KafkaException):
            consumer.commit(offsets=[place], asynchronous=False)
        consumer.close()
        assert "group of-both: stays as it is: the cluster has another topic again" in lines_of(process)
    assert client.committed([place], timeout=SECONDS)[0].offset == 7
    client.close()


@pytest.mark.again
def test_a_topic_that_is_made_again_behind_the_comparison_is_never_read(
    kafka: Kafka, lake: Lake, tmp_path: Path
) -> None:
    make_topics(kafka.address, "remade", **small(VERSIONS[-1]))
    fill(kafka, "remade", 200)
    seam = keep(lake, kafka, closed(kafka, "remade"))
    host, _, port = kafka.address.rpartition(":")

    class Renewed(Upstream):
        """Its metadata are renewed between the comparison and what is fetched by it."""

        async def fetch(
            self, wanted: Sequence[PartitionFetch], limits: FetchLimits
        ) -> dict[PartitionKey, Any]:
            if wanted[0].offset == seam:
                await asyncio.to_thread(make_again)
                while self.view == known:
                    await self._renew()
            return await super().fetch(wanted, limits)

    def make_again() -> None:
        admin = admin_of(kafka.address)
        (gone,) = admin.delete_topics(["remade"]).values()
        gone.result(SECONDS)
        make_topics(kafka.address, "remade", **small(VERSIONS[-1]))
        fill(kafka, "remade", 300, first=1000)

    async def fetched() -> PartitionRecords:
        nonlocal known
        reader = LakeReader(lake, None, cache_bytes=1 << 20, skip_holes=False)
        with closing(reader), closing(Renewed([(host, int(port))], reader.archive.cluster)) as upstream:
            await upstream.connect()
            known = upstream.view
            logs = Logs(reader, upstream, print)
            (found,) = await logs.fetch(
                [PartitionFetch(("remade", 0), seam, 1 << 20)], FetchLimits(0, 1 << 20, 1, 0.0)
            )
            return found

    known = ClusterView()
    found = asyncio.run(fetched())
    assert (found.error, found.records) == (ErrorCode.not_leader_or_follower, b"")


@pytest.mark.again
def test_another_cluster_than_the_lakes_is_refused_at_the_start(
    kafka: Kafka, lake: Lake, tmp_path: Path
) -> None:
    node = unpack(tmp_path / "node")
    archive(lake, node, segments_of(node, "hdrs-0"))
    words = (COMMAND, "serve-lake", "--lake", str(tmp_path / "lake"), "--upstream", kafka.address)
    ended = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS)
    assert ended.returncode != 0
    assert "expected the lake's cluster r8MMkFXnTH6hs0mB1uUMyw, found" in ended.stderr


@pytest.mark.again
def test_a_group_goes_on_from_the_cluster_and_back_to_it(kafka: Kafka, lake: Lake, tmp_path: Path) -> None:
    make_topics(kafka.address, "grouped", **small(VERSIONS[-1]))
    fill(kafka, "grouped", 200)
    seam = keep(lake, kafka, closed(kafka, "grouped"))
    place = TopicPartition("grouped", 0)
    before = consumer_at(kafka.address, "billing", enable_auto_commit=False)
    before.commit(offsets=[TopicPartition("grouped", 0, 50)], asynchronous=False)
    delete(kafka, "grouped", seam)
    with onward(tmp_path, kafka) as (address, process):
        consumer = consumer_at(address, "billing", enable_auto_commit=False)
        consumer.subscribe(["grouped"])
        assert next_record(consumer).offset() == 50
        while (next_record(consumer).offset() or 0) < 120:
            continue
        consumer.commit(asynchronous=False)
        consumer.close()
        # Killed in between, it goes on where the group has committed.
        process.kill()
        assert "group billing: begins in grouped-0 at offset 50, its position at the cluster" in lines_of(
            process
        )
    with onward(tmp_path, kafka) as (address, _):
        consumer = consumer_at(address, "billing")
        assert consumer.committed([place], timeout=SECONDS)[0].offset == 121
        consumer.close()
    assert before.committed([place], timeout=SECONDS)[0].offset == 50
    words = (COMMAND, "serve-lake", "--lake", str(tmp_path / "lake"), "--upstream", kafka.address)
    ended = subprocess.run([*words, "--give-back-groups"], capture_output=True, text=True, timeout=SECONDS)
    assert (ended.returncode, ended.stdout) == (0, "group billing: goes on in grouped-0 at offset 121\n")
    assert before.committed([place], timeout=SECONDS)[0].offset == 121
    before.close()
    # With the real coordinators its commits are the cluster's.
    with onward(tmp_path, kafka, "--groups", "upstream") as (address, _):
        consumer = consumer_at(address, "billing", enable_auto_commit=False)
        consumer.subscribe(["grouped"])
        assert next_record(consumer).offset() == 121
        consumer.commit(asynchronous=False)
        while (next_record(consumer).offset() or 0) < 199:
            continue
        consumer.close()
    after = consumer_at(kafka.address, "billing")
    assert after.committed([place], timeout=SECONDS)[0].offset == 122
    after.close()


class PowerCut(BaseException):
    """Ends a command where it is."""


@pytest.mark.parametrize("where", ["begin_giving_back", "commit", "drop"])
def test_positions_are_given_back_once_wherever_that_is_cut(
    kafka: Kafka, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A group that goes on at the cluster after a cut is not set back when it is given back again."""
    group, topic = f"given-{where}", f"given-{where.replace('_', '-')}"
    make_topics(kafka.address, topic, **small(VERSIONS[-1]))
    fill(kafka, topic, 200)
    keep(lake, kafka, closed(kafka, topic))
    found = read_archive(lake, None)
    place = TopicPartition(topic, 0)
    client = consumer_at(kafka.address, group, enable_auto_commit=False)
    client.commit(offsets=[TopicPartition(topic, 0, 50)], asynchronous=False)

    def run() -> list[str]:
        lines: list[str] = []
        with closing(CommittedPositions(tmp_path / "positions")) as positions:
            if "first" not in begun:
                begun.append("first")
                positions.commit(group, {(topic, 0): (100, "note")})
            host, _, port = kafka.address.rpartition(":")
            asyncio.run(back(positions, (host, int(port)), lines))
        return lines

    async def back(positions: CommittedPositions, broker: tuple[str, int], lines: list[str]) -> None:
        with closing(Upstream([broker], found.cluster)) as upstream:
            await give_back(found, upstream, positions, lines.append)

    begun: list[str] = []
    with monkeypatch.context() as cut:
        owner = Upstream if where == "commit" else CommittedPositions

        def power_cut(*_: object) -> None:
            raise PowerCut

        cut.setattr(owner, where, power_cut)
        with pytest.raises(PowerCut):
            run()
    is_committed = where == "drop"
    assert client.committed([place], timeout=SECONDS)[0].offset == (100 if is_committed else 50)
    if is_committed:
        client.commit(offsets=[TopicPartition(topic, 0, 150)], asynchronous=False)
    (line,) = run()
    assert client.committed([place], timeout=SECONDS)[0].offset == (150 if is_committed else 100)
    assert line.startswith(f"group {group}: goes on in {topic}-0 at offset {150 if is_committed else 100}")
    assert run() == []
    client.close()


@pytest.mark.again
def test_positions_of_a_group_that_runs_at_the_cluster_stay(kafka: Kafka, lake: Lake, tmp_path: Path) -> None:
    make_topics(kafka.address, "running", **small(VERSIONS[-1]))
    fill(kafka, "running", 200)
    keep(lake, kafka, closed(kafka, "running"))
    with closing(CommittedPositions(tmp_path / "lake" / "consumer-positions.json")) as positions:
        positions.commit("running", {("running", 0): (100, None)})
    client = consumer_at(kafka.address, "running", enable_auto_commit=False)
    client.subscribe(["running"])
    next_record(client)
    words = (COMMAND, "serve-lake", "--lake", str(tmp_path / "lake"), "--upstream", kafka.address)
    for status, said in ((1, "stays here"), (0, "goes on in running-0 at offset 100")):
        ended = subprocess.run(
            [*words, "--give-back-groups"], capture_output=True, text=True, timeout=SECONDS
        )
        assert (ended.returncode, said in ended.stdout) == (status, True), ended.stdout
        client.close()
