"""What a running cluster says now of a stopped node's logs: their leaders, and which brokers run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from storage_engine.kafka.cluster.client import Cluster
from storage_engine.kafka.format.file_names import PartitionDirectory
from storage_engine.kafka.format.live_facts import LiveFacts, LivePartition
from storage_engine.kafka.live.observe import observe


@dataclass(frozen=True, slots=True)
class LeadersWord:
    """A cluster's word of one moment.

    :param running: brokers that are registered with the controller, and not fenced.
    """

    facts: LiveFacts
    running: frozenset[int]

    def of(self, log: str) -> LivePartition | None:
        """Return what it says of a log; None: nothing."""
        return self.facts.partitions.get(log)


def ask_leaders(cluster: Cluster, logs: Collection[PartitionDirectory], now_ms: int) -> LeadersWord:
    """Ask a cluster for the leaders of logs, and then which brokers run.

    :raises BrokerUnavailableError: nobody answers.
    :raises BrokerRefusedError: the account may not even ask which cluster it is.
    """
    facts = observe(cluster, logs, now_ms)
    # Last: a broker that has started since, and doesn't lead yet, is among them.
    return LeadersWord(facts, frozenset(node.id for node in cluster.described().nodes))
