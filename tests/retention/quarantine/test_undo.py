"""What a run set aside comes back exactly, or a refusal says why it can't and changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from storage_engine.exceptions import (
    BadInputError,
    QuarantineError,
    RunStateError,
    StoreBusyError,
    StoreCrashedError,
)
from storage_engine.journal.journal import Journal, Phase, RunState, Step
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.plan import PlanRequest
from storage_engine.model.settings.policy import ArchiveMode, Policy
from storage_engine.pages.report import render_page
from storage_engine.retention import steps
from storage_engine.retention.proof.history import released_spans
from storage_engine.retention.quarantine.undo import undo
from storage_engine.retention.report.finishing import finish, report_json
from storage_engine.retention.report.report import Outcome, build_report
from storage_engine.retention.report.report_text import report_text
from storage_engine.retention.store.managed_store import ManagedStore
from tests.retention.quarantine.conftest import WITH_UNDO, clean, files_of, quarantine_of_root
from tests.rounds import later

MIB = 1 << 20
Stores = Callable[..., ManagedStore]


def there(store: ManagedStore) -> list[int]:
    return sorted(int(path.name) // MIB for path in (Path(store.root) / "commitlog").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("multipath", {"cl1", "index"}),
        pytest.param("clean-stop", {"commitlog", "consumequeue", "index"}, marks=pytest.mark.again),
    ],
)
def test_a_run_is_undone_to_the_last_file(managed: Stores, name: str, where: set[str]) -> None:
    store = managed(name, policy=Policy(undo_window_hours=24))
    before = files_of(store.root)
    clean(store, "r")
    cleaned = files_of(store.root)
    gone = before.keys() - cleaned.keys()
    assert {path.split("/")[0] for path in gone} == where
    # Nothing is copied: each file lies there with its inode, its times and its mode.
    aside = {path: facts for path, facts in cleaned.items() if ".storage-engine/quarantine/r/" in path}
    assert {path.partition("/quarantine/r/")[2]: facts for path, facts in aside.items()} == {
        **{path: before[path] for path in gone},
        "run.json": aside[".storage-engine/quarantine/r/run.json"],
    }

    done = undo(store, "r", "ann")
    assert files_of(store.root) == before
    assert (done.min_offset, done.person) == (0, "ann")
    assert done.segments == sum(path.startswith(("commitlog/", "cl1/")) for path in gone)
    assert done.segments + done.dependents == len(gone)
    assert not quarantine_of_root(store).exists()
    assert undo(store, "r", "bob") == done


@pytest.mark.slow
def test_the_quarantine_is_its_owner_s_alone(undoable: Stores) -> None:
    store = undoable()
    old_mask = os.umask(0)
    try:
        clean(store, "r", 1)
    finally:
        os.umask(old_mask)
    directories = [quarantine_of_root(store), *filter(Path.is_dir, quarantine_of_root(store).rglob("*"))]
    assert {path.stat().st_mode & 0o777 for path in directories} == {0o700}


@pytest.mark.slow
def test_undone_segments_may_be_cleaned_again_and_archived_bytes_prove_them(managed: Stores) -> None:
    store = managed(policy=Policy(undo_window_hours=24))
    clean(store, "first", 2)
    undo(store, "first", "ann")
    clean(store, "second", 2)
    assert there(store)[0] == 2
    undo(store, "second", "ann")
    assert there(store)[0] == 0


@pytest.mark.slow
def test_several_runs_are_undone_newest_first(undoable: Stores) -> None:
    store = undoable()
    before = files_of(store.root)
    clean(store, "first", 2)
    between = files_of(store.root)
    clean(store, "second", 2)
    seen = files_of(store.root)
    with pytest.raises(
        QuarantineError, match=r"expected log commitlog to begin at 2097152, .*run second delet"
    ):
        undo(store, "first", "ann")
    assert files_of(store.root) == seen
    undo(store, "second", "ann")
    assert files_of(store.root) == between
    undo(store, "first", "ann")
    assert files_of(store.root) == before


@pytest.mark.slow
def test_a_run_that_was_killed_half_way_can_be_undone(undoable: Stores) -> None:
    store = undoable()
    before = files_of(store.root)
    steps.make_plan(store, "r", PlanRequest(manual=True, max_segments=2))
    steps.release(store, "r")
    undo(store, "r", "ann")
    assert files_of(store.root) == before
    with pytest.raises(RunStateError, match="found a run whose undo has begun"):
        steps.clean_dependents(store, "r")
    assert files_of(store.root) == before


@pytest.mark.slow
def test_report_says_what_frees_nothing_and_what_was_undone(
    undoable: Stores, journal_of: Callable[[ManagedStore], Journal]
) -> None:
    store = undoable()
    clean(store, "r", 1)
    assert finish(store, "r").outcome is Outcome.DONE
    text = report_text(build_report(store, "r"))
    assert ": frees nothing until " in text
    assert "storage-engine undo r brings all of it back" in text
    assert "0 bytes freed" in text
    page = unescape(render_page(report_json(build_report(store, "r")), None, links={}))
    (said,) = (line.strip() for line in text.splitlines() if "frees nothing until" in line)
    assert said.split(",")[0] in page
    assert "frees nothing until " in page
    assert f'<li class="mono">{quarantine_of_root(store) / "r"}</li>' in page
    assert "<code>storage-engine undo r</code> brings all of them back" in page
    undo(store, "r", "ann")
    done = finish(store, "r")
    assert (done.outcome, done.ok) == (Outcome.UNDONE, True)
    assert "undone at " in Path(done.report_text).read_text()
    page = render_page(report_json(build_report(store, "r")), None, links={})
    assert "<h2>Quarantine</h2>" in page
    assert "frees nothing until" not in page
    journal = journal_of(store)
    (record,) = journal.all_stores()
    assert journal.run(record.store_id, "r").state is RunState.FINISHED


@pytest.mark.slow
def test_what_was_deleted_for_good_has_nothing_to_undo(managed: Stores) -> None:
    store = managed(policy=Policy(ArchiveMode.OFF))
    clean(store, "r", 1)
    with pytest.raises(RunStateError, match="expected a run that set files aside"):
        undo(replace(store, policy=WITH_UNDO), "r", "ann")
    with pytest.raises(RunStateError, match="found no run"):
        undo(store, "another", "ann")


def test_beside_a_running_broker_there_is_no_undo(undoable: Stores) -> None:
    store = undoable()
    with pytest.raises(BadInputError, match="expected no undo_window_hours beside a running broker"):
        replace(store, live=LiveBroker(address="127.0.0.1:1"))
    without = replace(store, policy=Policy(ArchiveMode.OFF), live=LiveBroker(address="127.0.0.1:1"))
    with pytest.raises(BadInputError, match="expected a store whose broker is stopped"):
        undo(without, "r", "ann")


def test_a_window_longer_than_history_is_kept_is_refused(undoable: Stores) -> None:
    with pytest.raises(BadInputError, match="undo_window_hours: expected 1 to 720, found 721"):
        undoable(policy=Policy(ArchiveMode.OFF, undo_window_hours=721))


HOLD_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 1)
print("held", flush=True)
sys.stdin.read()
"""


def refused(store: ManagedStore, error: type[Exception], match: str) -> None:
    """An undo that is refused changes nothing, not even what the journal says of the run."""
    before = files_of(store.root)
    with pytest.raises(error, match=match):
        undo(store, "r", "ann")
    assert files_of(store.root) == before
    journal = Journal(store.journal_url)
    (record,) = journal.all_stores()
    assert not journal.events(journal.run(record.store_id, "r"), Step.UNDO, Phase.INTENT)


@pytest.mark.slow
def test_undo_is_refused_while_a_broker_has_the_store(undoable: Stores) -> None:
    store = undoable()
    clean(store, "r", 2)
    lock = Path(store.root) / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as broker:
        assert broker.stdout is not None
        broker.stdout.readline()
        refused(store, StoreBusyError, "locked by process")
    undo(store, "r", "ann")


@pytest.mark.slow
def test_undo_is_refused_after_a_crash(undoable: Stores) -> None:
    store = undoable()
    clean(store, "r", 2)
    (Path(store.root) / "abort").touch()
    refused(store, StoreCrashedError, "did not stop cleanly")


@pytest.mark.slow
def test_undo_is_refused_where_offsets_were_written_since(undoable: Stores) -> None:
    store = undoable()
    clean(store, "r", 2)
    log = Path(store.root) / "commitlog"
    shutil.copyfile(log / f"{2 * MIB:020d}", log / f"{MIB:020d}")
    refused(
        store,
        QuarantineError,
        "expected no file after the deletion by run 'r', found a file: it was written later",
    )


@pytest.mark.slow
def test_undo_is_refused_where_the_log_has_gone_on_without_us(undoable: Stores) -> None:
    store = undoable()
    clean(store, "r", 2)
    (Path(store.root) / "commitlog" / f"{2 * MIB:020d}").unlink()
    refused(
        store, QuarantineError, "begin at 2097152, .* found 3145728: the store has changed after the deletion"
    )


@pytest.mark.slow
def test_undo_is_refused_where_a_queue_was_begun_again(undoable: Stores) -> None:
    store = undoable()
    clean(store, "r")
    aside = quarantine_of_root(store) / "r" / "consumequeue"
    queue = next(path.parent for path in sorted(aside.rglob("*")) if path.is_file()).relative_to(aside)
    real = Path(store.root) / "consumequeue" / queue
    kept = real.rename(real.with_name("elsewhere"))
    real.mkdir()
    refused(store, QuarantineError, "found none: it was removed, or begun again, since then")
    real.rmdir()
    refused(store, QuarantineError, "found none: it was removed, or begun again, since then")
    kept.rename(real)
    undo(store, "r", "ann")


@pytest.mark.slow
def test_undo_is_refused_where_the_quarantine_was_emptied_by_hand(undoable: Stores) -> None:
    store = undoable()
    clean(store, "r", 2)
    (quarantine_of_root(store) / "r" / "commitlog" / f"{0:020d}").unlink()
    refused(store, QuarantineError, "in its quarantine, found nothing there")
    shutil.rmtree(quarantine_of_root(store))
    refused(store, QuarantineError, "in its quarantine, found nothing there")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["touched", *later("copied")])
def test_undo_is_refused_where_a_file_of_the_quarantine_is_another(undoable: Stores, how: str) -> None:
    store = undoable()
    clean(store, "r", 2)
    path = quarantine_of_root(store) / "r" / "commitlog" / f"{MIB:020d}"
    if how == "touched":
        os.utime(path)
    else:
        copy = path.with_name("copy")
        shutil.copy2(path, copy)
        copy.replace(path)
    refused(
        store,
        QuarantineError,
        r"expected the file that was deleted, .* and mtime \d+ ns: the file was touched or copied later",
    )


@pytest.mark.slow
def test_undo_is_refused_where_a_file_was_written_to_behind_its_old_time(managed: Stores) -> None:
    store = managed(policy=Policy(undo_window_hours=24))
    clean(store, "r", 2)
    path = quarantine_of_root(store) / "r" / "commitlog" / f"{MIB:020d}"
    before, content = path.stat(), path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    refused(store, QuarantineError, r"expected SHA-256 \w{64}, which its receipt proves, found \w{64}")
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    undo(store, "r", "ann")


@pytest.mark.slow
@pytest.mark.parametrize("where", ["", "r/commitlog", *later("r")])
def test_a_symbolic_link_in_the_quarantine_is_not_followed(
    undoable: Stores, tmp_path: Path, where: str
) -> None:
    store = undoable()
    clean(store, "r", 2)
    replaced = quarantine_of_root(store) / where
    elsewhere = replaced.rename(tmp_path / "elsewhere")
    replaced.symlink_to(elsewhere)
    refused(
        store, QuarantineError, "expected a directory of the quarantine, found something else, or a symbol"
    )


@pytest.mark.slow
def test_a_segment_that_is_a_link_in_the_quarantine_does_not_come_back(
    undoable: Stores, tmp_path: Path
) -> None:
    store = undoable()
    clean(store, "r", 2)
    path = quarantine_of_root(store) / "r" / "commitlog" / f"{MIB:020d}"
    path.rename(tmp_path / "segment")
    path.symlink_to(tmp_path / "segment")
    refused(store, QuarantineError, "expected the file that was deleted")


@pytest.mark.slow
def test_a_deletion_by_hand_after_an_undo_is_nobody_s_of_ours(undoable: Stores) -> None:
    store = undoable()
    clean(store, "r", 1)
    undo(store, "r", "ann")
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root)
    assert record is not None
    assert released_spans(journal, record.store_id) == ()
    steps.make_plan(store, "next", PlanRequest(manual=True, max_segments=2))
    time.sleep(0.02)
    (Path(store.root) / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(Exception, match="none of our runs deleted it"):
        steps.release(store, "next")
