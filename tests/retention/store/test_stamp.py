"""A store's stamp tells a copy, another store and an older lake, and is no condition of archiving."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.core.durable import DIRECTORY
from storage_engine.core.host import this_host
from storage_engine.exceptions import (
    BadInputError,
    GateRefusedError,
    LakeMissingError,
    LakeUnavailableError,
    StoreIdentityError,
)
from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.identity import lake_id_of
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.chain import row_hash
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.model.plan import PlanRequest
from storage_engine.model.proof.deleted_range import RunDigest
from storage_engine.model.proof.receipt import LakeHead
from storage_engine.model.report.validation import VerifyLevel
from storage_engine.model.store import Lineages
from storage_engine.retention import steps
from storage_engine.retention.archive import archiving
from storage_engine.retention.decisions import adopt, move, stamp
from storage_engine.retention.proof.proofs import reachable_lakes
from storage_engine.retention.ranges.verification import verify_lake, verify_store
from storage_engine.retention.store.identity import identify
from storage_engine.retention.store.known_heads import known_heads
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import read_stamp, stamp_path, update_stamp
from tests.other_engine import change_rows
from tests.retention.stamped_stores import clean, plan_and_archive

pytestmark = pytest.mark.slow

Make = Callable[..., ManagedStore]
FingerprintOf = Callable[[str | Path], dict[str, str]]
MIB = 1 << 20


def journal_file(store: ManagedStore) -> Path:
    return Path(store.journal_url.removeprefix("sqlite:///"))


def identity(store: ManagedStore) -> str:
    return identify(store, Journal(store.journal_url)).store_id


def test_the_stamp_says_in_plain_json_which_store_it_is_and_what_the_lake_has(managed: Make) -> None:
    store = managed()
    clean(store, "r", 2)
    found = read_stamp(store.real_root)
    assert found is not None
    lake = open_lake(store.lake)
    (head,) = found.lakes
    assert (found.store_id, found.root) == (identity(store), store.real_root)
    assert (head.lake_id, head.location) == (lake_id_of(lake.segments()), store.lake.location)
    assert head.row_hash == max(receipts(lake, found.store_id), key=lambda row: row.sequence).row_hash
    assert stamp_path(store.real_root).parent.stat().st_mode & 0o777 == 0o755
    text = json.loads(stamp_path(store.real_root).read_text())
    assert set(text) == {"store_id", "lineage", "machine", "root", "lakes"}
    update_stamp(store.real_root, found.store_id, Lineages(2), ())
    again = update_stamp(store.real_root, found.store_id, Lineages(1, {"commitlog": 3}), ())
    assert again.lineages == Lineages(2, {"commitlog": 3}), "a lineage never goes back"
    assert again == read_stamp(store.real_root)


def test_a_stamp_behind_a_symbolic_link_is_nobody_s(managed: Make, tmp_path: Path) -> None:
    """Whoever may write the store could show us another one's stamp by it."""
    store = managed()
    clean(store, "r")
    own = stamp_path(store.real_root).parent
    own.rename(tmp_path / "elsewhere")
    own.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreIdentityError, match="found a symbolic link, which is never followed"):
        read_stamp(store.real_root)
    with pytest.raises(StoreIdentityError, match="symbolic link"):
        plan_and_archive(store, "r2")
    own.unlink()
    (tmp_path / "elsewhere").rename(own)
    assert read_stamp(store.real_root) is not None
    clean(store, "r3")


def test_a_lake_and_a_journal_of_one_run_earlier_take_nothing_until_a_person_says_they_are_all_there_is(
    managed: Make, lake_dir: Path, fingerprint: FingerprintOf
) -> None:
    store = managed()
    clean(store, "one")
    shutil.copytree(lake_dir.parent, lake_dir.parent.with_name("backup"))
    clean(store, "two")
    shutil.rmtree(lake_dir.parent)
    lake_dir.parent.with_name("backup").rename(lake_dir.parent)

    before = fingerprint(store.root), fingerprint(lake_dir)
    with pytest.raises(LakeUnavailableError, match=r"from an older copy.*storage-engine lake rebuild"):
        plan_and_archive(store, "three")
    with pytest.raises(LakeUnavailableError, match="lake rebuild"):
        steps.release(store, "three")
    with pytest.raises(LakeUnavailableError, match="lake rebuild"):
        verify_store(store, VerifyLevel.RECEIPTS)
    with pytest.raises(LakeUnavailableError, match="lake rebuild"):
        steps.accept_loss(store, MIB, 2 * MIB, "ann", "seems lost")
    assert (fingerprint(store.root), fingerprint(lake_dir)) == before
    with pytest.raises(BadInputError, match="a person and a reason"):
        stamp(store, "ann", " ")
    stamp(store, "ann", "the newer lake burned")
    assert clean(store, "four").deleted[0].base_offset == 2 * MIB


@pytest.mark.again
def test_another_lake_in_the_place_of_the_known_one_is_named(
    managed: Make, lake_dir: Path, fingerprint: FingerprintOf
) -> None:
    store = managed()
    clean(store, "one")
    away = lake_dir.rename(lake_dir.with_name("away"))
    make_lake(store.lake)
    before = fingerprint(store.root), fingerprint(lake_dir)
    with pytest.raises(LakeUnavailableError, match=r"found lake .* in its place.*Mount the right disk"):
        plan_and_archive(store, "two")
    assert (fingerprint(store.root), fingerprint(lake_dir)) == before
    # Even where the journal is gone with the disk that it lay on.
    journal_file(store).unlink()
    with pytest.raises(LakeUnavailableError, match=r"found lake .* in its place"):
        plan_and_archive(store, "three")
    shutil.rmtree(lake_dir)
    away.rename(lake_dir)
    assert clean(store, "four").deleted[0].base_offset == MIB


def test_a_lost_journal_is_made_up_for_by_the_stamp_before_anything_is_asked(managed: Make) -> None:
    store = managed()
    clean(store, "one")
    adopt(store, "ann", "test", force=True)
    plan_and_archive(store, "two")
    known = identify(store, Journal(store.journal_url))
    journal_file(store).unlink()
    again = identify(store, Journal(store.journal_url))
    assert (again.store_id, again.lineage) == (known.store_id, 2)


def test_a_copy_of_a_store_is_no_store_until_a_person_makes_it_one(
    managed: Make, fingerprint: FingerprintOf
) -> None:
    store = managed()
    clean(store, "one")
    shutil.copytree(store.root, f"{store.root}-copy")
    copy = replace(store, root=f"{store.root}-copy")
    before = fingerprint(copy.root)
    with pytest.raises(StoreIdentityError, match=rf"found a copy of store .*{store.root}\. Nothing"):
        plan_and_archive(copy, "copy")
    written = stamp_path(copy.root).read_bytes()
    with pytest.raises(StoreIdentityError, match=rf"found a copy of store .*{store.root}\. Nothing"):
        stamp(copy, "ann", "by mistake: the store is where it was")
    assert stamp_path(copy.root).read_bytes() == written
    assert fingerprint(copy.root) == before
    shutil.move(stamp_path(copy.root).parent, f"{copy.root}-stamp")
    with pytest.raises(StoreIdentityError, match="found a copy of store"):
        stamp(copy, "ann", "by mistake", store_id=identity(store))
    assert Journal(store.journal_url).find_store(copy.real_root) is None
    shutil.move(f"{copy.root}-stamp", stamp_path(copy.root).parent)
    with pytest.raises(StoreIdentityError, match=f"found 'clean-stop', the name of store {identity(store)}"):
        stamp(copy, "ann", "a copy for tests", new=True)
    copy = replace(copy, name="copy")
    made = stamp(copy, "ann", "a copy for tests", new=True)
    assert made.store_id != identity(store)
    assert clean(copy, "copy").deleted[0].base_offset == MIB
    assert clean(store, "two").deleted[0].base_offset == MIB


@pytest.mark.again
def test_a_store_whose_record_follows_a_copy_is_named_and_comes_back(managed: Make) -> None:
    store = managed()
    clean(store, "one")
    store_id = identity(store)
    shutil.copytree(store.root, f"{store.root}-copy")
    copy = replace(store, root=f"{store.root}-copy")
    Journal(store.journal_url).move_store(store_id, copy.real_root)
    with pytest.raises(StoreIdentityError, match=rf"where the journal knows it, at {copy.real_root} on"):
        plan_and_archive(store, "two")
    move(store, "orders", "ann", "the record is the copy's")
    assert clean(store, "two").deleted[0].base_offset == MIB
    assert stamp(copy, "ann", "a copy for tests", new=True).store_id != store_id


def test_a_place_of_another_store_is_refused_by_the_journal(managed: Make) -> None:
    store, other = managed(), managed("edge-frames")
    journal = Journal(store.journal_url)
    identity(other)
    with pytest.raises(StoreIdentityError, match="expected a place without a store in the journal"):
        journal.move_store(identity(store), other.real_root)
    assert journal.find_store(store.real_root) is not None


def test_a_store_that_was_moved_keeps_its_identity_when_a_person_says_so_and_its_lakes_are_there(
    managed: Make, lake_dir: Path
) -> None:
    store = managed()
    clean(store, "one")
    store_id = identity(store)
    moved = replace(store, root=str(Path(store.root).rename(f"{store.root}-moved")))
    with pytest.raises(StoreIdentityError, match="it was moved, or is a copy"):
        plan_and_archive(moved, "two")
    lake_dir.rename(lake_dir.with_name("unmounted"))
    with pytest.raises(LakeMissingError):
        stamp(moved, "ann", "a new disk")
    assert Journal(store.journal_url).find_store(moved.real_root) is None
    lake_dir.with_name("unmounted").rename(lake_dir)
    stamp(moved, "ann", "a new disk")
    assert identity(moved) == store_id
    assert clean(moved, "two").deleted[0].base_offset == MIB


def test_stamping_keeps_what_is_known_of_lakes_that_it_does_not_ask(managed: Make) -> None:
    store = managed()
    clean(store, "one")
    journal = Journal(store.journal_url)
    record = identify(store, journal)
    stamped = LakeHead("stamped-lake", "file:///stamped", 4, "a")
    journalled = LakeHead("journalled-lake", "file:///journalled", 5, "b")
    update_stamp(store.real_root, record.store_id, Lineages(1), [stamped])
    payload = {
        "lake_id": journalled.lake_id,
        "lake": journalled.location,
        "receipt_sequence": journalled.sequence,
        "receipt_hash": journalled.row_hash,
    }
    journal.record(journal.run(record.store_id, "one"), Step.SEALED, Phase.RESULT, [("s", payload)])
    asked_id = lake_id_of(open_lake(store.lake).segments())
    written = stamp(store, "ann", "the first lake was put back")
    assert {head.lake_id for head in written.lakes} == {asked_id, "stamped-lake", "journalled-lake"}
    assert set(stamp(store, "ann", "once more").lakes) == set(written.lakes)
    stamp_path(store.real_root).unlink()
    assert {stamped, journalled} < set(known_heads(journal, record).heads)


@pytest.mark.again
def test_a_store_that_was_moved_and_stamped_with_another_journal_is_named_to_the_first(
    managed: Make, tmp_path: Path
) -> None:
    store = managed()
    clean(store, "one")
    Path(store.root).rename(tmp_path / "moved")
    moved = replace(store, root=str(tmp_path / "moved"))
    stamp(replace(moved, journal_url=f"sqlite:///{tmp_path}/other.db"), "ann", "a larger disk")
    with pytest.raises(StoreIdentityError, match=r"where the journal knows it.*run storage-engine move"):
        clean(moved, "two")
    move(moved, "orders", "ann", "a larger disk")
    assert clean(moved, "two").deleted[0].base_offset == MIB


def test_another_store_at_a_known_place_is_refused(managed: Make, fingerprint: FingerprintOf) -> None:
    store, other = managed(), managed("edge-frames")
    clean(store, "one")
    Path(store.root).rename(f"{store.root}-away")
    Path(other.root).rename(store.root)
    before = fingerprint(store.root)
    with pytest.raises(StoreIdentityError, match=r"found no stamp: another store is here"):
        plan_and_archive(store, "two")
    assert fingerprint(store.root) == before


def test_a_stamp_that_was_removed_or_damaged_is_missed_and_written_again(managed: Make) -> None:
    store = managed()
    clean(store, "one")
    path = stamp_path(store.real_root)
    path.write_text("{")
    with pytest.raises(StoreIdentityError, match=r"stamp\.json: expected the stamp of storage-engine"):
        plan_and_archive(store, "two")
    path.unlink()
    with pytest.raises(StoreIdentityError, match="or the stamp was removed"):
        plan_and_archive(store, "two")
    stamp(store, "ann", "rm by mistake")
    assert clean(store, "two").deleted[0].base_offset == MIB


def test_a_store_that_cannot_be_stamped_is_released_only_where_the_journal_knows_the_lake(
    managed: Make,
) -> None:
    store = managed()
    # A file in the place of our directory: nothing can be written there, whoever asks.
    Path(store.root, DIRECTORY).touch()
    done = clean(store, "one")
    assert [d.base_offset for d in done.deleted] == [0]
    (missing,) = [notice for notice in done.notices if "could not be stamped" in notice]
    assert missing.endswith("journal and catalog agree on the last receipt")

    (said,) = plan_and_archive(store, "two").notices
    assert "could not be stamped" in said
    journal_file(store).unlink()
    steps.make_plan(store, "three", PlanRequest(manual=True, max_segments=1))
    with pytest.raises(GateRefusedError, match=r"could not be stamped.*expected a witness"):
        steps.release(store, "three")


def test_a_journal_from_before_an_adoption_follows_the_stamp(managed: Make) -> None:
    store = managed()
    clean(store, "one")
    shutil.copy(journal_file(store), journal_file(store).with_suffix(".bak"))
    adopt(store, "ann", "the broker recovered", force=True)
    journal_file(store).with_suffix(".bak").rename(journal_file(store))
    assert identify(store, Journal(store.journal_url)).lineage == 2


def test_a_store_of_another_machine_at_the_same_path_gets_an_identity_of_its_own(
    managed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = managed()
    monkeypatch.setattr(archiving, "this_host", lambda: "another machine")
    clean(store, "one")
    theirs = identity(store)
    journal_file(store).unlink()
    shutil.rmtree(Path(store.root, DIRECTORY))
    with pytest.raises(StoreIdentityError, match="give it a name of its own"):
        identity(store)
    assert identity(replace(store, name="ours")) != theirs


def test_who_verifies_a_lake_by_itself_asks_the_journal_what_it_had(managed: Make) -> None:
    store = managed()
    plan_and_archive(store, "one", 2)
    lake = open_lake(store.lake)

    def change(row: dict[str, Any]) -> dict[str, Any]:
        other = row | {"message_count": row["message_count"] + 1}
        return row if row["sequence"] == 0 else other | {"row_hash": row_hash(other)}

    change_rows(lake, change)
    (found,) = verify_lake(store.lake, store.journal_url, VerifyLevel.RECEIPTS)
    (finding,) = found.findings
    assert "which journal or stamp recorded" in finding.detail
    (found,) = verify_lake(store.lake, f"{store.journal_url}.another", VerifyLevel.RECEIPTS)
    assert found.findings == ()


def test_one_lake_named_twice_is_no_second_lake(managed: Make, lake_dir: Path) -> None:
    store = managed()
    with pytest.raises(BadInputError, match="found the same"):
        replace(store, second_lake=store.lake)
    twice = replace(store, second_lake=store.lake.with_properties({"a": "no difference"}))
    done = plan_and_archive(twice, "one")
    assert [row.base_offset for row in done.receipts] == [0]
    steps.release(twice, "one")
    lakes, unreachable = reachable_lakes(twice)
    assert (len(lakes), ["twice" in why for why in unreachable.values()]) == (1, [True])


@pytest.mark.again
def test_a_new_lake_in_another_namespace_of_the_warehouse_is_another_place(managed: Make) -> None:
    store = managed()
    clean(store, "one")
    other = replace(store, lake=replace(store.lake, namespace="other"))
    make_lake(other.lake)
    assert clean(other, "two").deleted[0].base_offset == MIB


def test_what_a_stamp_of_this_machine_names_is_no_store_of_its_own(
    managed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = managed()
    clean(store, "one")
    written = stamp_path(store.root).read_bytes()
    Path(store.journal_url.removeprefix("sqlite:///")).unlink()
    with pytest.raises(StoreIdentityError, match="the same files would be two stores"):
        stamp(store, "ann", "the journal is lost", new=True)
    assert stamp_path(store.root).read_bytes() == written
    # A disk of another machine may be a copy of that machine's.
    stamp_path(store.root).write_bytes(written.replace(this_host().encode(), b"another machine"))
    assert stamp(replace(store, name="copy"), "ann", "a copy of a machine", new=True).store_id


def test_what_a_stamp_says_of_a_runs_events_stays(managed: Make) -> None:
    store = managed()
    root, store_id = store.real_root, identity(store)
    first = RunDigest("one", 1, 2, "a")
    for said, kept in (
        (first, first),
        (replace(first, sha256="b"), first),
        (None, first),
        (replace(first, event_id=3, sha256="b"), replace(first, event_id=3, sha256="b")),
        (RunDigest("two", 4, 3, "c"), RunDigest("two", 4, 3, "c")),
    ):
        assert update_stamp(root, store_id, Lineages(1), (), said).deletion == kept
