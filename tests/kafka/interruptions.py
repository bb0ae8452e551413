"""Releases and undos of a stopped node that end midway, and the files that the node has."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_engine.core.durable import PLAIN_STAMP
from storage_engine.kafka.stopped import store_lock
from storage_engine.retention import steps
from storage_engine.retention.quarantine import undo as undoing
from storage_engine.retention.quarantine.places import Place, move_back
from storage_engine.retention.quarantine.undo import undo
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.made_node import MadeNode
from tests.retention.quarantine.conftest import Files, files_of


def files(node: MadeNode) -> Files:
    """Every file of the node but its locks and stamps."""
    return in_use(node.root)


def in_use(root: Path) -> Files:
    return {
        name: facts for name, facts in files_of(root).items() if Path(name).name not in (".lock", PLAIN_STAMP)
    }


def release_in_part(store: ManagedStore, node: MadeNode, monkeypatch: pytest.MonkeyPatch) -> Files:
    """Begin a release that ends after two segments. :return: the files before."""
    before, real, calls = files(node), store_lock.LockedDirectories.check, []

    def ends(self: store_lock.LockedDirectories) -> None:
        calls.append(1)
        # Of each segment the step asks, and the node right before the file goes: after the third intent.
        if len(calls) > 5:
            raise InterruptedError
        real(self)

    steps.make_plan(store, "run")
    monkeypatch.setattr(store_lock.LockedDirectories, "check", ends)
    with pytest.raises(InterruptedError):
        steps.release(store, "run")
    monkeypatch.undo()
    assert len(before) - len(files(node)) == 5
    return before


def undo_in_part(store: ManagedStore, monkeypatch: pytest.MonkeyPatch, moves: int) -> None:
    done: list[Path] = []

    def move(place: Place, path: Path) -> None:
        if len(done) == moves:
            raise InterruptedError
        move_back(place, path)
        done.append(path)

    monkeypatch.setattr(undoing, "move_back", move)
    with pytest.raises(InterruptedError):
        undo(store, "run", "ann")
    monkeypatch.undo()
