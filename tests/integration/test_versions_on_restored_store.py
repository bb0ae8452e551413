"""Brokers of several versions on a plain restore: each serves all that the lake has, as it was written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from storage_engine.lake.archive.archive import archive_all, segment_jobs
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.restore.restore import choose_segments, write_segments
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.model.broker.kind import SampleRequest
from storage_engine.rocketmq.codec.codec import CODEC
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.sample.writing import write_sample
from storage_engine.rocketmq.store.store import RocketMQStore
from tests.integration.broker import running_broker
from tests.lake.gc.test_thinning import thin

pytestmark = pytest.mark.integration

STORE_ID = "1f0c4a52-39d8-4f0e-8a0e-2f9be4a5c0d7"
SEGMENT_BYTES = 1 << 20
END_MS = 1_795_000_000_000
MORE_THAN_ANY_LOOKS_AT = 12
"""Segments: by themselves versions make queues of the last 3 or 10 of them."""
SERVES_NOTHING_BY_ITSELF = "5.1.4"
OTHERS = ("4.9.7", "5.0.0", "5.2.0", "5.3.3", "5.4.0", "5.5.1")

PLACE = ("queue_offset", "physical_offset", "size")

Queues = dict[tuple[str, int], dict[int, bytes]]
"""By topic and queue, then by queue offset: the message's bytes."""


@dataclass(frozen=True)
class Archived:
    lake: Lake
    queues: Queues


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Archived:
    """A lake that has all sealed segments of a store, and what is in them."""
    return _archived(tmp_path_factory.mktemp("versions"))


def _archived(work: Path) -> Archived:
    written = write_sample(SampleRequest(work / "sample", 12_000, 3, 5, 1, END_MS, SEGMENT_BYTES))
    config = load_broker_config(Path(written.configuration), root=written.store)
    snapshot = RocketMQStore.open(config).snapshot(0)
    sealed = snapshot.logs[0].sealed
    assert len(sealed) > MORE_THAN_ANY_LOOKS_AT
    lake = make_lake(LakeConfig.local(work / "lake"))
    jobs = segment_jobs(
        lake, sealed, store_id=STORE_ID, lineage=0, broker=snapshot.broker, store_root=snapshot.root
    )
    archive_all(lake, jobs)
    queues: Queues = {}
    for segment in sealed:
        data = Path(segment.facts.path).read_bytes()
        for table, _ in CODEC.decode(memoryview(data), segment.base_offset):
            for row in table.select(["kind", "topic", "queue_id", *PLACE]).to_pylist():
                if row["kind"] != "message":
                    continue
                at = row["physical_offset"] - segment.base_offset
                queue = queues.setdefault((row["topic"], row["queue_id"]), {})
                queue[row["queue_offset"]] = data[at : at + row["size"]]
    return Archived(lake, queues)


@pytest.mark.parametrize(
    "version",
    [SERVES_NOTHING_BY_ITSELF, *(pytest.param(version, marks=pytest.mark.again) for version in OTHERS)],
)
def test_a_broker_serves_all_of_a_plain_restore(
    version: str, archived: Archived, tmp_path: Path, name_server_port: int
) -> None:
    _check_served(version, archived, tmp_path, name_server_port)


@pytest.fixture(scope="module")
def thinned(tmp_path_factory: pytest.TempPathFactory) -> Archived:
    """The same without a topic, of which the last segments alone have messages."""
    found = _archived(tmp_path_factory.mktemp("thinned"))
    rows = receipts(found.lake, STORE_ID)[:-2]
    topic = sorted({topic for topic, _ in found.queues})[0]
    thin(found.lake, rows, topic)
    kept = {
        queue: {
            offset: frame
            for offset, frame in messages.items()
            if queue[0] != topic or _at(frame) >= rows[-1].end
        }
        for queue, messages in found.queues.items()
    }
    return Archived(found.lake, {queue: messages for queue, messages in kept.items() if messages})


@pytest.mark.again
@pytest.mark.parametrize("version", [SERVES_NOTHING_BY_ITSELF, *OTHERS])
def test_a_broker_serves_what_stays_of_thinned_segments(
    version: str, thinned: Archived, tmp_path: Path, name_server_port: int
) -> None:
    _check_served(version, thinned, tmp_path, name_server_port)


def _at(frame: bytes) -> int:
    """Return a frame's physical offset."""
    return int.from_bytes(frame[28:36])


def _check_served(version: str, archived: Archived, tmp_path: Path, name_server_port: int) -> None:
    chosen = choose_segments(archived.lake, STORE_ID, with_filler=True)
    write_segments(chosen, tmp_path / "store")
    said = {setting.name: setting.value for setting in chosen.settings}
    assert said["mappedFileSizeCommitLog"] == str(SEGMENT_BYTES)
    said |= {"enableLmq": "false", "enableMultiDispatch": "false"}
    with running_broker(tmp_path / "store", tmp_path, name_server_port, said, version=version) as broker:
        served = {
            queue: broker.client.queue(*queue, min(messages), max(messages) + 1)
            for queue, messages in archived.queues.items()
        }
    assert sum(map(len, served.values())) == sum(map(len, archived.queues.values())) > 8_000
    assert served == archived.queues
