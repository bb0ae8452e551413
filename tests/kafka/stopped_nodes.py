"""Small nodes that are stopped, with segments that have expired, and a whole cleanup of one."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from storage_engine.crc import crc32c_of
from storage_engine.cycle import archive_here
from storage_engine.lake.move.making import make_lake
from storage_engine.model.lag import LagSummary
from storage_engine.model.plan import PlanRequest
from storage_engine.retention import steps
from storage_engine.retention.report.finishing import finish
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.made_node import MadeNode, batch_of

OLD_MS = 1_780_000_000_000
LOGS = ("a-0", "b-0")
NO_LAG = LagSummary(0, 0, 0, 0, 0, (), 0)
GOING = 2
"""Closed segments of each log."""


def empty_snapshot() -> bytes:
    """Return a snapshot of no producer."""
    count = struct.pack(">i", 0)
    return struct.pack(">hI", 1, crc32c_of(count)) + count


def make_node(
    root: Path,
    logs: Sequence[str] = LOGS,
    directories: Sequence[str] = ("first", "second"),
    going: int = GOING,
) -> MadeNode:
    """Make a node with logs in its directories in turn, whose closed segments have all their files.

    :param going: closed segments of each log.
    """
    node = MadeNode(root, directories)
    for number, name in enumerate(logs):
        bases = [2 * place for place in range(going + 1)]
        segments = {base: [batch_of(base, ms=OLD_MS)] for base in bases}
        path = node.add(name, segments, directory=number % len(directories))
        for base in bases:
            for suffix in ("index", "timeindex", "txnindex"):
                (path / f"{base:020d}.{suffix}").write_bytes(b"")
        for base in (*bases[1:], bases[-1] + 2):
            (path / f"{base:020d}.snapshot").write_bytes(empty_snapshot())
        (path / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    node.write()
    return node


def managed(directory: Path, node: Path) -> ManagedStore:
    """Return a node's store, with all that it needs below a directory."""
    return ManagedStore.local("k", str(node / "server.properties"), directory, broker="kafka")


def archived(directory: Path, node: Path) -> ManagedStore:
    """Return a node's store, of which what is sealed is in a lake."""
    directory.mkdir()
    store = managed(directory, node)
    make_lake(store.lake, "kafka")
    steps.archive_sealed(store, "archived", archive_here)
    return store


def cleanup_steps(
    store: ManagedStore, run: str, request: PlanRequest | None = None
) -> Mapping[str, Callable[[], object]]:
    """Return the steps of a cleanup, in their order."""
    return {
        "init_lake": lambda: make_lake(store.lake, "kafka"),
        "make_plan": lambda: steps.make_plan(store, run, request or PlanRequest()),
        "archive": lambda: steps.archive_planned(store, run, archive_here),
        "record_lag": lambda: steps.record_lag(store, run, NO_LAG, []),
        "release": lambda: steps.release(store, run),
        "clean_dependents": lambda: steps.clean_dependents(store, run),
        "flush_checkpoint": lambda: steps.flush_checkpoint(store, run),
        "finish": lambda: finish(store, run),
    }


def clean(store: ManagedStore, run: str, request: PlanRequest | None = None) -> None:
    for step in cleanup_steps(store, run, request).values():
        step()


def files_of(path: Path) -> list[str]:
    """Return the names of a log's files that are of a segment."""
    return sorted(one.name for one in path.iterdir() if one.name[:20].isdigit())
