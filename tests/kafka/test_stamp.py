"""A node's stamp: a plain file in each of its log directories, which together are one witness."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.core.durable import PLAIN_STAMP
from storage_engine.cycle import archive_here
from storage_engine.exceptions import LakeUnavailableError, StoreIdentityError
from storage_engine.journal.journal import Journal
from storage_engine.lake.move.making import make_lake
from storage_engine.retention import steps
from storage_engine.retention.decisions import move, stamp
from storage_engine.retention.doctor.left_behind import look_at_remains
from storage_engine.retention.report.report import build_report
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import (
    missing_stamps,
    read_stamp,
    stamp_paths,
    stamped_ids,
    update_stamp,
)
from tests.kafka.stopped_nodes import clean, make_node, managed
from tests.rounds import later
from tests.services.forks import in_child


@pytest.fixture
def store(tmp_path: Path) -> ManagedStore:
    made = make_node(tmp_path / "node")
    (tmp_path / "managed").mkdir()
    store = managed(tmp_path / "managed", made.root)
    make_lake(store.lake, "kafka")
    steps.archive_sealed(store, "archived", archive_here)
    return store


def directories(store: ManagedStore) -> list[Path]:
    return [Path(store.root).parent / name for name in ("first", "second")]


def test_each_log_directory_has_one_and_the_metadata_have_none(store: ManagedStore) -> None:
    paths = list(stamp_paths(store.real_root))
    assert paths == [path / PLAIN_STAMP for path in directories(store)]
    said = [json.loads(path.read_text()) for path in paths]
    assert said[0] == said[1]
    assert said[0]["root"] == store.real_root
    assert not (Path(store.root).parent / "meta" / PLAIN_STAMP).exists()
    found = read_stamp(store.real_root)
    assert found is not None
    assert found.lakes[0].sequence == 3


def test_no_report_names_a_missing_witness(store: ManagedStore) -> None:
    clean(store, "run")
    assert not [notice for notice in build_report(store, "run").notices if "stamp" in notice]


@pytest.mark.again
def test_a_run_that_deletes_nothing_names_one_that_is_missing(store: ManagedStore) -> None:
    clean(store, "run")
    (directories(store)[1] / PLAIN_STAMP).unlink()
    clean(store, "later")
    report = build_report(store, "later")
    assert report.freed_bytes == 0
    assert [notice for notice in report.notices if "was its disk replaced?" in notice]


def test_one_that_is_missing_is_named_and_written_again(store: ManagedStore) -> None:
    (directories(store)[1] / PLAIN_STAMP).unlink()
    assert missing_stamps(store.real_root) == (directories(store)[1],)
    findings, stamped = look_at_remains(store, (), 0, running=False)
    assert stamped is not None
    assert [one.kind for one in findings] == ["directory-without-stamp"]
    clean(store, "run")
    assert "was its disk replaced?" in " ".join(build_report(store, "run").notices)
    assert missing_stamps(store.real_root) == ()


def test_an_older_one_beside_a_newer_one_is_what_a_kill_leaves(store: ManagedStore) -> None:
    older = (directories(store)[1] / PLAIN_STAMP).read_text()
    said = json.loads(older)
    said["lakes"][0]["sequence"] = 0
    (directories(store)[1] / PLAIN_STAMP).write_text(json.dumps(said))
    found = read_stamp(store.real_root)
    assert found is not None
    assert found.lakes[0].sequence == 3
    update_stamp(store.real_root, found.store_id, found.lineages, ())
    assert json.loads((directories(store)[1] / PLAIN_STAMP).read_text()) == json.loads(older)


def test_what_a_killed_writer_left_in_a_log_directory_goes(store: ManagedStore) -> None:
    found = read_stamp(store.real_root)
    assert found is not None
    for path in directories(store):
        (path / f".{PLAIN_STAMP}.0123456789abcdef.tmp").write_text("{")
        (path / f".{PLAIN_STAMP}.of-another.tmp").write_text("")
    (directories(store)[0] / PLAIN_STAMP).unlink()
    update_stamp(store.real_root, found.store_id, found.lineages, ())
    for path in directories(store):
        assert [one.name for one in path.glob("*.tmp")] == [f".{PLAIN_STAMP}.of-another.tmp"]


def test_a_directory_of_another_node_is_refused(store: ManagedStore) -> None:
    path = directories(store)[1] / PLAIN_STAMP
    path.write_text(json.dumps({**json.loads(path.read_text()), "store_id": "another"}))
    with pytest.raises(StoreIdentityError, match="this directory is of another store"):
        steps.archive_sealed(store, "again", archive_here)


def test_a_copy_of_a_node_is_told_from_the_node(store: ManagedStore, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(Path(store.root).parent, copy)
    properties = copy / "server.properties"
    properties.write_text(properties.read_text().replace(str(Path(store.root).parent), str(copy)))
    with pytest.raises(StoreIdentityError, match="a copy of store"):
        steps.archive_sealed(managed(tmp_path / "managed", copy), "copied", archive_here)


def test_journal_and_lake_that_went_back_together_are_found_out(store: ManagedStore, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "managed")
    (tmp_path / "managed").mkdir()
    make_lake(store.lake, "kafka")
    with pytest.raises(LakeUnavailableError):
        clean(store, "run")


def test_a_node_without_a_stamp_gets_one_by_the_command_as_any_store(store: ManagedStore) -> None:
    for path in stamp_paths(store.real_root):
        path.unlink()
    with pytest.raises(StoreIdentityError, match="found no stamp"):
        steps.archive_sealed(store, "again", archive_here)
    record = Journal(store.journal_url).find_store(store.real_root)
    assert record is not None
    stamp(store, "anna", "the files were removed")
    found = read_stamp(store.real_root)
    assert found is not None
    assert found.store_id == record.store_id
    assert missing_stamps(store.real_root) == ()


def test_a_stamp_that_was_killed_between_two_directories_is_finished(
    store: ManagedStore, tmp_path: Path
) -> None:
    root = tmp_path / "copy"
    shutil.copytree(Path(store.root).parent, root)
    properties = root / "server.properties"
    properties.write_text(properties.read_text().replace(str(Path(store.root).parent), str(root)))
    copy = replace(managed(tmp_path / "managed", root), name="copy")
    assert os.waitstatus_to_exitcode(in_child(lambda: stamp_and_die(copy))[0]) == 9
    with pytest.raises(StoreIdentityError, match="storage-engine stamp was killed, run it again"):
        read_stamp(copy.real_root)
    # A directory of a third store isn't what that run has left.
    path = directories(copy)[1] / PLAIN_STAMP
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), "store_id": "another"}))
    with pytest.raises(StoreIdentityError, match="this directory is of another store"):
        stamp(copy, "anna", "it was killed")
    path.write_text(before)
    written = stamp(copy, "anna", "it was killed")
    assert written.store_id != json.loads(before)["store_id"]
    assert stamped_ids(copy.real_root) == {written.store_id}
    assert missing_stamps(copy.real_root) == ()


def stamp_and_die(store: ManagedStore) -> None:
    """Stamp a copy as a store of its own; the process is killed before the second directory's stamp."""
    replace_file = os.replace
    done: list[Path] = []

    def replace_or_die(source: Path, target: Path, **at: int) -> None:
        if target.name == PLAIN_STAMP and done:
            os._exit(9)
        done.append(target)
        replace_file(source, target, **at)

    os.replace = replace_or_die  # type: ignore[assignment]
    stamp(store, "anna", "it was copied", new=True)


@pytest.mark.again
@pytest.mark.parametrize("renamed", [True, *later(False)])
def test_another_file_of_the_same_directories_is_no_copy_and_takes_the_place_by_a_move(
    store: ManagedStore, tmp_path: Path, renamed: bool
) -> None:
    other = Path(store.root).with_name("other.properties")
    other.write_bytes(Path(store.root).read_bytes())
    if renamed:
        Path(store.root).unlink()
    named = replace(store, root=str(other))
    before = [path.read_bytes() for path in stamp_paths(named.real_root)]
    with pytest.raises(
        StoreIdentityError, match=r"names the store's directories, too.* storage-engine move k"
    ):
        steps.archive_sealed(named, "again", archive_here)
    with pytest.raises(
        StoreIdentityError, match=r"the same files would be two stores.* storage-engine move k on it"
    ):
        stamp(named, "anna", "it looks like a copy", new=True)
    assert [path.read_bytes() for path in stamp_paths(named.real_root)] == before
    moved = move(named, "k", "anna", "the file has another name")
    clean(named, "moved")
    found = read_stamp(named.real_root)
    assert found is not None
    assert (found.store_id, found.root) == (moved.store_id, str(other))
    assert len(Journal(store.journal_url).all_stores()) == 1
    assert build_report(named, "moved").freed_bytes > 0


def test_a_file_that_names_one_of_the_directories_is_no_copy_either(store: ManagedStore) -> None:
    other = Path(store.root).with_name("other.properties")
    first, second = directories(store)
    other.write_text(Path(store.root).read_text().replace(f"{first},{second}", str(second)))
    Path(store.root).unlink()
    with pytest.raises(StoreIdentityError, match="the same files would be two stores"):
        stamp(replace(store, root=str(other)), "anna", "it looks like a copy", new=True)


def test_a_copy_whose_original_is_gone_may_become_a_store_of_its_own(
    store: ManagedStore, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(Path(store.root).parent, copy)
    properties = copy / "server.properties"
    properties.write_text(properties.read_text().replace(str(Path(store.root).parent), str(copy)))
    shutil.rmtree(Path(store.root).parent)
    known = Journal(store.journal_url).all_stores()
    named = replace(managed(tmp_path / "managed", copy), name="copy")
    assert stamp(named, "anna", "it was copied", new=True).store_id not in {one.store_id for one in known}
