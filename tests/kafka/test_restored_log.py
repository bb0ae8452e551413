"""A log directory around restored segments, by the receipts of archived ones; and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from storage_engine.exceptions import RestoreError
from storage_engine.kafka import BROKER
from storage_engine.kafka.codec.codec import CODEC
from storage_engine.kafka.format.checkpoints import LeaderEpoch, read_leader_epochs, read_offsets
from storage_engine.kafka.format.layout import read_node
from storage_engine.kafka.format.partition_metadata import read_topic_id
from storage_engine.kafka.metadata.cluster_metadata import LOG, PartitionState, read_cluster_metadata
from storage_engine.kafka.restored_log import (
    RestoredLogDirectory,
    ServingNodes,
    check_served,
    epochs_of,
    read_serving_nodes,
)
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.restore.restore_span import Span, choose
from storage_engine.model.proof.receipt import Receipt
from tests.kafka.lakes import STORE, archive, new_lake, segments_of
from tests.services.command_line import run_command
from tests.services.restoring import restore

LOGS = ("delrec-0", "hdrs-0", "txn-1")


@pytest.fixture(scope="module")
def archived(node: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, tuple[Receipt, ...]]:
    lake = new_lake(tmp_path_factory.mktemp("archived") / "lake")
    sealed = [one for log in LOGS for one in segments_of(node, log)[:-1]]
    return lake, archive(lake, node, sealed)


@pytest.fixture
def lost(node: Path, tmp_path: Path) -> Path:
    """The ``server.properties`` of the same node, which has lost the archived logs."""
    copied = Path(shutil.copytree(node, tmp_path / "node"))
    properties = copied / "server.properties"
    properties.write_text(properties.read_text().replace(str(node), str(copied)))
    for log in LOGS:
        shutil.rmtree(copied / "logs" / log)
    return properties


def test_metadata_know_each_partition_s_replicas_and_leader_s_epoch(node: Path) -> None:
    metadata = read_cluster_metadata(node / "meta" / LOG, partition_states=True)
    for path in (node / "logs").glob("*-[0-9]"):
        state = metadata.partition_states[read_topic_id(path / "partition.metadata"), int(path.name[-1])]
        assert state.replicas == (1,)
        epochs = read_leader_epochs(path / "leader-epoch-checkpoint")
        assert [one.epoch for one in epochs][-1:] <= [state.leader_epoch]
    assert read_cluster_metadata(node / "meta" / LOG).partition_states == {}


def test_a_restore_for_a_node_makes_a_log_directory_of_it(
    archived: tuple[Lake, tuple[Receipt, ...]], lost: Path, node: Path, tmp_path: Path
) -> None:
    lake, receipts = archived
    target = tmp_path / "restored"
    rows = restore(lake, STORE, target, serving=[lost])
    assert len(rows) == len(receipts)
    assert not list(target.rglob(".kafka_cleanshutdown"))
    assert not list(target.rglob("recovery-point*"))
    for log in LOGS:
        restored, original = target / log, node / "logs" / log
        for path in restored.iterdir():
            if path.name != "leader-epoch-checkpoint":
                assert path.read_bytes() == (original / path.name).read_bytes(), path
        epochs = read_leader_epochs(original / "leader-epoch-checkpoint")
        assert read_leader_epochs(restored / "leader-epoch-checkpoint") == epochs
    ends = {log: max(row.end for row in receipts if row.log == log) for log in LOGS}
    assert read_offsets(target / "replication-offset-checkpoint") == ends
    starts = read_offsets(node / "logs" / "log-start-offset-checkpoint")
    assert read_offsets(target / "log-start-offset-checkpoint") == {"delrec-0": starts["delrec-0"]}
    found = read_node(target)
    assert found.cluster_ids == read_node(lost).cluster_ids
    assert [directory.meta.node_id for directory in found.directories if directory.meta] == [1]
    assert all(row.existed for row in restore(lake, STORE, target, serving=[lost]))


def test_segments_alone_are_restored_for_no_node(
    archived: tuple[Lake, tuple[Receipt, ...]], tmp_path: Path
) -> None:
    restore(archived[0], STORE, tmp_path / "restored", log="hdrs-0")
    assert {path.suffix for path in (tmp_path / "restored").rglob("*.*")} <= {
        ".log",
        ".snapshot",
        ".txnindex",
    }
    assert BROKER.restored_config(()) is None


@pytest.mark.parametrize("keeps", ["logs", "checkpoints"])
def test_nothing_is_restored_over_a_node_s_own_directory(
    archived: tuple[Lake, tuple[Receipt, ...]], lost: Path, keeps: str
) -> None:
    own = lost.parent / "logs"
    for path in list(own.iterdir()) if keeps == "checkpoints" else []:
        if path.is_dir():
            shutil.rmtree(path)
        elif not path.name.endswith(("offset-checkpoint", "meta.properties")):
            path.unlink()
    before = {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}
    assert own / "replication-offset-checkpoint" in before
    with pytest.raises(RestoreError, match="Nothing was written"):
        restore(archived[0], STORE, own, serving=[lost])
    assert {path: path.read_bytes() for path in own.rglob("*") if path.is_file()} == before


def test_a_span_goes_on_to_the_markers_of_its_transactions(
    archived: tuple[Lake, tuple[Receipt, ...]], lost: Path, tmp_path: Path
) -> None:
    lake, receipts = archived
    own = [row for row in receipts if row.log == "txn-1"]
    config = RestoredLogDirectory(read_serving_nodes([lost]))
    known = [config.queues_of(_rows(row)) for row in own]
    cut = [
        place
        for place in range(1, len(own))
        if config.unfinished(config.merge_queues(pa.concat_tables(known[:place])))
    ]
    assert cut
    asked = own[cut[0] - 1]
    rows = restore(
        lake, STORE, tmp_path / "back", serving=[lost], log="txn-1", span=Span(to_offset=asked.end)
    )
    assert rows[-1].base_offset > asked.base_offset
    words = (
        "restore",
        "--lake",
        Path(lake.location.removeprefix("file://")).parent,
        "--to",
        tmp_path / "back",
        "--log",
        "txn-1",
    )
    words = (*words, "--for-store", lost, "--to-offset", asked.end)
    end = own[len(rows) - 1].end
    why = config.unfinished(config.merge_queues(pa.concat_tables(known[: cut[0]])))
    assert re.fullmatch(r"a transaction of producer \d+, which begins at offset \d+, has no marker", why)
    (extended,) = run_command(*words, "--json").json["extended"]
    assert extended == {"log": "txn-1", "asked_end": asked.end, "end": end, "why": why}
    said = run_command(*words).err
    assert f"log txn-1 was restored up to offset {end}. " in said
    assert f"The requested span ends at {asked.end}, up to which {why}." in said
    through = own[: len(rows)]
    assert not config.unfinished(config.merge_queues(pa.concat_tables(known[: len(through)])))


def test_a_span_whose_marker_no_lake_has_is_refused(
    archived: tuple[Lake, tuple[Receipt, ...]], lost: Path, node: Path, tmp_path: Path
) -> None:
    config = RestoredLogDirectory(read_serving_nodes([lost]))
    own = [row for row in archived[1] if row.log == "txn-1"]
    known = [config.queues_of(_rows(row)) for row in own]
    merged = [config.merge_queues(pa.concat_tables(known[:place])) for place in range(1, len(own) + 1)]
    cut = next(place for place, found in enumerate(merged, 1) if config.unfinished(found))
    lake = new_lake(tmp_path / "lake")
    archive(lake, node, segments_of(node, "txn-1")[:cut])
    with pytest.raises(RestoreError, match=r"a transaction of producer \d+, which begins at offset \d+, has"):
        restore(lake, STORE, tmp_path / "back", serving=[lost])
    assert not (tmp_path / "back").exists()


def _rows(row: Receipt) -> pa.Table:
    data = Path(row.source_path).read_bytes()
    found = [rows.select(RestoredLogDirectory.COLUMNS) for rows, _ in CODEC.decode(memoryview(data), 0)]
    return pa.concat_tables(found)


def test_a_node_that_runs_or_has_the_log_or_is_of_another_cluster_is_refused(
    archived: tuple[Lake, tuple[Receipt, ...]], lost: Path, node: Path, tmp_path: Path
) -> None:
    lake, target = archived[0], tmp_path / "back"
    with pytest.raises(RestoreError, match="expected node 1 to have no directory of it"):
        restore(lake, STORE, target, serving=[node / "server.properties"])
    lock = lost.parent / "logs" / ".lock"
    lock.touch()
    with held(lock), pytest.raises(RestoreError, match="expected a node that is stopped"):
        restore(lake, STORE, target, serving=[lost])
    (cluster,) = read_node(lost).cluster_ids
    for name in ("logs", "meta"):
        meta = lost.parent / name / "meta.properties"
        meta.write_text(meta.read_text().replace(cluster, "another-cluster-of-here"))
    with pytest.raises(RestoreError, match="expected a node of cluster"):
        restore(lake, STORE, target, serving=[lost])
    assert not target.exists()


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Let another process have a broker's lock."""
    take = (
        "import fcntl,sys; f=open(sys.argv[1],'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    )
    command = [sys.executable, "-c", take, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.kill()


@pytest.fixture
def served(
    archived: tuple[Lake, tuple[Receipt, ...]], lost: Path
) -> tuple[tuple[Receipt, ...], ServingNodes]:
    return tuple(row for row in archived[1] if row.log == "hdrs-0"), read_serving_nodes([lost])


def test_what_a_broker_would_not_serve_is_refused(
    served: tuple[tuple[Receipt, ...], ServingNodes],
) -> None:
    rows, nodes = served
    check_served(rows, nodes)
    partition = (nodes.metadata.topic_ids["hdrs"], 0)
    metadata = replace(nodes.metadata)
    metadata.partition_states = {partition: PartitionState((1, 2), 9)}
    several = replace(nodes, metadata=metadata)
    with pytest.raises(RestoreError, match="expected all nodes with a replica of it, 1, 2, found 1"):
        check_served(rows, several)
    check_served(rows, replace(several, node_ids=(2, 1)))
    with pytest.raises(RestoreError, match="found 3, 1, 2"):
        check_served(rows, replace(several, node_ids=(3, 1, 2)))
    metadata.partition_states = {partition: PartitionState((1,), -1)}
    with pytest.raises(RestoreError, match="this copy of the metadata is older than the restored log"):
        check_served(rows, several)
    metadata.partition_states = {}
    with pytest.raises(RestoreError, match="expected partition 0 in the cluster's metadata"):
        check_served(rows, several)
    metadata.topic_ids = {}
    with pytest.raises(RestoreError, match="found no such topic"):
        check_served(rows, several)
    for row in (
        replace(rows[0], log_id=None),
        replace(rows[0], log="hdrs"),
        replace(rows[0], log="__consumer_offsets-0"),
        replace(rows[0], evidence=None),
    ):
        with pytest.raises(RestoreError, match="Run verify"):
            check_served([row], nodes)
    with pytest.raises(RestoreError, match="a segment that begins at"):
        check_served([rows[0], replace(rows[0], base_offset=rows[0].end + 1)], nodes)


def test_epochs_of_segments_become_those_of_the_log(
    served: tuple[tuple[Receipt, ...], ServingNodes],
) -> None:
    row = replace(served[0][0], base_offset=10, end_offset=20)

    def known(*epochs: list[int]) -> str:
        return json.dumps({"leader_epochs": list(epochs)})

    first = replace(row, evidence=known([0, 0], [2, 15]))
    second = replace(row, base_offset=20, end_offset=30, evidence=known([2, 15]))
    third = replace(row, base_offset=30, end_offset=40, evidence=known([4, 30], [5, 35]))
    assert epochs_of([first, second, third]) == tuple(
        LeaderEpoch(*one) for one in ((0, 10), (2, 15), (4, 30), (5, 35))
    )
    assert epochs_of([second]) == (LeaderEpoch(2, 20),)
    assert epochs_of([replace(row, evidence=known())]) == ()
    for wrong in (known([1, 20]), known([4, 30], [3, 35]), known([9, 50]), '{"leader_epochs": [[1]]}'):
        with pytest.raises(RestoreError, match=r"leaders' epochs|epochs and their"):
            epochs_of([first, second, replace(third, evidence=wrong)])


def test_a_replica_s_segment_joins_only_where_the_leaders_epochs_go_on(
    served: tuple[tuple[Receipt, ...], ServingNodes],
) -> None:
    row = served[0][0]

    def at(first: int, end: int, *epochs: list[int], store_id: str = "other", sha256: str = "") -> Receipt:
        evidence = json.dumps({"leader_epochs": list(epochs)})
        said = sha256 or f"{first:064d}"
        return replace(
            row, base_offset=first, end_offset=end, evidence=evidence, store_id=store_id, sha256=said
        )

    own = [at(20, 30, [0, 0], store_id="own"), at(40, 50, [0, 0], [1, 45], store_id="own")]

    def joined(*replicas: Receipt) -> list[int]:
        return [one.base_offset for one in choose(own, Span(), "own", "lake", replicas)]

    fills = at(30, 40, [0, 0])
    assert joined(fills) == [20, 30, 40]
    # Cut otherwise, and more of it before and behind.
    halves = at(30, 35, [0, 0]), at(35, 40, [0, 0])
    longer = at(30, 38, [0, 0])
    assert joined(longer, *halves, at(50, 60, [1, 45]), at(10, 20, [0, 0])) == [10, 20, 30, 35, 40, 50]
    assert joined(fills, at(50, 60, [2, 50])) == [20, 30, 40, 50]
    # After an unclean election other leaders have taken the records in between, or behind.
    assert joined(fills, at(50, 60, [3, 48]), at(10, 20, [5, 0])) == [20, 30, 40]
    for wrong in (at(30, 40, [7, 25]), at(30, 41, [0, 0]), at(29, 40, [0, 0])):
        with pytest.raises(RestoreError, match="expected a segment at offset 30"):
            joined(wrong)
    with pytest.raises(RestoreError, match="expected a segment at offset 30"):
        joined(fills, replace(fills, sha256="f" * 64, store_id="third"))
    with pytest.raises(RestoreError, match="expected a segment at offset 30"):
        joined(replace(fills, log_id="another/topic/0"))
