"""A stopped node on which its broker had begun to delete: a segment of a log, and the log of a topic."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from storage_engine.core.clock import clock_ms
from storage_engine.cycle import archive_here
from storage_engine.lake.move.making import make_lake
from storage_engine.retention import steps
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.made_node import MadeNode, batch_of
from tests.kafka.stopped_nodes import OLD_MS, make_node, managed

GONE = "gone-0.0123456789abcdef0123456789abcdef-delete"
LATER_MS = 120_000
"""Behind the delays of what was renamed just now."""


def make_left_over(directory: Path) -> ManagedStore:
    """Make a node, archive its closed segments, and leave it as its broker would in the middle of deletions.

    Of log a-0 the first segment is renamed, of a topic that is gone the only segment is archived.
    """
    node = make_node(directory / "store")
    gone = node.add("gone-0", {0: [batch_of(0, ms=OLD_MS)], 2: []})
    node.write()
    (directory / "managed").mkdir()
    store = managed(directory / "managed", directory / "store")
    make_lake(store.lake, "kafka")
    steps.archive_sealed(store, "archived", archive_here)
    delete_first_segment(node.directories[0] / "a-0")
    gone.rename(gone.with_name(GONE))
    drop_topic(node, "gone")
    write_recovery_points(node)
    return store


def delete_first_segment(log: Path) -> None:
    """Rename the files of a log's first segment, as a broker that deletes it."""
    for path in sorted(log.glob(f"{0:020d}.*")):
        path.rename(f"{path}.deleted")


def drop_topic(node: MadeNode, topic: str) -> None:
    """Take a topic out of the cluster's metadata."""
    for known in (node.topic_ids, node.settings):
        known.pop(topic, None)
    node.replicas.pop(f"{topic}-0", None)
    node.watermarks.pop(f"{topic}-0", None)
    node.write()


def write_recovery_points(node: MadeNode) -> None:
    for number, directory in enumerate(node.directories):
        known = {name: at for name, at in node.watermarks.items() if (directory / name).is_dir()}
        node.checkpoint("recovery-point-offset-checkpoint", known, number)


def run(
    store: ManagedStore, key: str = "tasks", words: Mapping[str, str] | None = None
) -> dict[str, steps.TaskResult]:
    """Look after the tasks, as of when all delays are over."""
    results = steps.run_broker_tasks(store, key, words=words, now_ms=clock_ms() + LATER_MS)
    return {one.name: one for one in results}
