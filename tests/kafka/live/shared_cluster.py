"""A cluster whose settings several stores see, in memory, beside nodes with real files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from storage_engine.exceptions import BrokerRefusedError, StoreBusyError
from storage_engine.kafka.format.layout import LiveFacts, LivePartition, read_what_is_left
from storage_engine.kafka.hold.hold_state import HELD_SETTINGS, HoldState, TopicSetting, load_state, with_live
from storage_engine.kafka.live import hold, raised_settings, topic_state
from storage_engine.kafka.store.plan import SeenNode
from storage_engine.kafka.store.store import _see_node
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.hold import Drift, HoldStatus
from storage_engine.model.store import FileFacts, SegmentId
from tests.kafka.made_node import CLUSTER, MadeNode, batch_of

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW_MS = 1_900_000_000_000
INTERVAL_MS = 300_000
NO_SUCH_TOPIC = BrokerRefusedError("no such topic", code=3, remark="no such topic")


@dataclass
class Journal:
    """Several stores' memories."""

    memories: list[Memory] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class Memory:
    """Implements :class:`storage_engine.model.hold.HoldMemory`."""

    journal: Journal
    state: Any = None
    drift: list[Drift] = field(default_factory=list)

    def load(self) -> Any:
        return self.state

    def save(self, state: Any) -> None:
        self.state = state

    def of_others(self) -> list[Any]:
        return [one.state for one in self.journal.memories if one is not self and one.state]

    def record_drift(self, found: Sequence[Drift]) -> None:
        self.drift += found

    @contextmanager
    def alone(self, cluster: str) -> Iterator[Callable[[], None]]:
        assert cluster == CLUSTER
        if not self.journal.lock.acquire(blocking=False):
            raise StoreBusyError("cluster: expected its lease to be free")
        try:
            yield lambda: None
        finally:
            self.journal.lock.release()


@dataclass
class SharedCluster:
    """:ivar node: settings where a topic has none of its own.
    :ivar own: topics' own settings.
    :ivar answers: in place of a topic's settings.
    :ivar refuses: topics whose settings can't be changed.
    :ivar elsewhere: what it says of logs that a node hasn't.
    :ivar leaderless: topics that nobody leads.
    :ivar segment_bytes: of all topics.
    :ivar more: further settings of topics.
    """

    journal: Journal = field(default_factory=Journal)
    address: str = "kafka:1"
    node: dict[str, int] = field(
        default_factory=lambda: dict(zip(HELD_SETTINGS, (7 * DAY_MS, -1), strict=True))
    )
    own: dict[str, dict[str, int]] = field(default_factory=dict)
    answers: dict[str, BrokerRefusedError] = field(default_factory=dict)
    refuses: set[str] = field(default_factory=set)
    elsewhere: dict[str, LivePartition] = field(default_factory=dict)
    leaderless: set[str] = field(default_factory=set)
    segment_bytes: int = 1 << 30
    more: dict[str, dict[str, str]] = field(default_factory=dict)

    def value(self, topic: str, key: str = "retention.ms") -> int:
        return self.own.get(topic, {}).get(key, self.node[key])

    def read_settings(self, _: Any, topics: Sequence[str]) -> Mapping[str, Any]:
        return {
            topic: self.answers.get(topic)
            or {
                key: TopicSetting(self.value(topic, key), key in self.own.get(topic, {}))
                for key in HELD_SETTINGS
            }
            for topic in topics
        }

    def change_settings(self, _: Any, wanted: Mapping[str, Mapping[str, int | None]]) -> Mapping[str, Any]:
        for topic, settings in wanted.items():
            for key, value in settings.items() if topic not in self.refuses else ():
                own = self.own.setdefault(topic, {})
                if value is None:
                    own.pop(key, None)
                else:
                    own[key] = value
        refused = BrokerRefusedError("no", code=29, remark="no AlterConfigs")
        return {topic: refused for topic in wanted if topic in self.refuses}


class Store:
    """What a hold needs of a live store.

    :ivar untold: topics whose settings aren't told when the node is looked at.
    :ivar after_look: done once the files were listed.
    """

    def __init__(self, cluster: SharedCluster, made: MadeNode, **live: Any) -> None:
        self.asked, self.made, self.root = cluster, made, made.properties
        self.live = LiveBroker("kafka:1", **live)
        self.memory = Memory(cluster.journal)
        cluster.journal.memories.append(self.memory)
        self.untold: set[str] = set()
        self.after_look: Callable[[], object] = lambda: None

    def look(self, now_ms: int) -> SeenNode:
        node = read_what_is_left(self.root)
        told: dict[str, LivePartition] = {}
        for _, log in node.logs:
            name, topic = log.name.log, log.name.topic
            if log.name.is_internal:
                continue
            values = {key: str(self.asked.value(topic, key)) for key in HELD_SETTINGS}
            values |= {"segment.bytes": str(self.asked.segment_bytes), **self.asked.more.get(topic, {})}
            end = self.made.watermarks[name]
            if topic in self.asked.leaderless:
                told[name] = LivePartition(self.made.topic_ids[topic], replicas=(1,))
                continue
            told[name] = LivePartition(
                self.made.topic_ids[topic],
                leader=1,
                log_start=log.segments[0].base_offset if log.segments else 0,
                high_watermark=end,
                last_stable_offset=end,
                topic_settings=None if topic in self.untold else {"cleanup.policy": "delete", **values},
                replicas=(1,),
                in_sync=(1,),
                leader_epoch=0,
            )
        seen = _see_node(with_live(node, LiveFacts(now_ms, CLUSTER, told), "kafka:1"))
        self.after_look()
        return seen

    def due(self, now_ms: int, *proven: tuple[str, int], margin_ms: int = DAY_MS) -> HoldStatus:
        """:param proven: segments that a lake has."""
        found: dict[SegmentId, FileFacts] = {}
        for one in self.look(now_ms).logs:
            found |= {each.id: each.facts for each in one.segments if (each.log, each.base_offset) in proven}
        return hold.hold_due(self, found, margin_ms, now_ms)  # type: ignore[arg-type]

    @property
    def state(self) -> HoldState:
        found = load_state(self.memory)
        assert found is not None
        return found


@pytest.fixture
def cluster() -> Iterator[SharedCluster]:
    with shared_cluster() as found:
        found.own["orders"] = {"retention.ms": DAY_MS}
        yield found


@contextmanager
def shared_cluster() -> Iterator[SharedCluster]:
    """Put a new cluster in the place of every other one for the duration of the block."""
    found = SharedCluster()

    def observe(_: Any, names: Sequence[Any], now_ms: int) -> LiveFacts:
        known = {one.log: found.elsewhere[one.log] for one in names if one.log in found.elsewhere}
        return LiveFacts(now_ms, CLUSTER, known)

    with pytest.MonkeyPatch.context() as patch:
        for module in (hold, raised_settings, topic_state):
            patch.setattr(module, "read_settings", found.read_settings)
        patch.setattr(raised_settings, "change_settings", found.change_settings)
        patch.setattr(topic_state, "check_interval_ms", lambda *_: INTERVAL_MS)
        patch.setattr(topic_state, "observe_cluster", observe)
        yield found


def node(
    root: Path, logs: Mapping[str, Mapping[int, int]], directories: Sequence[str] = ("logs",)
) -> MadeNode:
    """Return a node whose logs have segments of two records.

    :param logs: of each, the age of each segment in hours, by its base offset. Each log of several
        directories lies in the next one.
    """
    root.mkdir(exist_ok=True)
    made = MadeNode(root, directories)
    for place, (name, ages) in enumerate(logs.items()):
        segments = {base: [batch_of(base, ms=NOW_MS - hours * HOUR_MS)] for base, hours in ages.items()}
        made.add(name, segments, directory=place % len(directories))
    made.write()
    return made
