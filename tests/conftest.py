"""Fixture stores that a real broker wrote, with what the broker's own classes read from them."""

from __future__ import annotations

import gzip
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.released import Released, released_package

FIXTURES = Path(__file__).parent / "fixtures" / "rocketmq"

StoreCopy = Callable[[str], Path]
GroundTruth = Callable[[str, str], Any]


@pytest.fixture(scope="session")
def _unpacked_stores() -> dict[str, Path]:
    return {}


@pytest.fixture
def store_copy(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, _unpacked_stores: dict[str, Path]
) -> StoreCopy:
    """Unpack a fixture store; returns its root. Each call makes a fresh, writable copy."""

    def copy(name: str) -> Path:
        if name not in _unpacked_stores:
            original = tmp_path_factory.mktemp(f"original-{name}")
            with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
                archive.extractall(original, filter="data")
            (_unpacked_stores[name],) = original.iterdir()
        source = _unpacked_stores[name]
        target = tmp_path / "stores" / f"{name}-{len(list(tmp_path.glob('stores/*')))}" / source.name
        shutil.copytree(source, target)
        return target

    return copy


@pytest.fixture(scope="session")
def ground_truth() -> GroundTruth:
    """Read what the broker's own classes say of a fixture store."""

    def read(name: str, kind: str) -> Any:
        if kind == "checkpoint":
            return json.loads((FIXTURES / f"{name}.checkpoint.json").read_text())
        with gzip.open(FIXTURES / f"{name}.{kind}.jsonl.gz", "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    return read


@pytest.fixture(scope="session")
def released(pytestconfig: pytest.Config) -> Iterator[Released]:
    """The package whose lakes have no UUID and whose receipts have absolute names."""
    assert pytestconfig.cache is not None
    with released_package("before-lake-uuid", pytestconfig.cache.mkdir("releases")) as package:
        yield package
