"""Nothing that is kept of a store lies on a disk of its running broker, unless that is allowed by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.model.broker.live import LiveBroker
from storage_engine.retention.store.context import check_disks
from storage_engine.retention.store.managed_store import ManagedStore

ELSEWHERE = Path("/proc")
"""Another file system than any that tests write to."""


def _store(directory: Path, **settings: object) -> ManagedStore:
    return ManagedStore.local("s", "/store", directory, live=LiveBroker(**settings))  # type: ignore[arg-type]


def test_every_place_on_the_brokers_disk_is_named_and_nothing_is_made(tmp_path: Path) -> None:
    kept = tmp_path / "not" / "there"
    with pytest.raises(BadInputError) as refused:
        check_disks(_store(kept), (tmp_path,), {"Spark's local directory": kept / "spark"})
    for what, path in {
        "lake warehouse": kept / "lake" / "warehouse",
        "lake catalog": kept / "lake" / "catalog.db",
        "journal": kept / "journal.db",
        "reports": kept / "reports",
        "Spark's local directory": kept / "spark",
    }.items():
        assert f"{what} ({path}) with {tmp_path}" in str(refused.value)
    assert "--allow-same-disk" in str(refused.value)
    assert not kept.parent.exists()


def test_a_second_lake_counts_too(tmp_path: Path) -> None:
    store = replace(_store(Path("/sys")), second_lake=LakeConfig.local(tmp_path))
    with pytest.raises(BadInputError, match=r"second lake warehouse .* with "):
        check_disks(store, (tmp_path,))


def test_other_disks_are_taken(tmp_path: Path) -> None:
    check_disks(_store(tmp_path), (ELSEWHERE,))


def test_what_lies_in_no_file_of_ours_is_on_no_disk_of_the_broker(tmp_path: Path) -> None:
    remote = LakeConfig("l", {"type": "rest", "uri": "http://catalog:8181", "warehouse": "s3://lake"})
    store = replace(
        _store(tmp_path), lake=remote, journal_url="postgresql+psycopg://db/journal", report_dir="/proc/r"
    )
    check_disks(store, (tmp_path,))


def test_a_shared_disk_may_be_allowed_by_name(tmp_path: Path) -> None:
    check_disks(_store(tmp_path, allow_same_disk=True), (tmp_path,))


def test_beside_a_stopped_broker_any_disk_will_do(tmp_path: Path) -> None:
    check_disks(replace(_store(tmp_path), live=None), (tmp_path,))
