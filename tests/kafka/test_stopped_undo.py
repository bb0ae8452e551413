"""What a cleanup of a stopped node set aside comes back, unless its broker has run since."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import BadInputError, ChangedUnderUsError, QuarantineError, StoreCrashedError
from storage_engine.journal.journal import Journal
from storage_engine.model.plan import PlanRequest
from storage_engine.model.settings.policy import ArchiveMode, Policy
from storage_engine.retention import steps
from storage_engine.retention.housekeeping.maintaining import maintain_store
from storage_engine.retention.quarantine import undo as undoing
from storage_engine.retention.quarantine.places import (
    Place,
    check_undo_directories,
    look_at_quarantines,
    move_back,
)
from storage_engine.retention.quarantine.records import QuarantineState, quarantines
from storage_engine.retention.quarantine.undo import undo
from storage_engine.retention.report.finishing import finish
from storage_engine.retention.report.report import build_report
from storage_engine.retention.report.report_text import report_text
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.interruptions import files, in_use, release_in_part, undo_in_part
from tests.kafka.made_node import MadeNode, batch_of
from tests.kafka.stopped_nodes import LOGS, clean, make_node, managed
from tests.retention.quarantine.conftest import files_of
from tests.rounds import later

DAY_MS = 24 * 3_600_000


@pytest.fixture
def node(tmp_path: Path) -> MadeNode:
    return make_node(tmp_path / "node")


@pytest.fixture
def store(node: MadeNode, tmp_path: Path) -> ManagedStore:
    """The node with an undo of a day, in a directory beside its own."""
    (tmp_path / "undo").mkdir()
    return with_undo(managed(tmp_path / "managed", node.root), tmp_path / "undo")


def with_undo(store: ManagedStore, *directories: Path) -> ManagedStore:
    """Return a store that archives nothing: most claims here are the same whether something was."""
    named = tuple(map(str, directories))
    return replace(store, policy=Policy(ArchiveMode.OFF, undo_window_hours=24, undo_directories=named))


@pytest.fixture
def archived(store: ManagedStore) -> ManagedStore:
    """The same, and what goes is archived first."""
    return replace(store, policy=replace(store.policy, archive=ArchiveMode.REQUIRED))


def set_aside(store: ManagedStore, run: str = "run", now_ms: int | None = None) -> None:
    """Run what moves files."""
    steps.make_plan(store, run, PlanRequest(), now_ms)
    steps.release(store, run, now_ms)
    steps.clean_dependents(store, run)


def state_of(store: ManagedStore, run: str = "run") -> QuarantineState:
    journal = Journal(store.journal_url)
    (record,) = journal.all_stores()
    (found,) = (one for one in quarantines(journal, record.store_id) if one.run_key == run)
    return found.state


def stop_again(node: MadeNode) -> None:
    """Leave the marker that a broker leaves which has started and stopped."""
    for path in (*node.directories, node.root / "meta"):
        (path / ".kafka_cleanshutdown").unlink()
        (path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":9}')


def test_a_run_is_undone_to_the_last_file(node: MadeNode, archived: ManagedStore, tmp_path: Path) -> None:
    store = archived
    before = files(node)
    clean(store, "run")
    cleaned = files(node)
    gone = before.keys() - cleaned.keys()
    assert {Path(name).suffix for name in gone} == {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    assert cleaned.items() <= before.items()
    (run,) = (tmp_path / "undo").glob(".storage-engine/quarantine/*/run")
    # Nothing is copied, and each file lies below by its whole path.
    aside = {name: facts for name, facts in files_of(run).items() if name != "run.json"}
    assert aside == {str(node.root / name).lstrip("/"): before[name] for name in gone}
    (look,) = look_at_quarantines(store, node.directories)
    assert (look.run_key, look.files) == ("run", len(gone))
    report = build_report(store, "run")
    assert report.freed_bytes == 0
    assert "frees nothing until" in report_text(report)

    done = undo(store, "run", "ann")
    assert files(node) == before
    assert (done.segments, done.dependents) == (4, 8)
    assert done.min_offsets == {"a-0": 0, "b-0": 0}
    assert not list((tmp_path / "undo").rglob("run*"))
    assert undo(store, "run", "bob") == done
    clean(store, "next")
    assert files(node) == cleaned


@pytest.mark.again
def test_several_runs_are_undone_newest_first(node: MadeNode, store: ManagedStore) -> None:
    store = replace(store, policy=replace(store.policy, undo_window_hours=720))
    now_ms = clock_ms()
    for path in (node.directories[number] / log for number, log in enumerate(LOGS)):
        (path / f"{2:020d}.log").write_bytes(batch_of(2, ms=now_ms - 3 * DAY_MS))
    before = files(node)
    set_aside(store, "first", now_ms)
    between = files(node)
    assert f"first/a-0/{2:020d}.log" in between
    set_aside(store, "second", now_ms + 5 * DAY_MS)
    with pytest.raises(
        QuarantineError, match=r"log a-0 to begin at 2, .*found 4: run second deleted further"
    ):
        undo(store, "first", "ann")
    undo(store, "second", "ann")
    assert files(node) == between
    undo(store, "first", "ann")
    assert files(node) == before


@pytest.mark.parametrize("how", ["ran and stopped", "runs or crashed"])
def test_after_a_run_of_the_broker_nothing_comes_back(node: MadeNode, store: ManagedStore, how: str) -> None:
    set_aside(store)
    stop_again(node)
    if how == "runs or crashed":
        for path in node.directories:
            (path / ".kafka_cleanshutdown").unlink()
    left = files(node)
    with pytest.raises(
        QuarantineError, match=r"\.kafka_cleanshutdown: expected the file as run 'run' found it, .*run"
    ):
        undo(store, "run", "ann")
    assert files(node) == left
    assert state_of(store) is QuarantineState.KEPT


@pytest.mark.parametrize(
    "name",
    [
        "log-start-offset-checkpoint",
        *later(
            "recovery-point-offset-checkpoint",
            "meta.properties",
            "a-0/partition.metadata",
            "a-0/leader-epoch-checkpoint",
            f"a-0/{4:020d}.log",
        ),
    ],
)
def test_what_somebody_changed_since_keeps_all_aside(node: MadeNode, store: ManagedStore, name: str) -> None:
    set_aside(store)
    path = node.directories[0] / name
    path.write_bytes(path.read_bytes() if path.exists() else b"0\n0\n")
    os.utime(path)
    left = files(node)
    with pytest.raises(QuarantineError, match=f"{name}: expected the file as run 'run' found it"):
        undo(store, "run", "ann")
    assert files(node) == left


@pytest.mark.again
def test_a_log_that_is_gone_since_keeps_all_aside(node: MadeNode, store: ManagedStore) -> None:
    set_aside(store)
    (node.directories[0] / "a-0").rename(node.directories[0] / "a-0.0123456789abcdef0123456789abcdef-delete")
    left = files(node)
    with pytest.raises(
        QuarantineError, match=r"partition\.metadata: expected the file as run 'run' found it"
    ):
        undo(store, "run", "ann")
    assert files(node) == left


@pytest.mark.again
def test_files_that_the_broker_was_deleting_are_in_no_undo_s_way(node: MadeNode, store: ManagedStore) -> None:
    (node.directories[0] / "a-0" / f"{0:020d}.timeindex.deleted").write_bytes(b"")
    before = files(node)
    set_aside(store)
    undo(store, "run", "ann")
    assert files(node) == before


@pytest.mark.again
def test_a_run_that_went_on_after_its_broker_had_run_brings_nothing_back(
    node: MadeNode, store: ManagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = release_in_part(store, node, monkeypatch)
    assert files(node) != before
    stop_again(node)
    set_aside(store)
    with pytest.raises(QuarantineError, match="broker has run since"):
        undo(store, "run", "ann")


@pytest.mark.again
def test_an_undo_that_a_broker_s_start_cut_short_ends_and_its_rest_is_emptied(
    node: MadeNode, archived: ManagedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = archived
    clean(store, "run")
    undo_in_part(store, monkeypatch, 12)
    stop_again(node)
    left = files(node)
    for _ in range(2):
        with pytest.raises(QuarantineError, match="broker has run since"):
            undo(store, "run", "ann")
        assert state_of(store) is QuarantineState.UNDO_ENDED
    assert files(node) == left
    finish(store, "run")
    assert "its undo ended at" in report_text(build_report(store, "run"))
    (said,) = maintain_store(store, clock_ms() + 2 * DAY_MS).quarantines
    assert said.startswith("the quarantine of run run was emptied")
    assert not list((tmp_path / "undo").rglob("*.log"))
    assert files(node) == left


@pytest.mark.again
def test_an_undo_that_had_brought_all_back_ends_after_the_broker_s_start(
    node: MadeNode, store: ManagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(node)
    set_aside(store)
    monkeypatch.setattr(undoing, "remove_empty_below", Mock(side_effect=InterruptedError))
    with pytest.raises(InterruptedError):
        undo(store, "run", "ann")
    monkeypatch.undo()
    stop_again(node)
    undo(store, "run", "ann")
    assert files(node).keys() == before.keys()
    assert state_of(store) is QuarantineState.UNDONE


@pytest.mark.again
def test_a_lock_that_somebody_removes_ends_the_undo(
    node: MadeNode, store: ManagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(node)
    set_aside(store)
    moved: list[Path] = []

    def move(place: Place, path: Path) -> None:
        (node.directories[1] / ".lock").unlink(missing_ok=True)
        move_back(place, path)
        moved.append(path)

    monkeypatch.setattr(undoing, "move_back", move)
    with pytest.raises(ChangedUnderUsError, match="another program removed the file"):
        undo(store, "run", "ann")
    monkeypatch.undo()
    assert len(moved) == 1
    undo(store, "run", "ann")
    assert files(node) == before


@pytest.mark.again
def test_a_quarantine_whose_directory_was_moved_stays_and_comes_back_with_it(
    node: MadeNode, store: ManagedStore, tmp_path: Path
) -> None:
    before = files(node)
    set_aside(store)
    (tmp_path / "undo").rename(tmp_path / "elsewhere")
    with pytest.raises(QuarantineError, match="found nothing there"):
        undo(store, "run", "ann")
    (said,) = maintain_store(store, clock_ms() + 2 * DAY_MS).quarantines
    assert "isn't there. Check that its disk is mounted" in said
    (tmp_path / "elsewhere").rename(tmp_path / "undo")
    undo(store, "run", "ann")
    assert files(node) == before


@pytest.mark.again
def test_a_run_goes_on_into_its_quarantine_whatever_is_asked_for_by_now(
    node: MadeNode, store: ManagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = release_in_part(store, node, monkeypatch)
    set_aside(replace(store, policy=Policy(ArchiveMode.OFF)))
    undo(store, "run", "ann")
    assert files(node) == before


@pytest.mark.again
def test_an_emptied_quarantine_frees_its_bytes(node: MadeNode, store: ManagedStore, tmp_path: Path) -> None:
    set_aside(store)
    assert maintain_store(store, clock_ms()).quarantines == ()
    (said,) = maintain_store(store, clock_ms() + 2 * DAY_MS).quarantines
    assert said.startswith("the quarantine of run run was emptied, 18 files")
    assert not list((tmp_path / "undo").rglob("*.log"))
    assert build_report(store, "run").freed_bytes > 0
    with pytest.raises(QuarantineError, match="found it emptied at"):
        undo(store, "run", "ann")


@pytest.mark.again
def test_a_log_directory_without_a_place_on_its_disk_refuses_all(
    node: MadeNode, store: ManagedStore, other_disk: Path, tmp_path: Path
) -> None:
    shutil.move(node.directories[1], other_disk / "second")
    node.directories[1] = other_disk / "second"
    node.write()
    before = files(node), in_use(other_disk)
    with pytest.raises(BadInputError, match=r"second/b-0: expected a place .* --undo-directory"):
        steps.make_plan(store, "run")
    assert (files(node), in_use(other_disk)) == before
    (other_disk / "undo").mkdir()
    both = with_undo(store, tmp_path / "undo", other_disk / "undo")
    set_aside(both, "both")
    assert len(list((other_disk / "undo").rglob("*.log"))) == 2
    undo(both, "both", "ann")
    assert (files(node), in_use(other_disk)) == before


def test_only_a_directory_outside_and_on_a_node_s_disk_is_taken(
    node: MadeNode, store: ManagedStore, tmp_path: Path, other_disk: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "undo")
    other = make_node(tmp_path / "other")
    for path in (node.directories[0], node.root / "meta", other.directories[0]):
        (path / "undo").mkdir()
    for path, found in {
        tmp_path / "none": "none; is its disk mounted?",
        tmp_path / "link": "a symbolic link to",
        node.directories[0] / "undo": "it inside .*first, where the broker",
        node.directories[0]: "it inside .*first, where the broker",
        node.root / "meta" / "undo": "it inside .*meta, where the broker",
        other.directories[0] / "undo": "it inside .*other/first, where the broker",
        other_disk: "it on a file system without a log directory",
    }.items():
        with pytest.raises(BadInputError, match=f"{path}: expected a directory for an undo.*found {found}"):
            check_undo_directories(with_undo(store, path), (*node.directories, node.root / "meta"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_can_not_be_written_to_is_refused(store: ManagedStore, tmp_path: Path) -> None:
    (tmp_path / "undo").chmod(0o500)
    with pytest.raises(BadInputError, match="found it not writable"):
        check_undo_directories(store, (tmp_path / "node" / "first",))


def test_an_undo_takes_both_settings_or_none(store: ManagedStore) -> None:
    for policy in (replace(store.policy, undo_directories=()), replace(store.policy, undo_window_hours=None)):
        with pytest.raises(BadInputError, match="expected undo_window_hours together with undo_directories"):
            steps.make_plan(replace(store, policy=policy), "run")


def test_a_crashed_node_is_not_cleaned_into_an_undo(node: MadeNode, store: ManagedStore) -> None:
    steps.make_plan(store, "run")
    (node.directories[0] / ".kafka_cleanshutdown").unlink()
    with pytest.raises(StoreCrashedError):
        steps.release(store, "run")
