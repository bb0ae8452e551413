"""kafka make-room at a shell: what it refuses, what it shows, and a whole run on a node without a cluster."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from storage_engine.cli import kafka
from tests.kafka.made_node import MadeNode
from tests.kafka.stopped.test_stopped_release import KEPT
from tests.kafka.stopped_nodes import files_of, make_node
from tests.services.lock_holder import lock_held

SHM = Path("/dev/shm")


@pytest.fixture
def node(tmp_path: Path) -> MadeNode:
    """Two logs of two closed segments, which have expired; node 2 has a replica of one."""
    node = make_node(tmp_path / "node")
    node.replicas["b-0"] = (1, 2)
    node.write()
    return node


@pytest.fixture
def lake(cli: Any, tmp_path: Path) -> Iterator[Path]:
    """A lake on another disk than the node's."""
    if not os.access(SHM, os.W_OK) or SHM.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second disk is here")
    directory = Path(tempfile.mkdtemp(dir=SHM, prefix="make-room-"))
    try:
        assert cli("init-lake", "--broker-type", "kafka", "--lake", directory / "lake").exit_code == 0
        yield directory / "lake"
    finally:
        shutil.rmtree(directory)


def test_it_asks_before_it_acts_and_tells_what_a_force_has_to_say(
    cli: Any, node: MadeNode, lake: Path
) -> None:
    before = files_of(node.directories[0] / "a-0")
    asked = cli("kafka", "make-room", node.properties, "--lake", lake)
    assert asked.exit_code == 2
    assert "2 segments and 4 files that point into them would be deleted" in asked.out
    assert asked.out.splitlines()[1].endswith("; consumer lag in process, 1 thread")
    assert "Nothing was changed. Look at the plan, with --dry-run; --yes carries it out." in asked.err
    forced = cli("kafka", "make-room", node.properties, "--lake", lake, "--force", "full")
    assert "--force: expected --bytes or --free-percent with it" in forced.err
    for option in ("--force", "--replicas-stopped"):
        for blank in ("", " "):
            said = cli("kafka", "make-room", node.properties, "--lake", lake, option, blank, "--yes")
            assert (said.exit_code, "expected a reason, found none" in said.err) == (2, True)
    dry = cli("kafka", "make-room", node.properties, "--lake", lake, "--dry-run", "--json")
    assert dry.json["dry_run"] is True
    reasons = {(one["segment"]["log"], one["reason"]) for one in dry.json["plan"]["decisions"]}
    assert ("a-0", "expired") in reasons
    assert ("b-0", "replicas-elsewhere") in reasons
    assert files_of(node.directories[0] / "a-0") == before


def test_a_lake_on_a_disk_of_the_node_is_refused(cli: Any, node: MadeNode, tmp_path: Path) -> None:
    assert cli("init-lake", "--broker-type", "kafka", "--lake", tmp_path / "lake").exit_code == 0
    done = cli("kafka", "make-room", node.properties, "--lake", tmp_path / "lake", "--yes")
    assert done.exit_code == 2
    assert "expected no files of Storage Engine on the node's disks" in done.err
    assert "Name a lake on another disk" in done.err


def test_a_running_node_is_refused_and_so_is_one_that_starts_before_it_is_said_yes(
    cli: Any, node: MadeNode, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, lock = files_of(node.directories[0] / "a-0"), node.directories[0] / ".lock"
    with lock_held(lock):
        done = cli("kafka", "make-room", node.properties, "--lake", lake, "--yes")
        assert (done.exit_code, "expected a node that is stopped" in done.err) == (1, True), done.err
        one = cli("kafka", "make-room", node.directories[0], "--broker-type", "kafka", "--lake", lake)
        assert "Name the file as STORE." in one.err
    with ExitStack() as running:
        monkeypatch.setattr(kafka, "_confirm", lambda: running.enter_context(lock_held(lock)))
        done = cli("kafka", "make-room", node.properties, "--lake", lake)
    assert done.exit_code == 1
    assert "expected a store whose broker is stopped" in done.err
    assert "archive" not in done.out
    assert files_of(node.directories[0] / "a-0") == before


def test_a_store_of_another_broker_is_refused(cli: Any, store: Path, lake: Path) -> None:
    done = cli("kafka", "make-room", store, "--lake", lake, "--yes")
    assert done.exit_code == 2
    assert "expected a node of a cluster with replicas" in done.err


@pytest.mark.slow
@pytest.mark.usefixtures("plainly")
def test_what_is_here_alone_goes_and_it_says_what_to_do_next(cli: Any, node: MadeNode, lake: Path) -> None:
    # It didn't stop cleanly, as a broker that a full disk ends: what is flushed goes all the same.
    for number, log in enumerate(("a-0", "b-0")):
        (node.directories[number] / ".kafka_cleanshutdown").unlink()
        node.checkpoint("recovery-point-offset-checkpoint", {log: 4}, number)
    done = cli("kafka", "make-room", node.properties, "--lake", lake, "--yes")
    assert done.exit_code == 0, done.out + done.err
    assert files_of(node.directories[0] / "a-0")[: len(KEPT)] == KEPT
    assert len(files_of(node.directories[1] / "b-0")) == 15
    assert "Next: start the node's broker" in done.out
    again = cli("kafka", "make-room", node.properties, "--lake", lake, "--yes")
    assert again.exit_code == 1
    assert "nothing was deleted, and the report says why each segment stays" in again.out
