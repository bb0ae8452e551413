"""A small disk of its own, for what has to work when not a byte more can be written."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[None]:
    """Mount an empty disk of so many bytes on a directory until the block ends."""
    made = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
    if subprocess.run(made, check=False).returncode:
        pytest.skip("no mounts are allowed here, so no disk can be filled")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(path: Path) -> Path:
    """Write a file into a directory until its disk is full."""
    filler = path / "filler"
    with filler.open("wb", buffering=0) as file:
        for block in (bytes(1 << 20), bytes(1)):
            try:
                while True:
                    file.write(block)
            except OSError:
                os.fsync(file.fileno())
    return filler
