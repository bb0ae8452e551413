"""A node beside its running cluster, as retention looks at it: files for what they say, the cluster for the
rest. Nothing is held or deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from storage_engine.kafka.file_names import METADATA_TOPIC
from storage_engine.kafka.layout import Node
from storage_engine.kafka.live.client import Cluster
from storage_engine.kafka.live.observe import observe
from storage_engine.kafka.live.overlay import with_live
from storage_engine.kafka.store import KafkaStore, open_store
from storage_engine.model.broker_store import StoreSettings
from storage_engine.model.hold import HoldStatus
from storage_engine.model.live import LiveBroker, RunningBroker
from storage_engine.model.store import StoreSnapshot
from storage_engine.wording import count_text


@dataclass(slots=True)
class LiveKafkaStore(KafkaStore):
    """A node whose broker runs.

    :param live: how its cluster is reached.
    """

    live: LiveBroker = field(default_factory=LiveBroker)
    _cluster: Cluster | None = None

    @property
    def is_live(self) -> bool:
        return True

    @property
    def asked(self) -> Cluster:
        """Return the cluster; a connection that was closed is opened again."""
        if self._cluster is None:
            self._cluster = Cluster(self.live)
        return self._cluster

    def close(self) -> None:
        self._cluster = None

    def snapshot(self, now_ms: int) -> StoreSnapshot:
        """Sealed is what the files have so; how far it is replicated the leader says.

        :raises BrokerError: the cluster can't be asked.
        :raises NotOnBrokerError: it is another cluster than the directories'.
        """
        # Not the base class's: a dataclass with slots is another class than the one that super() knows.
        return replace(KafkaStore.snapshot(self, now_ms), crashed=False)

    def hold_status(self, now_ms: int) -> HoldStatus:
        return HoldStatus(held=False, notices=("this version holds no store of Apache Kafka",))

    def read_node(self, now_ms: int) -> Node:
        return read_live_node(KafkaStore.read_node(self, now_ms), self.asked, now_ms)


def open_live(settings: StoreSettings, live: LiveBroker) -> LiveKafkaStore:
    """Open a node beside its running cluster.

    :raises BadInputError: there is none, or the client's settings can't be used.
    :raises MissingExtraError: the client isn't installed.
    """
    return LiveKafkaStore(open_store(settings).root, live=live)


def read_live_node(node: Node, cluster: Cluster, now_ms: int) -> Node:
    """Return a node with what its cluster says of it now.

    :param node: by its files, which were read before: what the cluster says can only be further on.
    :raises BrokerError: the cluster can't be asked.
    """
    names = [log.name for _, log in node.logs if log.name.topic != METADATA_TOPIC]
    return with_live(node, observe(cluster, names, now_ms), cluster.address)


def running_cluster(live: LiveBroker) -> RunningBroker:
    """Ask a cluster what it is.

    :raises BrokerError: it can't be asked.
    """
    cluster = Cluster(live)
    found = cluster.described()
    brokers = count_text(len(found.nodes), "broker")
    return RunningBroker(
        address=cluster.address,
        name=found.cluster_id or "",
        described=f"Cluster {found.cluster_id} of {brokers} at {cluster.address}",
    )
