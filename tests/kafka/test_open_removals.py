"""A removal that a kill cut short is settled by what is there, and stays open where that isn't certain."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from storage_engine.core.durable import PLAIN_STAMP
from storage_engine.journal.journal import Event, Journal, Phase, Step
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.left_over_node import GONE, make_left_over, run
from tests.services.forks import in_child

DELETED = f"{0:020d}.log.deleted"


def killed_before(store: ManagedStore, name: str) -> None:
    """Run the tasks in a process that is killed when it is about to unlink this file."""
    unlink = os.unlink

    def work() -> None:
        def kill_or_unlink(path: str, *, dir_fd: int | None = None) -> None:
            if path == name:
                os._exit(9)
            unlink(path, dir_fd=dir_fd)

        os.unlink = kill_or_unlink  # type: ignore[assignment]
        run(store)

    assert os.waitstatus_to_exitcode(in_child(work)[0]) == 9


def open_ones(store: ManagedStore) -> list[str]:
    """Return of which removals there is an intent and no result."""
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root)
    assert record is not None

    def subjects(phase: Phase) -> set[str]:
        found: tuple[Event, ...] = journal.store_events(record.store_id, Step.BROKER_TASK, phase)
        return {event.subject for event in found}

    return sorted(subjects(Phase.INTENT) - subjects(Phase.RESULT))


def test_a_disk_that_is_not_mounted_is_no_removal(tmp_path: Path) -> None:
    store = make_left_over(tmp_path)
    first = Path(store.root).parent / "first"
    killed_before(store, f"{0:020d}.log")
    assert open_ones(store) == [str(first / GONE)]
    mounted = first.rename(first.with_name("unmounted"))
    first.mkdir()
    found = run(store, "unmounted")
    assert len(found) == 5
    assert found["cleanupLogs"].notices == ()
    (said,) = found["deleteLogs"].notices
    assert "it stays unknown whether run tasks removed it" in said
    assert "is its disk mounted?" in said
    # A disk that was replaced is formatted, and lacks the stamp.
    shutil.copy(mounted / "meta.properties", first)
    (said,) = run(store, "replaced")["deleteLogs"].notices
    assert "was its disk replaced?" in said
    assert open_ones(store) == [str(first / GONE)]
    shutil.rmtree(first)
    mounted.rename(first)
    assert run(store, "mounted")["deleteLogs"].removed_files == 4
    assert open_ones(store) == []
    (said,) = run(store, "later")["deleteLogs"].notices
    assert said.endswith("gone, by whom is unknown: run tasks was killed during its removal")
    assert run(store, "last")["deleteLogs"].notices == ()


def test_a_log_whose_directory_is_gone_ends_no_task(tmp_path: Path) -> None:
    store = make_left_over(tmp_path)
    node = Path(store.root).parent
    killed_before(store, DELETED)
    shutil.rmtree(node / "first" / "a-0")
    (node / "second" / PLAIN_STAMP).unlink()
    found = run(store)
    assert open_ones(store) == []
    assert (found["cleanupLogs"].removed_files, found["cleanupLogs"].gone_files) == (0, 4)
    assert found["cleanupLogs"].gone_bytes > 0
    assert "gone, by whom is unknown" in found["cleanupLogs"].text
    # What the deletion's witness has to say is in the result, too.
    (said,) = found["deleteLogs"].notices
    assert "was its disk replaced? See whether its logs are there" in said
    assert found["deleteLogs"].removed_files == 4
