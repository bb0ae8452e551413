"""Plans for nodes made by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from storage_engine.kafka.format.layout import LiveFacts, LivePartition, Node, read_node
from storage_engine.kafka.hold.hold_state import with_live
from storage_engine.kafka.store.store import KafkaStore, OpenNode
from storage_engine.model.plan import Decision, Plan, PlanRequest, Reason
from storage_engine.retention.store.broker_answers import propose, take_snapshot
from tests.kafka.made_node import CLUSTER, WRITTEN_MS, batch_of

DAY_MS = 24 * 3_600_000
NOW_MS = WRITTEN_MS + 10 * DAY_MS
THREE = {0: [batch_of(0)], 2: [batch_of(2)], 4: [batch_of(4)]}
"""Two closed segments and an active one, of two records each."""


@dataclass(slots=True)
class _Beside(OpenNode):
    """A node whose cluster has said something."""

    facts: LiveFacts = field(default_factory=lambda: LiveFacts(NOW_MS, CLUSTER, {}))

    def read(self, now_ms: int) -> Node:
        return with_live(read_node(self.root), self.facts, "localhost:9092")


def planned(root: Path, live: LiveFacts | None = None, now_ms: int = NOW_MS) -> Plan:
    store = KafkaStore(OpenNode(root)) if live is None else KafkaStore(_Beside(root, facts=live))
    return propose(store, take_snapshot(store, now_ms, "kafka"), now_ms, PlanRequest())


def decisions(
    root: Path, log: str = "t-0", live: LiveFacts | None = None, now_ms: int = NOW_MS
) -> Sequence[Decision]:
    (found,) = [one for one in planned(root, live, now_ms).logs if one.log == log]
    return found.decisions


def first(root: Path, live: LiveFacts | None = None, now_ms: int = NOW_MS) -> tuple[Reason, str]:
    found = decisions(root, live=live, now_ms=now_ms)[0]
    return found.reason, found.detail


def asked(**facts: object) -> LiveFacts:
    return LiveFacts(NOW_MS, CLUSTER, {"t-0": replace(LivePartition(leader=1), **facts)})  # type: ignore[arg-type]


def files_of(root: Path) -> Mapping[str, tuple[int, str]]:
    return {
        str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
