"""Each command on a node or store that has none of something: a log, a segment, a queue, a group, a topic."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.kafka.made_node import MadeNode, batch_of
from tests.rounds import again_but

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("inspect", "STORE"),
    ("plan", "STORE"),
    ("lag", "STORE"),
    ("doctor", "STORE"),
    ("doctor", "STORE", "--lake", "LAKE"),
    ("archive", "STORE", "--lake", "LAKE"),
    ("verify", "STORE", "--lake", "LAKE"),
    ("clean", "STORE", "--lake", "LAKE", "--dry-run"),
    ("clean", "STORE", "--lake", "LAKE"),
    ("monitor", "STORE", "--lake", "LAKE"),
    ("validate", "STORE", "--lake", "LAKE", "--output", "OUT"),
    ("info", "--lake", "LAKE"),
    ("runs", "--lake", "LAKE"),
    ("gc", "--lake", "LAKE"),
    ("maintain", "--lake", "LAKE"),
    ("lake", "info", "--lake", "LAKE"),
)


def _without_logs(root: Path) -> Path:
    """Make a node of ZooKeeper's time that has no log yet."""
    logs = root / "logs"
    logs.mkdir(parents=True)
    (logs / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=XB4QhweWTe-kZwMNW25y1A\n")
    properties = root / "server.properties"
    properties.write_text(f"broker.id=1\nzookeeper.connect=localhost:2181\nlog.dirs={logs}\n")
    return properties


def _empty_partition(root: Path) -> Path:
    properties = _without_logs(root)
    (root / "logs" / "orders-0").mkdir()
    return properties


def _empty_partitions_beside_a_log(root: Path) -> Path:
    node = MadeNode(root)
    node.add("orders-0", {0: [batch_of(0, ms=1)], 2: [batch_of(2, ms=1)]}, settings={"retention.ms": "1000"})
    node.add("empty-0", {}, settings={"retention.ms": "1000"})
    node.add("__consumer_offsets-0", {}, settings={"cleanup.policy": "compact"})
    return node.write()


def _empty_segments(root: Path) -> Path:
    node = MadeNode(root)
    for name in ("orders-0", "__consumer_offsets-0"):
        node.add(name, {0: []})
    return node.write()


NODES: dict[str, Callable[[Path], Path]] = {
    "no log": _without_logs,
    "a partition without a segment": _empty_partition,
    "such partitions beside a log": _empty_partitions_beside_a_log,
    "segments without a batch": _empty_segments,
}


def _run_all(cli, commands: Iterable[tuple[str, ...]], tmp_path: Path, kind: str, store: Path) -> None:
    """Run them on a store and an empty lake, and expect that each ends well."""
    assert cli("init-lake", "--lake", tmp_path / "lake", "--broker-type", kind).exit_code == 0
    words = {"STORE": store, "LAKE": tmp_path / "lake", "OUT": tmp_path / "out"}
    for command in commands:
        outcome = cli(*(words.get(word, word) for word in command))
        assert (outcome.exit_code, "Mend the package" in outcome.out) == (0, False), (command, outcome)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=() if name == "no log" else pytest.mark.again)
        for name, make in NODES.items()
    ],
)
def test_each_command_answers_on_a_node_that_lacks_it(cli, tmp_path, make) -> None:
    _run_all(cli, COMMANDS, tmp_path, "kafka", make(tmp_path / "node"))


def test_a_log_beside_an_empty_partition_is_cleaned(cli, tmp_path) -> None:
    properties = _empty_partitions_beside_a_log(tmp_path / "node")
    assert cli("init-lake", "--lake", tmp_path / "lake", "--broker-type", "kafka").exit_code == 0
    report = cli("clean", properties, "--lake", tmp_path / "lake", "--json").json["report"]
    assert [(row["log"], row["base_offset"]) for row in report["segments"] if row["fate"] == "deleted"] == [
        ("orders-0", 0)
    ]


def _emptied(name: str) -> Callable[[Path], None]:
    def empty(store: Path) -> None:
        shutil.rmtree(store / name)
        (store / name).mkdir()

    return empty


def _never_written(store: Path) -> None:
    """Leave what a broker has that has just been started for the first time."""
    shutil.rmtree(store)
    for name in ("commitlog", "config", "consumequeue"):
        (store / name).mkdir(parents=True)
    (store / "lock").touch()


LACKING: dict[str, Callable[[Path], None]] = {
    "no queue": _emptied("consumequeue"),
    "no index file": _emptied("index"),
    "no settings of topics and groups": lambda store: shutil.rmtree(store / "config"),
    "no message": _never_written,
}


@pytest.mark.parametrize("lack", again_but(LACKING, "no message"))
def test_each_command_answers_on_a_store_that_lacks_it(cli, store_copy, tmp_path, lack) -> None:
    store = store_copy("cqext-batchcq")
    LACKING[lack](store)
    _run_all(cli, COMMANDS, tmp_path, "rocketmq", store)


def test_a_log_without_a_segment_whose_queues_have_files_is_no_new_store(cli, store_copy) -> None:
    store = store_copy("cqext-batchcq")
    _emptied("commitlog")(store)
    outcome = cli("plan", store)
    assert outcome.exit_code == 2
    assert "no segment file: expected files of a commitlog" in outcome.err
