"""Three real brokers on the replicas of a log that were restored from what one of them had archived.

All three lose the log. They get it back, each in a directory of its own, lead it in turn, and write on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage_engine.exceptions import RestoreError
from storage_engine.kafka.format.checkpoints import read_leader_epochs
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.restore.restore_span import Span
from storage_engine.model.proof.receipt import Receipt
from tests.integration.kafka_broker import any_segment_bytes, make_topics
from tests.integration.kafka_cluster import NODES, Cluster
from tests.integration.kafka_transactions import (
    LEVELS,
    NAME,
    SEGMENT_BYTES,
    SUFFIXES,
    TOPIC,
    Records,
    consumed,
    forget,
    last_end,
    limits,
    write,
)
from tests.kafka.lakes import STORE, archive, new_lake, segments_of
from tests.services.restoring import restore

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.timeout(1_200)]

VERSIONS = ("3.9.2", "4.3.1", "4.4.0")
SETTINGS = {"log.dirs": "{node}/logs", "metadata.log.dir": "{node}/metadata", "log.retention.ms": -1}


@dataclass(frozen=True)
class Lost:
    """A cluster that was stopped, and whose nodes have all lost the log.

    :param end: behind the last archived segment at whose end no transaction lacks its marker.
    :param originals: what the nodes had.
    """

    cluster: Cluster
    lake: Lake
    receipts: tuple[Receipt, ...]
    end: int
    records: Mapping[str, Records]
    originals: Mapping[int, Path]
    work: Path

    def properties(self, *ids: int) -> list[Path]:
        return [self.cluster.nodes[number].server_properties for number in ids]

    def refused(self, *ids: int) -> str:
        with pytest.raises(RestoreError) as refused:
            restore(self.lake, STORE, self.work / "refused", serving=self.properties(*ids))
        assert not (self.work / "refused").exists()
        return str(refused.value)


@pytest.fixture(scope="module", params=VERSIONS)
def cluster_version(request: pytest.FixtureRequest) -> str:
    version: str = request.param
    return version


def test_replicas_restored_on_all_nodes_are_served_by_each_as_the_leader(
    cluster: Cluster, cluster_version: str, tmp_path: Path
) -> None:
    serve_again(lose(cluster, cluster_version, tmp_path / "work"))


def lose(cluster: Cluster, version: str, work: Path) -> Lost:
    """Write with changing leaders, archive what one node has, and take the log from all."""
    roll = any_segment_bytes(version)
    make_topics(cluster.address, TOPIC, replicas=len(NODES), **{roll: SEGMENT_BYTES})
    cluster.wait_for_isr(TOPIC)
    cluster.move_leader(TOPIC, 2)
    write(cluster.address, rounds=18)
    # What one replica gets in one piece when it comes back, the others have cut.
    cluster.nodes[3].kill()
    cluster.wait_for_isr(TOPIC, (1, 2))
    write(cluster.address, rounds=6)
    cluster.start([3])
    cluster.wait_for_isr(TOPIC)
    cluster.move_leader(TOPIC, 3)
    write(cluster.address, rounds=10)
    records = {level: consumed(cluster.address, level) for level in LEVELS}
    forget(cluster.address, roll.replace("_", "."))
    cluster.wait_for_isr(TOPIC)
    cluster.stop()
    work.mkdir()
    lake = new_lake(work / "lake")
    root = cluster.nodes[1].server_properties.parent
    receipts = archive(lake, root, segments_of(root, NAME)[:-1])
    lost = Lost(cluster, lake, receipts, 0, records, {}, work)
    assert "expected node 1 to have no directory of it" in lost.refused(*NODES)
    originals = {}
    for number in NODES:
        directory = cluster.nodes[number].server_properties.parent / "logs" / NAME
        originals[number] = directory.rename(work / f"original-{number}")
    end = last_end(lake, receipts, lost.properties(*NODES), work / "tried")
    return Lost(cluster, lake, receipts, end, records, originals, work)


def serve_again(lost: Lost) -> None:
    cluster, end = lost.cluster, lost.end
    # Who has less than the others, and leads, cuts the others off.
    assert "expected all nodes with a replica of it, " in (message := lost.refused(1, 2))
    assert "found 1, 2. Nothing was written. Stop all nodes with a replica and name each" in message
    targets = {number: lost.work / f"restored-{number}" for number in NODES}
    for number, target in targets.items():
        others = (other for other in NODES if other != number)
        serving = lost.properties(number, *others)
        restore(lost.lake, STORE, target, serving=serving, span=Span(to_offset=end))
        assert f"node.id={number}\n" in (target / "meta.properties").read_text()
    before = {path.name: path.read_bytes() for path in (targets[1] / NAME).iterdir()}
    segments = {name: content for name, content in before.items() if Path(name).suffix in SUFFIXES}
    assert segments == {name: (lost.originals[1] / name).read_bytes() for name in segments}
    cluster.add_log_directories(targets)
    cluster.start()
    cluster.wait_for_isr(TOPIC)
    expected = {level: [one for one in records if one[0] < end] for level, records in lost.records.items()}
    for number in NODES:
        cluster.move_leader(TOPIC, number)
        assert limits(cluster.address) == (0, end)
        assert {level: consumed(cluster.address, level) for level in LEVELS} == expected
    write(cluster.address, rounds=4)
    cluster.wait_for_isr(TOPIC)
    after = {level: consumed(cluster.address, level) for level in LEVELS}
    for level, records in expected.items():
        assert after[level][: len(records)] == records
        assert {one[2] for one in after[level][len(records) :]} >= {b"outer-0-0", b"plain-3-1"}
    for number in NODES:
        cluster.move_leader(TOPIC, number)
        assert {level: consumed(cluster.address, level) for level in LEVELS} == after
    cluster.stop()
    for target in targets.values():
        for name, content in segments.items():
            path = target / NAME / name
            own = name == f"{0:020d}.snapshot"
            assert (own and not path.exists()) or path.read_bytes().startswith(content), path
        epochs = read_leader_epochs(target / NAME / "leader-epoch-checkpoint")
        known = read_leader_epochs(lost.originals[1] / "leader-epoch-checkpoint")
        assert [one for one in epochs if one.start_offset < end] == [
            one for one in known if one.start_offset < end
        ]
        assert epochs[-1].start_offset >= end
