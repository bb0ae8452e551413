"""A shield on a disk that is full: what a lake takes is archived, and only what none takes is given up."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.model.report.validation import Where
from storage_engine.retention import shield
from storage_engine.retention.monitor.store_watch import read_links
from storage_engine.retention.shield import give_up, tend_shield
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.shield.index import look_at_shield, shield_path
from storage_engine.shield.links import drop_links
from tests.fixture_stores import file_sha256
from tests.full_disks import fill, small_disk
from tests.retention.shielded_stores import (
    ON,
    Managed,
    archived_sha256,
    segments,
    shielded,
    where,
    where_detail,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def store(managed: Managed) -> ManagedStore:
    return shielded(managed)


def test_on_a_disk_that_is_too_full_the_oldest_is_given_up_and_the_journal_says_so(
    store: ManagedStore, tmp_path: Path
) -> None:
    for path in segments(store)[:2]:
        path.unlink()
    lake = tmp_path / "managed" / "lake"
    lake.rename(lake.with_name("away"))
    full = replace(store, policy=replace(ON, shield_give_up_percent=0))
    assert [tend_shield(full).given_up for _ in range(3)] == [(0,), (1 << 20,), ()]
    lake.with_name("away").rename(lake)
    assert where(store)[0] is Where.LOST
    assert "given up for space" in where_detail(store)


@pytest.fixture
def full(store: ManagedStore, tmp_path: Path) -> Iterator[ManagedStore]:
    """The store with its shield on a disk that is full."""
    root, aside = Path(store.root), tmp_path / "aside"
    shutil.copytree(root, aside)
    shutil.rmtree(shield_path(aside))
    size_bytes = sum(path.stat().st_size for path in aside.rglob("*"))
    with small_disk(root, size_bytes + (4 << 20)):
        shutil.copytree(aside, root, dirs_exist_ok=True)
        assert tend_shield(store).links == len(segments(store))
        fill(root)
        yield store


def test_on_a_full_disk_what_is_gone_is_archived_and_its_space_comes_back(full: ManagedStore) -> None:
    first = segments(full)[0]
    sha256 = file_sha256(first)
    first.unlink()
    assert tend_shield(full).archived == (0,)
    assert archived_sha256(full) == {0: sha256}
    assert not look_at_shield(full.root).gone


def test_on_a_full_disk_a_segment_that_can_not_be_linked_keeps_nobody_from_the_others(
    full: ManagedStore,
) -> None:
    first, second, *_ = segments(full)
    drop_links(full.root, [seen.link.name for seen in look_at_shield(full.root).links[1:2]])
    first.unlink()
    result = tend_shield(full)
    assert result.archived == (0,)
    assert any("not all that is unproven could be linked" in notice for notice in result.notices)
    assert second.exists()
    assert tend_shield(full).links == len(segments(full))


def test_on_a_full_disk_digests_are_read_and_recorded_later(full: ManagedStore) -> None:
    assert read_links(full, lambda: False) == len(segments(full))
    assert not any(seen.link.sha256 for seen in look_at_shield(full.root).links)
    (Path(full.root) / "filler").unlink()
    assert read_links(full, lambda: False) == len(segments(full))
    assert all(seen.link.sha256 for seen in look_at_shield(full.root).links)


def test_on_a_full_disk_what_no_lake_takes_is_given_up(full: ManagedStore, tmp_path: Path) -> None:
    segments(full)[0].unlink()
    (tmp_path / "managed" / "lake").rename(tmp_path / "away")
    given_up = replace(full, policy=replace(ON, shield_give_up_percent=95))
    assert tend_shield(given_up).given_up == (0,)
    assert not look_at_shield(full.root).gone


def test_nothing_is_given_up_that_a_lake_takes(store: ManagedStore) -> None:
    segments(store)[0].unlink()
    result = tend_shield(replace(store, policy=replace(ON, shield_give_up_percent=0)))
    assert (result.archived, result.given_up) == ((0,), ())


def test_what_went_since_it_was_archived_from_is_tried_before_it_is_given_up(
    store: ManagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*args: Any) -> tuple[int, ...]:
        for path in segments(store)[:1]:
            path.unlink()
        return give_up(*args)

    full = replace(store, policy=replace(ON, shield_give_up_percent=0))
    with monkeypatch.context() as patched:
        patched.setattr(shield, "give_up", late)
        result = tend_shield(full)
    assert (result.gone, result.given_up) == ((0,), ())
    assert tend_shield(full).archived == (0,)
