"""How much of a lake a question about one topic, an hour or a key reads, against all that the lake has."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.generate import Shape, write_store
from storage_engine.lake.archive import archive_all, segment_jobs
from storage_engine.lake.catalog import Lake
from storage_engine.lake.config import LakeConfig
from storage_engine.lake.export import export_messages
from storage_engine.lake.making import make_lake
from storage_engine.lake.selection import Selection
from storage_engine.rocketmq.broker_config import load_broker_config
from storage_engine.rocketmq.store import RocketMQStore

SHAPE = Shape(segments=5, segment_bytes=64 << 20, topics=200)
"""Four sealed segments of 64 MiB."""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="query-") as base:
        root = Path(base)
        write_store(root / "store", SHAPE)
        conf = {"mappedFileSizeCommitLog": str(SHAPE.segment_bytes)}
        store = RocketMQStore.open(load_broker_config(None, conf, root=str(root / "store"))).snapshot(0)
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
            "a topic": Selection(topic="orders_0042"),
            "a tenth of a segment's time": Selection(**span),
            "a topic in that time": Selection(topic="orders_0042", **span),
            "a key": Selection(key="ORD-0000012345"),
            "a key of a topic": Selection(key="ORD-0000012345", topic="orders_0042"),
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
