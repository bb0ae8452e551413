"""Lakes of Kafka's segments."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from storage_engine.kafka.store.store import KafkaStore, OpenNode
from storage_engine.lake.archive.archive import archive_all, segment_jobs
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.store import Segment

STORE = "node-1"


def segments_of(node: Path, *logs: str) -> list[Segment]:
    """Return the segments with bytes of some logs, in order; of all logs where none is named."""
    snapshot = KafkaStore(OpenNode(node / "server.properties")).snapshot(0)
    return [
        segment
        for log in snapshot.logs
        if not logs or log.name in logs
        for segment in log.segments
        if segment.facts.size_bytes
    ]


def archivable_segments(node: Path) -> list[Segment]:
    """Return all segments of a stopped node that may be archived."""
    store = KafkaStore(OpenNode(node / "server.properties"))
    return list(store.archivable(store.snapshot(0)).segments)


def archive(lake: Lake, node: Path, segments: Iterable[Segment], store: str = STORE) -> tuple[Receipt, ...]:
    """Archive segments of a node, with what it knows of them."""
    segments = list(segments)
    of_node = [one for one in segments if Path(one.facts.path).parent.name == one.log]
    jobs = segment_jobs(
        lake,
        segments,
        store_id=store,
        lineage=0,
        broker="kafka",
        store_root=str(node),
        contexts=KafkaStore(OpenNode(node / "server.properties")).replicas.contexts(of_node),
    )
    return archive_all(lake, jobs)


def new_lake(directory: Path) -> Lake:
    return make_lake(LakeConfig.local(directory), "kafka")
