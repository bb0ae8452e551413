"""A node of a running cluster: what is looked at and asked, and what is remembered of its hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from storage_engine.kafka.cluster.client import Cluster
from storage_engine.kafka.format.file_names import METADATA_TOPIC
from storage_engine.kafka.format.layout import Node, read_node, read_what_is_left
from storage_engine.kafka.hold.hold_state import from_their_starts, with_first_settings, with_live
from storage_engine.kafka.hold.needed_retention import all_states
from storage_engine.kafka.live.observe import observe
from storage_engine.kafka.store.plan import SeenNode
from storage_engine.kafka.store.store import OpenNode
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.settings.store_settings import WE_DELETE


@dataclass(slots=True)
class LiveNode(OpenNode):
    """A node whose broker runs: its files, its cluster, and what is remembered of its hold.

    :param live: how its cluster is reached.
    :param unheld: why logs aren't held, by name, as its hold was looked at last; nothing of them is deleted.
    """

    live: LiveBroker = field(default_factory=LiveBroker)
    unheld: Mapping[str, str] = field(default_factory=dict)

    @property
    def asked(self) -> Cluster:
        """Return the cluster; a connection that was closed is opened again."""
        if self.cluster is None:
            self.cluster = Cluster(self.live)
        return self.cluster

    def look(self, now_ms: int) -> SeenNode:
        """Look at the node's logs to hold them; what a snapshot was made of stays.

        A directory that has failed keeps the others' from being held as little as it keeps their broker.
        """
        return self.see(now_ms, lambda at_ms: self._with_live(read_what_is_left(self.root), at_ms))

    @property
    def is_ours(self) -> bool:
        return self.live.deletes == WE_DELETE

    def read(self, now_ms: int) -> Node:
        return self._with_live(read_node(self.root), now_ms)

    def _with_live(self, files: Node, now_ms: int) -> Node:
        node = read_live_node(files, self.asked, now_ms)
        if not self.is_ours:
            return node
        return from_their_starts(with_first_settings(node, all_states(self.memory)))


def read_live_node(node: Node, cluster: Cluster, now_ms: int) -> Node:
    """Return a node with what its cluster says of it now.

    :param node: by its files, which were read before: the cluster's answers can only be further on.
    :raises BrokerError: the cluster can't be asked.
    """
    names = [log.name for _, log in node.logs if log.name.topic != METADATA_TOPIC]
    return with_live(node, observe(cluster, names, now_ms), cluster.address)
