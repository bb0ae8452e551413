"""A Kafka segment archived with proof, against PyArrow alone: ``python -m benchmarks.kafka_archive``.

Ours reads the segment, decodes it, checks its CRCs, writes a data file of the lake, reads that back, and
compares each byte. The peer has the same columns in memory already, and writes them as Parquet with zstd.
Both are single processes. Counted is processor time of all their threads, each side's median, in turns.
"""

from __future__ import annotations

import tempfile
from itertools import product
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from benchmarks.common import Bench, in_turns, report
from benchmarks.kafka_plan import NOW_MS, batch, write_node
from storage_engine.kafka.codec.codec import CODEC
from storage_engine.kafka.store.store import KafkaStore, OpenNode
from storage_engine.lake.archive.archive import SegmentJob, archive_segment, segment_jobs
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake

MUST = {"uncompressed": 0.65, "zstd": 0.55}
SEGMENT_BYTES = 64 << 20
BATCH_BYTES = 16 << 10
VALUE_BYTES = (1024, 100)
CODECS = {"uncompressed": 0, "zstd": 4}
"""By name, as a batch's attributes have them."""
_SEED = 17


def values_of(value_bytes: int) -> list[bytes]:
    """Return words in JSON, which zstd makes about half as large, as it does people's records."""
    random = Random(_SEED)
    words = ["".join(random.choices("etaoinshrdlucmfw", k=random.randint(3, 9))) for _ in range(8192)]
    texts = (" ".join(random.choices(words, k=value_bytes // 6)) for _ in range(4096))
    return [f'{{"order":{number},"text":"{text}'.encode()[:value_bytes] for number, text in enumerate(texts)]


def segment(codec: int, value_bytes: int) -> tuple[bytes, int]:
    """Return a segment, and the offset behind it."""
    values = values_of(value_bytes)
    out, offset, written_bytes = [], 0, 0
    while written_bytes < SEGMENT_BYTES:
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=codec,
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=BATCH_BYTES,
        )
        count = 0
        while builder.append(
            count, NOW_MS, b"key-%d" % (offset + count), values[(offset + count) % 4096], []
        ):
            count += 1
            written_bytes += value_bytes
        data = bytearray(builder.build())
        data[:8] = offset.to_bytes(8, "big")
        out.append(bytes(data))
        offset += count
    return b"".join(out), offset


def job_of(lake: Lake, directory: Path, codec: int, value_bytes: int) -> SegmentJob:
    """Write a node with one closed segment. :return: what archives it."""
    properties = write_node(directory, 1, 1)
    log = directory / "logs" / "topic-00000-0"
    for path in (*log.glob("*.log"), *log.glob("*.*index"), *log.glob("*.snapshot")):
        path.unlink()
    data, end = segment(codec, value_bytes)
    (log / f"{0:020d}.log").write_bytes(data)
    (log / f"{end:020d}.log").write_bytes(batch(end, [b"v"], NOW_MS))
    (directory / "logs" / "replication-offset-checkpoint").write_text(f"0\n1\ntopic-00000 0 {end + 1}\n")
    store = KafkaStore(OpenNode(properties))
    segments = store.archivable(store.snapshot(NOW_MS)).segments
    (job,) = segment_jobs(
        lake,
        segments,
        store_id="bench",
        lineage=0,
        broker="kafka",
        store_root=str(properties),
        contexts=store.replicas.contexts(segments),
    )
    return job


def compare(name: str, value_bytes: int, directory: Path) -> Bench:
    """Measure segments of a codec with values of one size."""
    lake = make_lake(LakeConfig.local(directory / "lake"), "kafka")
    job = job_of(lake, directory / "node", CODECS[name], value_bytes)
    data = memoryview(Path(job.path).read_bytes())
    columns = [rows for rows, _ in CODEC.decode(data, job.base_offset, context=job.context.codec)]
    target = directory / "plain.parquet"

    def archive() -> None:
        Path(archive_segment(job).staged_file.removeprefix("file://")).unlink()

    def write() -> None:
        with pq.ParquetWriter(target, columns[0].schema, compression="zstd", compression_level=1) as writer:
            for rows in columns:
                writer.write_table(rows)

    spent = in_turns({"archive": archive, "peer": write})
    ours, peer = spent["archive"], spent["peer"]
    detail = {
        "archive_processor_seconds": ours.processor,
        "peer_processor_seconds": peer.processor,
        "ratio_of_wall_time": peer.wall / ours.wall,
        "segment_mib": round(len(data) / (1 << 20), 1),
        "records": sum(rows.num_rows for rows in columns),
    }
    return Bench(f"kafka-archive-{value_bytes}-{name}", peer.processor / ours.processor, MUST[name], detail)


def run() -> list[Bench]:
    benches = []
    for value_bytes, name in product(VALUE_BYTES, CODECS):
        with tempfile.TemporaryDirectory() as work:
            benches.append(compare(name, value_bytes, Path(work)))
    return benches


if __name__ == "__main__":
    report(run())
