"""Compiles the codec's kernels once, beside the workers of a test run, which would each do it otherwise."""

from __future__ import annotations

import tarfile
from pathlib import Path

from storage_engine.kafka.codec.codec import CODEC as KAFKA
from storage_engine.model.broker.codec import SegmentCodec
from storage_engine.rocketmq.codec.codec import CODEC as ROCKETMQ
from tests import fixture_stores, kafka_fixture


def compile_kernels() -> None:
    """Decode and encode real segments; the machine code stays on disk for every later process."""
    _run(ROCKETMQ, fixture_stores.FIXTURES, f"A/commitlog/{0:020d}")
    _run(KAFKA, kafka_fixture.FIXTURES, f"./logs/txn-0/{0:020d}.log")


def _run(codec: SegmentCodec, fixtures: Path, segment: str) -> None:
    with tarfile.open(fixtures / "clean-stop.tar.xz") as archive:
        content = archive.extractfile(segment)
        assert content is not None
        data = content.read()
    for rows, _ in codec.decode(memoryview(data), 0):
        codec.encode(rows, memoryview(bytearray(len(data))), 0)


if __name__ == "__main__":
    compile_kernels()
