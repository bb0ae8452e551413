"""Fixture stores that a real broker wrote, with what the broker's own classes read from them."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FIXTURES = Path(__file__).parent / "fixtures" / "rocketmq"

StoreCopy = Callable[[str], Path]
GroundTruth = Callable[[str, str], Any]


@pytest.fixture
def store_copy(tmp_path: Path) -> StoreCopy:
    """Unpack a fixture store; returns its root. Each call makes a fresh, writable copy."""

    def unpack(name: str) -> Path:
        target = tmp_path / "stores" / f"{name}-{len(list(tmp_path.glob('stores/*')))}"
        target.mkdir(parents=True)
        with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
            archive.extractall(target, filter="data")
        (root,) = target.iterdir()
        return root

    return unpack


@pytest.fixture(scope="session")
def ground_truth() -> GroundTruth:
    """Read what the broker's own classes say of a fixture store."""

    def read(name: str, kind: str) -> Any:
        if kind == "checkpoint":
            return json.loads((FIXTURES / f"{name}.checkpoint.json").read_text())
        with gzip.open(FIXTURES / f"{name}.{kind}.jsonl.gz", "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    return read
