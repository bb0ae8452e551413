"""Compiles the codec's kernels once, beside the workers of a test run, which would each do it otherwise."""

from __future__ import annotations

import tarfile

from storage_engine.rocketmq.codec import CODEC
from tests.fixture_stores import FIXTURES


def compile_kernels() -> None:
    """Decode and encode a real segment; the machine code stays on disk for every later process."""
    with tarfile.open(FIXTURES / "clean-stop.tar.xz") as archive:
        segment = archive.extractfile(f"A/commitlog/{0:020d}")
        assert segment is not None
        data = segment.read()
    for rows, _ in CODEC.decode(memoryview(data), 0):
        CODEC.encode(rows, memoryview(bytearray(len(data))), 0)


if __name__ == "__main__":
    compile_kernels()
