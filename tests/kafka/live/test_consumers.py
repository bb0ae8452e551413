"""Groups of a running cluster while coordinators take them over: who doesn't know yet is asked again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from storage_engine.exceptions import BrokerUnavailableError
from storage_engine.kafka.cluster.client import Cluster
from storage_engine.kafka.cluster.consumers import group_positions, listed_groups
from storage_engine.model.broker.live import LiveBroker

LOADING, MOVED, AWAY = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError._TRANSPORT,
)


class Coordinators:
    """A client whose brokers answer each question with these errors first, one at a time.

    :param listing: codes of the answers to who there is; several brokers answer at once.
    :param others: codes for each group, of the answers to what it is and how far it has read.
    :param kept: leaders of the partitions that keep groups, or the code of the answer to that.
    """

    def __init__(
        self,
        listing: Sequence[Sequence[int]] = (),
        others: Sequence[int] = (),
        kept: Sequence[object] | int = (1, 2),
    ) -> None:
        self._listing, self._others, self._kept = iter(listing), others, kept
        self._of: dict[tuple[str, str], Iterator[int]] = {}

    def list_consumer_groups(self, **_: object) -> Future[Any]:
        errors = [KafkaException(KafkaError(code)) for code in next(self._listing, ())]
        groups = [SimpleNamespace(group_id="b"), SimpleNamespace(group_id="a")]
        return done(SimpleNamespace(valid=groups[: 1 if errors else 2], errors=errors))

    def describe_consumer_groups(self, names: Sequence[str], **_: object) -> dict[str, Future[Any]]:
        return {name: self._answer("what", name, SimpleNamespace(members=())) for name in names}

    def list_consumer_group_offsets(self, asked: Sequence[Any], **_: object) -> dict[str, Future[Any]]:
        read = SimpleNamespace(topic_partitions=[TopicPartition("orders", 0, 7)])
        return {one.group_id: self._answer("where", one.group_id, read) for one in asked}

    def describe_topics(self, _: object, **__: object) -> dict[str, Future[Any]]:
        if isinstance(self._kept, int):
            return {"__consumer_offsets": done(KafkaException(KafkaError(self._kept)))}
        leaders = [None if one is None else SimpleNamespace(id=one) for one in self._kept]
        partitions = [SimpleNamespace(id=at, leader=leader) for at, leader in enumerate(leaders)]
        return {"__consumer_offsets": done(SimpleNamespace(partitions=partitions))}

    def poll(self, _: float) -> int:
        return 0

    def _answer(self, question: str, group: str, answer: object) -> Future[Any]:
        code = next(self._of.setdefault((question, group), iter(self._others)), None)
        return done(answer if code is None else KafkaException(KafkaError(code)))


def done(answer: object) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
    return future


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_engine.kafka.cluster.consumers._PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("storage_engine.kafka.cluster.consumers.lacking_rights", lambda *_: ())


@pytest.fixture
def does_not_wait(waits: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_engine.kafka.cluster.consumers._TAKE_OVER_SECONDS", -1.0)


def cluster_of(monkeypatch: pytest.MonkeyPatch, coordinators: Coordinators) -> Cluster:
    monkeypatch.setattr(Cluster, "_connect", lambda *_: coordinators)
    return Cluster(LiveBroker("k:9"))


@pytest.mark.usefixtures("waits")
def test_all_groups_are_listed_once_each_coordinator_has_read_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinators = Coordinators([(LOADING,), (LOADING, MOVED)])
    assert listed_groups(cluster_of(monkeypatch, coordinators)) == ("a", "b")


@pytest.mark.usefixtures("waits")
def test_a_broker_that_does_not_answer_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(monkeypatch, Coordinators([(LOADING, AWAY)]))
    with pytest.raises(BrokerUnavailableError, match=r"expected an answer of each broker.*_TRANSPORT"):
        listed_groups(cluster)


@pytest.mark.usefixtures("does_not_wait")
def test_groups_that_nobody_has_taken_over_in_time_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(monkeypatch, Coordinators([(LOADING,)]))
    with pytest.raises(BrokerUnavailableError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        listed_groups(cluster)


@pytest.mark.usefixtures("waits")
def test_positions_are_known_once_the_coordinator_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found = group_positions(cluster_of(monkeypatch, Coordinators(others=[LOADING, MOVED])), ["orders"])
    assert found.committed == {("a", "orders", 0): 7, ("b", "orders", 0): 7}
    assert (found.notices, found.all_groups) == ((), True)


@pytest.mark.usefixtures("does_not_wait")
def test_positions_that_no_coordinator_tells_in_time_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    found = group_positions(cluster_of(monkeypatch, Coordinators(others=[LOADING])), ["orders"])
    assert not found.all_groups
    assert any("positions of a, b aren't known" in notice for notice in found.notices)


@pytest.mark.usefixtures("waits")
@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ((1, None), "groups are missing: 1 partition of __consumer_offsets without a leader"),
        ((-1, -1), "groups are missing: 2 partitions of __consumer_offsets without a leader"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "whether groups are missing isn't known: __consumer_offsets"),
    ],
)
def test_groups_that_no_broker_names_may_read_anything(
    monkeypatch: pytest.MonkeyPatch, kept: Sequence[object] | int, said: str
) -> None:
    found = group_positions(cluster_of(monkeypatch, Coordinators(kept=kept)), ["orders"])
    assert not found.all_groups
    assert found.notices[0].startswith(said)


@pytest.mark.usefixtures("waits")
def test_a_cluster_in_which_no_group_has_committed_misses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinators = Coordinators(kept=KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert group_positions(cluster_of(monkeypatch, coordinators), ["orders"]).all_groups
