"""Segments of a shield that were touched, written to or written again: what is archived, and as what."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import GateRefusedError
from storage_engine.journal.journal import Journal
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.model.hold import ShieldNeed
from storage_engine.model.plan import PlanRequest
from storage_engine.model.report.validation import Where
from storage_engine.retention import steps
from storage_engine.retention.decisions import adopt
from storage_engine.retention.hold.holding import remove_shield_of
from storage_engine.retention.monitor.store_watch import read_links
from storage_engine.retention.ranges.deleted_ranges import AcceptedLoss, record_loss
from storage_engine.retention.shield import tend_shield
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.store.broker import FileShield
from storage_engine.same_bytes.own_acts import own_acts
from storage_engine.shield.index import SeenLink, look_at_shield, shield_path
from tests.clones import as_clone
from tests.fixture_stores import file_sha256
from tests.retention.shielded_stores import Managed, archived_sha256, segments, shielded, where, where_detail
from tests.rounds import later

pytestmark = pytest.mark.slow


@pytest.fixture
def store(managed: Managed) -> ManagedStore:
    return shielded(managed)


def test_what_somebody_wrote_to_is_kept_and_not_archived(store: ManagedStore) -> None:
    first = segments(store)[0]
    with first.open("r+b") as file:
        file.write(b"other bytes")
    first.unlink()
    result = tend_shield(store)
    assert (result.archived, result.gone) == ((), (0,))
    assert any("another program wrote to it or touched it" in notice for notice in result.notices)
    assert where(store)[0] is Where.LOST
    assert where_detail(store).startswith(str(shield_path(store.root)))


def test_what_was_only_touched_is_told_by_its_digest(store: ManagedStore) -> None:
    first = segments(store)[0]
    sha256 = file_sha256(first)
    assert read_links(store, lambda: False) == len(segments(store))
    os.utime(first)
    first.unlink()
    assert where(store)[0] is Where.SHIELDED
    assert tend_shield(store).archived == (0,)
    assert archived_sha256(store)[0] == sha256


def test_a_touch_by_a_hold_is_our_own(store: ManagedStore) -> None:
    first = segments(store)[0]
    with own_acts(store.root) as acts, acts.on(first, mtime_ns=10**18):
        os.utime(first, ns=(10**18, 10**18))
    first.unlink()
    assert tend_shield(store).archived == (0,)


def write_unseen(store: ManagedStore, path: Path) -> None:
    """Write to a segment, and have its mtime set back as a fence is mended."""
    before_ns = path.stat().st_mtime_ns
    with path.open("r+b") as file:
        file.seek(-3, os.SEEK_END)  # where the log has blanks, so that it decodes as before
        file.write(b"abc")
    with own_acts(store.root) as acts, acts.on(path, mtime_ns=before_ns):
        os.utime(path, ns=(before_ns, before_ns))


def test_what_was_written_to_before_its_fence_was_mended_is_kept_and_named(store: ManagedStore) -> None:
    first = segments(store)[0]
    read_links(store, lambda: False)
    write_unseen(store, first)
    first.unlink()
    for _ in range(2):
        result = tend_shield(store)
        assert result.gone == (0,)
        assert any("expected SHA-256" in notice for notice in result.notices)


@pytest.mark.again
def test_a_link_of_what_is_in_the_lake_is_read_before_it_goes(store: ManagedStore) -> None:
    first = segments(store)[0]
    read_links(store, lambda: False)
    steps.archive_sealed(store, "r", lambda jobs: steps.archive(store, "r", jobs), budget_bytes=1)
    write_unseen(store, first)
    first.unlink()
    for _ in range(2):
        result = tend_shield(store)
        assert result.gone == (0,)
        assert any("expected SHA-256" in notice for notice in result.notices)


def write_again(path: Path) -> str:
    """Put another file in a segment's place, as a broker does that has recovered; return its SHA-256."""
    content = bytearray(path.read_bytes())
    content[-3:] = b"abc"  # where the log has blanks, so that it decodes as before
    path.unlink()
    path.write_bytes(content)
    make_old(path)
    return file_sha256(path)


def make_old(path: Path) -> None:
    old_ns = clock_ms() * 10**6 - 100 * 3600 * 10**9
    os.utime(path, ns=(old_ns, old_ns))


def archived_lineages(store: ManagedStore) -> dict[tuple[int, int], str]:
    record = Journal(store.journal_url).find_store(store.real_root)
    assert record is not None
    rows = receipts(open_lake(store.lake), record.store_id)
    return {(row.lineage, row.base_offset): row.sha256 for row in rows}


@pytest.mark.again
@pytest.mark.parametrize("adopted_before", [False, *later(True)])
def test_what_the_broker_wrote_again_is_archived_under_the_lineage_it_was_of(
    store: ManagedStore, adopted_before: bool
) -> None:
    first = segments(store)[0]
    linked = file_sha256(first)
    written = write_again(first)
    if adopted_before:
        adopt(store, "ann", "the broker recovered", force=True)
    result = tend_shield(store)
    assert result.archived == (0,)
    if not adopted_before:
        # The log's file contradicts what is archived now, which is what a person is asked about.
        adopt(store, "ann", "the broker recovered")
    steps.archive_sealed(store, "r", lambda jobs: steps.archive(store, "r", jobs), budget_bytes=1)
    assert archived_lineages(store) == {(1, 0): linked, (2, 0): written}
    assert remove_shield_of(store) == ()
    assert not shield_path(store.root).exists()


def test_what_contradicts_its_lineage_keeps_nobody_and_a_person_can_take_it_out(
    store: ManagedStore, tmp_path: Path
) -> None:
    first, second, *_ = segments(store)
    write_again(first)
    steps.archive_sealed(store, "r", lambda jobs: steps.archive(store, "r", jobs), budget_bytes=1)
    adopt(store, "ann", "the broker recovered", force=True)
    (seen,) = look_at_shield(store.root).left_log
    second.unlink()
    result = tend_shield(store)
    assert (result.archived, result.gone) == ((int(second.name),), (0,))
    assert any(
        seen.facts.path in said and "moved it out of the shield (mv)" in said for said in result.notices
    )
    assert any("in the shield and not in the lake yet" in said for said in result.notices)
    with pytest.raises(GateRefusedError, match=r"at offset 0\..*or move their files out of"):
        remove_shield_of(store)
    Path(seen.facts.path).rename(tmp_path / "taken")
    assert remove_shield_of(store) == ()
    assert not shield_path(store.root).exists()


def test_what_was_accepted_as_lost_before_an_adoption_keeps_no_shield(
    store: ManagedStore,
) -> None:
    first = segments(store)[0]
    with first.open("r+b") as file:
        file.write(b"other bytes")
    first.unlink()
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root)
    assert record is not None
    loss = AcceptedLoss("commitlog", record.lineage, 0, 1 << 20, "ann", "not worth it")
    record_loss(journal, journal.begin_run(record.store_id, "losses", PlanRequest()), loss)
    adopt(store, "ann", "the broker recovered", force=True)
    assert remove_shield_of(store) == ()
    assert not shield_path(store.root).exists()


def test_a_file_of_another_inode_is_another_stores(store: ManagedStore) -> None:
    (first, *_) = look_at_shield(store.root).links
    copy = Path(first.facts.path).with_name("copy")
    shutil.copy2(first.facts.path, copy)
    copy.rename(first.facts.path)
    segments(store)[0].unlink()
    result = tend_shield(store)
    assert result.archived == ()
    assert any(first.facts.path in notice and "of another store" in notice for notice in result.notices)


def test_a_clone_of_what_was_only_touched_in_the_log_keeps_no_shield(store: ManagedStore) -> None:
    as_clone(store.root, 0)
    os.utime(segments(store)[0])
    assert remove_shield_of(store) == ()
    assert not shield_path(store.root).exists()


def test_a_clone_of_what_was_written_to_in_the_log_is_refused_with_advice_that_works(
    store: ManagedStore, tmp_path: Path
) -> None:
    clone = as_clone(store.root, 0)
    with segments(store)[0].open("r+b") as file:
        file.write(b"other bytes")
    with pytest.raises(
        GateRefusedError, match=r"1 segment that others wrote to later, at offset 0\."
    ) as refused:
        remove_shield_of(store)
    assert "accept" not in str(refused.value)
    assert clone.exists()
    clone.rename(tmp_path / "taken")
    assert remove_shield_of(store) == ()
    assert not shield_path(store.root).exists()


def test_a_clone_that_has_what_the_log_has_no_more_is_counted_as_used_room(
    store: ManagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_clone(store.root, 0)
    with segments(store)[0].open("r+b") as file:
        file.write(b"other bytes")
    counted: list[int] = []

    def room(links: Iterable[SeenLink], need: ShieldNeed) -> int | None:
        counted.append(sum(seen.link.segment.size_bytes for seen in links))
        return None

    size = segments(store)[0].stat().st_size
    need = ShieldNeed(batch_segments=10, pass_interval_ms=10_000, disk_bytes=100 * size, used_percent=50)
    monkeypatch.setattr(FileShield, "need", lambda broker: need)
    monkeypatch.setattr("storage_engine.shield.index.room_bytes", room)
    tend_shield(store, tends=True)
    assert counted == [size]
