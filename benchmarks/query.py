"""How much of a lake a question about one topic, an hour or a key reads, against all that the lake has."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from storage_engine.lake.archive.archive import archive_all, segment_jobs
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.restore.export import Selection, export_messages
from storage_engine.model.broker.sample import SampleRequest
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.sample.writing import write_sample
from storage_engine.rocketmq.store.store import RocketMQStore

MESSAGES, TOPICS, SEGMENT_BYTES = 240_000, 200, 64 << 20
"""They fill four segments."""
TOPIC = "shipments-0006"


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="query-") as base:
        root = Path(base)
        request = SampleRequest(root / "sample", MESSAGES, TOPICS, 7, 1, 1_795_000_000_000, SEGMENT_BYTES)
        written = write_sample(request)
        config = load_broker_config(Path(written.configuration), root=written.store)
        store = RocketMQStore.open(config).snapshot(0)
        lake = make_lake(LakeConfig.local(root / "lake"))
        jobs = segment_jobs(
            lake,
            store.logs[0].sealed,
            store_id="bench",
            lineage=0,
            broker=store.broker,
            store_root=store.root,
        )
        receipts = archive_all(lake, jobs)
        middle = receipts[len(receipts) // 2]
        first, last = middle.first_store_timestamp_ms or 0, middle.last_store_timestamp_ms or 0
        span = {"from_ms": first, "to_ms": first + (last - first) // 10}
        questions = {
            "everything": Selection(),
            "a topic": Selection(topic=TOPIC),
            "a tenth of a segment's time": Selection(**span),
            "a topic in that time": Selection(topic=TOPIC, **span),
            "a key": Selection(key="ORD-0000012345"),
            "a key of a topic": Selection(key="ORD-0000012345", topic=TOPIC),
        }
        for name, selection in questions.items():
            _print(lake, root / name, name, selection)
    return 0


def _print(lake: Lake, path: Path, name: str, selection: Selection) -> None:
    found = export_messages(lake, path, selection)
    sys.stdout.write(
        f"{name}: {found.message_count} messages, files {found.files_read} of {found.files_total}, "
        f"row groups {found.row_groups_read}, {found.bytes_read / (1 << 20):.2f} MiB read\n"
    )


if __name__ == "__main__":
    sys.exit(main())
