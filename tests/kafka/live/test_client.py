"""How a cluster is reached: librdkafka's settings by all that is said, and errors without secrets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from storage_engine.core.extras import KAFKA
from storage_engine.exceptions import (
    BadInputError,
    BrokerRefusedError,
    BrokerUnavailableError,
    MissingExtraError,
)
from storage_engine.kafka.cluster.client import Cluster, client_settings
from storage_engine.model.broker.live import LiveBroker
from tests.extras import take_away

HUSH = "hush-hush"


def test_an_address_alone_is_enough() -> None:
    assert client_settings(LiveBroker("a:9092")) == {"bootstrap.servers": "a:9092"}


def test_what_is_typed_wins_over_a_connection_and_that_over_a_file(tmp_path: Path) -> None:
    conf = tmp_path / "client.conf"
    conf.write_text("# ours\nbootstrap.servers=f:1\nclient.id = file\nsasl.mechanism=PLAIN\n")
    connection = {"bootstrap.servers": "c:1,d:1", "client.id": "connection", "error_cb": "a.python.function"}
    live = LiveBroker(client_config=str(conf), client=connection)
    assert client_settings(live) == {
        "bootstrap.servers": "c:1,d:1",
        "client.id": "connection",
        "sasl.mechanism": "PLAIN",
    }
    assert client_settings(LiveBroker("t:1", client=connection))["bootstrap.servers"] == "t:1"


def test_keys_and_tls_become_the_clients_own_settings() -> None:
    live = LiveBroker(
        "a:9093",
        access_key="archiver",
        secret_key=HUSH,
        tls=True,
        tls_ca_file="/ca.pem",
        tls_certificate_file="/own.pem",
        tls_verify=False,
    )
    assert client_settings(live) == {
        "bootstrap.servers": "a:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "archiver",
        "sasl.password": HUSH,
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/own.pem",
        "ssl.key.location": "/own.pem",
        "enable.ssl.certificate.verification": "false",
    }


def test_a_mechanism_that_somebody_said_stays() -> None:
    live = LiveBroker("a:1", access_key="u", secret_key=HUSH, client={"sasl.mechanisms": "PLAIN"})
    found = client_settings(live)
    assert (found["sasl.mechanism"], found["security.protocol"]) == ("PLAIN", "SASL_PLAINTEXT")
    assert "sasl.mechanisms" not in found


@pytest.mark.parametrize(
    ("live", "said"),
    [
        (LiveBroker(name_servers="n:9876", broker_name="b"), "n:9876: expected only a broker's address"),
        (
            LiveBroker("a:1", tls=True, tls_server_name="internal"),
            "internal: expected only a broker's address",
        ),
        (LiveBroker(client={"client.id": "x"}), "expected bootstrap.servers among the settings"),
        (LiveBroker(client_config="/no/such/file"), "/no/such/file: expected settings of librdkafka"),
    ],
)
def test_what_means_nothing_to_this_client_is_refused(live: LiveBroker, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        client_settings(live)


def test_a_value_that_the_library_does_not_take_is_named() -> None:
    client = {"sasl.password": HUSH, "security.protocol": "SASL_LOUD"}
    with pytest.raises(BadInputError, match="expected settings that librdkafka takes, found: ") as error:
        Cluster(LiveBroker("127.0.0.1:1", client=client))
    assert "SASL_LOUD" in str(error.value)
    assert HUSH not in str(error.value)


def test_a_refused_connection_is_one_error_that_says_why_at_once() -> None:
    begun = time.monotonic()
    asked = r"^127\.0\.0\.1:1: asked for its brokers and its controller, "
    said = asked + r".*found: nobody listens there \(.*refused"
    with pytest.raises(BrokerUnavailableError, match=said):
        Cluster(LiveBroker("127.0.0.1:1")).described()
    assert time.monotonic() - begun < 5


def test_who_listens_and_is_slow_gets_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_engine.kafka.cluster.client.TIMEOUT_SECONDS", 2.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:1,127.0.0.1:{silent.getsockname()[1]}"
        begun = time.monotonic()
        with pytest.raises(BrokerUnavailableError, match="asked for its brokers and its controller") as error:
            Cluster(LiveBroker(place)).described()
        assert time.monotonic() - begun > 2.5
    assert "nobody listens" not in str(error.value)


def test_a_cluster_that_has_answered_may_be_away_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "_connect", lambda _, settings: HangingAt(0))
    cluster = Cluster(LiveBroker("127.0.0.1:1"))
    assert cluster.described() == "a cluster"
    cluster._trouble = "refused"
    late: Future[str] = Future()
    threading.Timer(2, late.set_result, ("back",)).start()
    assert cluster.answer("anything", late) == "back"


class HangingAt:
    """Makes clients; the requests of the first ones are never answered."""

    def __init__(self, hanging: int) -> None:
        self.left, self.made = hanging, 0

    def connected(self, _: object) -> HangingAt:
        self.made += 1
        return self

    def describe_cluster(self, **_: object) -> Future[str]:
        future: Future[str] = Future()
        self.left -= 1
        if self.left < 0:
            future.set_result("a cluster")
        else:
            future.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        return future

    def poll(self, _: float) -> int:
        return 0


@pytest.mark.parametrize("hanging", [0, 1])
def test_a_broker_that_hangs_does_not_speak_for_its_cluster(
    monkeypatch: pytest.MonkeyPatch, hanging: int
) -> None:
    clients = HangingAt(hanging)
    monkeypatch.setattr(Cluster, "_connect", lambda _, settings: clients.connected(settings))
    assert Cluster(LiveBroker("k:9")).described() == "a cluster"
    assert clients.made == 1 + hanging


def test_a_cluster_that_hangs_is_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = HangingAt(9)
    monkeypatch.setattr(Cluster, "_connect", lambda _, settings: clients.connected(settings))
    with pytest.raises(BrokerUnavailableError, match="asked for its brokers and its controller"):
        Cluster(LiveBroker("k:9")).described()
    assert clients.made == 2


class Electing:
    """Makes clients, each of which keeps the epoch that brokers name when it first asks.

    :param late: so many clients are told an epoch of before the election.
    """

    def __init__(self, late: int) -> None:
        self.late, self.made = late, 0

    def connected(self, _: object) -> KeepsEpoch:
        self.made += 1
        return KeepsEpoch(is_outdated=self.made <= self.late)


class KeepsEpoch:
    def __init__(self, *, is_outdated: bool) -> None:
        self._is_outdated = is_outdated

    def ask(self, keys: Sequence[str]) -> dict[str, Future[str]]:
        """Answer of each log where it begins; b alone has elected another leader."""
        futures: dict[str, Future[str]] = {key: Future() for key in keys}
        for key, future in futures.items():
            if key == "b" and self._is_outdated:
                future.set_exception(KafkaException(KafkaError(KafkaError.FENCED_LEADER_EPOCH)))
            else:
                future.set_result(f"start of {key}")
        return futures

    def poll(self, _: float) -> int:
        return 0


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_leader_that_refuses_a_kept_epoch_is_asked_by_a_new_client(
    monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    clients = Electing(late)
    monkeypatch.setattr(Cluster, "_connect", lambda _, settings: clients.connected(settings))
    cluster = Cluster(LiveBroker("k:9"))
    found = dict(cluster.answers("offsets", ["a", "b", "c"], lambda some: cluster.admin.ask(some)))
    assert found == {key: f"start of {key}" for key in "abc"}
    assert clients.made == 1 + late


def test_a_leader_that_goes_on_refusing_is_an_answer_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = Electing(1_000)
    monkeypatch.setattr(Cluster, "_connect", lambda _, settings: clients.connected(settings))
    monkeypatch.setattr("storage_engine.kafka.cluster.client._ELECTION_SECONDS", 0.3)
    cluster = Cluster(LiveBroker("k:9"))
    found = dict(cluster.answers("offsets", ["a", "b"], lambda some: cluster.admin.ask(some)))
    assert found["a"] == "start of a"
    assert isinstance(found["b"], BrokerRefusedError)


def test_without_the_client_a_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    take_away(monkeypatch, KAFKA)
    needs = r"^a running cluster of Kafka needs .*: pip install 'storage-engine\[kafka\]'$"
    with pytest.raises(MissingExtraError, match=needs):
        Cluster(LiveBroker("127.0.0.1:1"))
