"""A node beside its running cluster: facts, plan and findings, by real brokers and accounts of few rights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from demo.brokers.kafka import Kafka
from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import BrokerUnavailableError, NotOnBrokerError
from storage_engine.kafka import BROKER
from storage_engine.kafka.cluster.client import Cluster
from storage_engine.kafka.format.layout import LiveFacts, read_node
from storage_engine.kafka.format.partition_metadata import NAME as PARTITION_METADATA
from storage_engine.kafka.format.partition_metadata import read_topic_id
from storage_engine.kafka.live.live_store import LiveKafkaStore
from storage_engine.kafka.live.observe import LiveNode, observe
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.plan import PlanRequest, Reason
from storage_engine.retention.hold.hold_text import due_alarms
from tests.integration.kafka_broker import (
    SECONDS,
    VERSIONS,
    admin_of,
    make_topics,
    produce,
    running_kafka,
    small,
)
from tests.integration.secured import certificate
from tests.integration.test_kafka_hold import Memory
from tests.rounds import again_but
from tests.services.command_line import run_command

pytestmark = pytest.mark.integration

SASL, TLS = "SASL", "TLS"
PASSWORDS = {"auditor": "auditor-secret", "nobody": "nobody-secret", "partial": "partial-secret"}
PLAIN_USER, PLAIN_PASSWORD = "plain", "plain-secret"
_MODULES = "org.apache.kafka.common.security"
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # Who shows nothing, on the listener for that, may do all: so topics are made, and brokers talk.
    "super.users": "User:ANONYMOUS",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
    "listener.name.sasl.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
    "listener.name.tls.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
    "listener.name.tls.sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "listener.name.tls.ssl.keystore.type": "PEM",
    "listener.name.sasl.plain.sasl.jaas.config": (
        f'{_MODULES}.plain.PlainLoginModule required user_{PLAIN_USER}="{PLAIN_PASSWORD}";'
    ),
    "log.retention.check.interval.ms": 3_600_000,
    "log.initial.task.delay.ms": 3_600_000,
    "replica.high.watermark.checkpoint.interval.ms": 3_600_000,
    "offsets.topic.num.partitions": 1,
}
RECORD = b"x" * 1000


@dataclass(frozen=True)
class Cast:
    """A running node with topics, a group that lags, and an open transaction.

    :param producer: keeps the transaction open.
    :param certificate: of the listener that speaks TLS.
    """

    kafka: Kafka
    producer: Producer
    certificate: Path

    @property
    def store(self) -> str:
        return str(self.kafka.server_properties)

    def account(self, user: str, **more: str) -> LiveBroker:
        return LiveBroker(
            self.kafka.addresses[SASL],
            access_key=user,
            secret_key=PASSWORDS.get(user, ""),
            **more,  # type: ignore[arg-type]
        )


@pytest.fixture(scope="module", params=again_but(VERSIONS, VERSIONS[-1]))
def cast(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cast]:
    work = tmp_path_factory.mktemp("kafka-live")
    scram = [
        word
        for user, password in PASSWORDS.items()
        for word in ("--add-scram", f"SCRAM-SHA-512=[name={user},password={password}]")
    ]
    pem, key = certificate(work)
    keystore = work / "keystore.pem"
    keystore.write_bytes(key.read_bytes() + pem.read_bytes())
    settings = {**SETTINGS, "listener.name.tls.ssl.keystore.location": keystore}
    listeners = {SASL: "SASL_PLAINTEXT", TLS: "SASL_SSL"}
    with running_kafka(work, request.param, settings, listeners, scram) as kafka:
        address = kafka.address
        make_topics(address, "orders", partitions=2, retention_ms=60_000, **small(request.param))
        make_topics(address, "audit", cleanup_policy="compact")
        make_topics(address, "payments", **small(request.param))
        hour_ago = clock_ms() - 3_600_000
        produce(address, "orders", [RECORD] * 100, timestamp_ms=hour_ago, batch_num_messages=1)
        produce(address, "payments", [RECORD] * 20, batch_num_messages=1)
        _commit(address, "billing", "orders", 40)
        _allow(
            address,
            "auditor",
            (ResourceType.TOPIC, "*"),
            (ResourceType.GROUP, "*"),
            (ResourceType.BROKER, ""),
        )
        _allow(address, "partial", (ResourceType.TOPIC, "orders"), configs=False)
        producer = Producer(
            {"bootstrap.servers": address, "transactional.id": "t", "log_level": 0, "batch.num.messages": 1}
        )
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        for _ in range(50):
            producer.produce("payments", RECORD)
        producer.flush(SECONDS)
        yield Cast(kafka, producer, pem)


def _commit(address: str, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "log_level": 0})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def _allow(address: str, user: str, *resources: tuple[ResourceType, str], configs: bool = True) -> None:
    operations = [AclOperation.DESCRIBE, *([AclOperation.DESCRIBE_CONFIGS] if configs else [])]
    bindings = [
        AclBinding(
            kind,
            name or "kafka-cluster",
            ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for kind, name in resources
        for operation in operations
        if not (kind is ResourceType.GROUP and operation is AclOperation.DESCRIBE_CONFIGS)
    ]
    admin = admin_of(address)
    for made in admin.create_acls(bindings).values():
        made.result(SECONDS)


def facts_of(cast: Cast, live: LiveBroker) -> LiveFacts:
    node = read_node(cast.kafka.server_properties)
    names = [log.name for _, log in node.logs if not log.name.is_internal]
    return observe(Cluster(live), names, clock_ms())


def test_facts_are_those_of_the_cluster_and_of_the_files(cast: Cast) -> None:
    node = read_node(cast.kafka.server_properties)
    facts = facts_of(cast, cast.account("auditor"))
    assert {facts.cluster_id} == node.cluster_ids
    assert set(facts.partitions) == {"orders-0", "orders-1", "audit-0", "payments-0"}
    for _, log in node.logs:
        if not log.name.is_internal:
            assert facts.partitions[log.name.log].topic_id == read_topic_id(log.path / PARTITION_METADATA)
    orders, payments = facts.partitions["orders-0"], facts.partitions["payments-0"]
    assert (orders.log_start, orders.high_watermark, orders.last_stable_offset) == (0, 100, 100)
    assert (payments.high_watermark, payments.last_stable_offset) == (70, 20)
    assert (orders.leader, orders.replicas, orders.in_sync, orders.refused) == (1, (1,), (1,), ())
    assert orders.topic_settings is not None
    assert orders.topic_settings["retention.ms"] == "60000"
    assert "retention.ms" in orders.own_settings
    assert "retention.bytes" not in orders.own_settings


def test_a_high_watermark_that_no_checkpoint_has_is_known_by_the_cluster(cast: Cast) -> None:
    """The checkpoint is written each hour here: by files alone nothing is replicated yet."""

    def plan(live: LiveBroker | None) -> dict[str, Any]:
        with_live = StoreSettings(cast.store, live=live)
        store = BROKER.open_store(with_live, None)
        snapshot = store.snapshot(clock_ms())
        found = {one.log: one for one in store.plan(snapshot, clock_ms(), PlanRequest()).logs}["orders-0"]
        store.close()
        return {one.segment.base_offset: one.reason for one in found.decisions}

    offline, live = plan(None), plan(cast.account("auditor"))
    first = min(offline)
    assert offline[first] is Reason.UNKNOWN
    assert live[first] is Reason.EXPIRED
    assert len(live) > 3


def test_nothing_from_a_last_stable_offset_on_is_archived(cast: Cast) -> None:
    store = BROKER.open_store(StoreSettings(cast.store, live=cast.account("auditor")), None)
    found = store.archivable(store.snapshot(clock_ms()))
    assert max(one.end_offset for one in found.segments if one.log == "payments-0") <= 20
    assert "is open from offset 20" in found.kept_out["payments-0"]


@pytest.mark.parametrize(
    ("account", "lacks"),
    [
        ("auditor", []),
        (
            "partial",
            [
                "Describe on the cluster",
                "DescribeConfigs on the cluster",
                "Describe on topics: audit, payments",
                "DescribeConfigs on topics: audit, orders, payments",
                "Describe on topics: __consumer_offsets",
            ],
        ),
        (
            "nobody",
            [
                "Describe on the cluster",
                "DescribeConfigs on the cluster",
                "Describe on topics: audit, orders, payments",
                "DescribeConfigs on topics: audit, orders, payments",
                "Describe on topics: __consumer_offsets",
            ],
        ),
    ],
)
def test_doctor_names_each_right_that_an_account_lacks(cast: Cast, account: str, lacks: list[str]) -> None:
    said = BROKER.inspection.diagnose(StoreSettings(cast.store, live=cast.account(account)), None, clock_ms())
    found = [one.what for one in said.findings if one.kind == "rights"]
    assert [one.partition("lacks ")[2].partition(";")[0] for one in found] == lacks
    unknown = [one.what for one in said.findings if one.kind == "live-unknown"]
    assert bool(unknown) == bool(lacks)


def test_what_an_account_may_not_hold_is_named_before_it_goes(cast: Cast) -> None:
    live, memory = cast.account("auditor"), Memory()
    store = LiveKafkaStore(LiveNode(Path(cast.store), live=live, memory=memory))
    now_ms = clock_ms()
    status = store.hold.hold_due({}, 24 * 3_600_000, now_ms)
    found = {one.log: one for one in status.due}
    end = store.node.look(now_ms).known["orders-0"].end.offset
    assert set(found) == {"orders-0"}
    due = found["orders-0"]
    assert (due.start_offset, due.end_offset, due.at_ms) == (0, end, now_ms)
    assert due.size_bytes > 100_000
    assert "the cluster doesn't let us set it: " in due.why
    (said,) = due_alarms(status, now_ms)
    assert f"log orders-0: records of offsets [0, {end})" in said
    # Nobody is told so of what is proven.
    proven = {one.id: one.facts for log in store.snapshot(now_ms).logs for one in log.segments}
    assert store.hold.hold_due(proven, 24 * 3_600_000, now_ms).is_well


def test_a_wrong_password_is_one_error_without_it(cast: Cast) -> None:
    live = LiveBroker(cast.kafka.addresses[SASL], access_key="auditor", secret_key="wrong-secret")
    with pytest.raises(BrokerUnavailableError, match=r"(?i)authentication failed") as error:
        Cluster(live).described()
    assert "wrong-secret" not in str(error.value)


def test_tls_is_spoken_and_a_certificate_that_nobody_vouches_for_is_refused(cast: Cast) -> None:
    address = cast.kafka.addresses[TLS]
    live = LiveBroker(
        address,
        access_key="auditor",
        secret_key=PASSWORDS["auditor"],
        tls=True,
        tls_ca_file=str(cast.certificate),
    )
    assert facts_of(cast, live).partitions["orders-0"].high_watermark == 100
    Cluster(replace(live, tls_ca_file="", tls_verify=False)).described()
    with pytest.raises(BrokerUnavailableError, match=r"(?i)certificate verify failed"):
        Cluster(replace(live, tls_ca_file="")).described()


def test_plain_passwords_are_another_mechanism(cast: Cast) -> None:
    live = LiveBroker(
        cast.kafka.addresses[SASL],
        access_key=PLAIN_USER,
        secret_key=PLAIN_PASSWORD,
        client={"sasl.mechanism": "PLAIN"},
    )
    Cluster(live).described()


def test_a_file_of_client_settings_reaches_the_cluster_at_the_shell(cast: Cast, tmp_path: Path) -> None:
    conf = tmp_path / "client.conf"
    conf.write_text(
        f"bootstrap.servers={cast.kafka.addresses[SASL]}\nsecurity.protocol=SASL_PLAINTEXT\n"
        f"sasl.mechanism=SCRAM-SHA-512\nsasl.username=auditor\nsasl.password={PASSWORDS['auditor']}\n"
    )
    done = run_command("plan", cast.store, "--client-config", conf, "--json")
    assert done.exit_code == 0, done.err
    decisions = json.loads(done.out)["decisions"]
    reasons = {one["reason"] for one in decisions if one["segment"]["log"] == "orders-0"}
    assert reasons == {Reason.EXPIRED.value, Reason.ACTIVE.value}


@pytest.mark.again
def test_another_cluster_is_refused_and_doctor_goes_on_by_files_alone(cast: Cast, tmp_path: Path) -> None:
    said = r"expected log directories of the cluster at .*, found those of"
    with running_kafka(tmp_path) as other:
        store = BROKER.open_store(
            StoreSettings(str(other.server_properties), live=cast.account("auditor")), None
        )
        with pytest.raises(NotOnBrokerError, match=said):
            store.snapshot(clock_ms())
        done = run_command("doctor", other.server_properties, "--broker", cast.kafka.address, "--json")
        assert done.exit_code == 1
        found = {one["kind"]: one["what"] for one in json.loads(done.out)["findings"]}
        assert re.search(said, found["broker-unreachable"])
        assert "running" in found
