"""What lies aside without a journal's knowing is told, with what takes it away."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from storage_engine.core.clock import clock_ms
from storage_engine.journal.journal import Journal
from storage_engine.model.plan import PlanRequest
from storage_engine.retention import steps
from storage_engine.retention.doctor.left_behind import look_at_remains, quarantine_findings
from storage_engine.retention.quarantine.places import look_at_quarantines, unknown_notices
from storage_engine.retention.quarantine.records import known_directories
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore
from tests.retention.quarantine.conftest import clean, quarantine_of_root
from tests.services.command_line import run_command


def notices(store: ManagedStore, run_key: str) -> tuple[str, ...]:
    return steps.make_plan(store, run_key, PlanRequest(manual=True, dry_run=True)).notices


def test_what_a_lost_journal_left_aside_is_told_until_it_is_taken_away(
    undoable: Callable[..., ManagedStore],
) -> None:
    store = undoable()
    clean(store, "r", max_segments=1)
    directory = quarantine_of_root(store) / "r"
    assert not [one for one in notices(store, "before") if str(directory) in one]
    database = Path(store.journal_url.removeprefix("sqlite:///"))
    for path in database.parent.glob(f"{database.name}*"):
        path.unlink()
    (said,) = [one for one in notices(store, "after") if str(directory) in one]
    assert "set aside by run r" in said
    assert "The journal doesn't know that quarantine" in said
    now_ms = clock_ms()
    remains, _ = look_at_remains(store, (), now_ms, running=False, quarantines=frozenset())
    (finding,) = [one for one in remains if one.kind == "unknown-quarantine"]
    assert str(directory) in finding.what
    assert not [one for one in remains if one.kind == "quarantine"]
    remedy = finding.advice.rpartition(": ")[2]
    assert shlex.split(remedy) == ["rm", "-r", str(directory)]
    subprocess.run(shlex.split(remedy), check=True)
    assert not [one for one in notices(store, "gone") if str(directory) in one]


def test_a_journal_of_before_the_run_tells_by_runs_and_its_own_quarantines_are_known(
    undoable: Callable[..., ManagedStore], tmp_path: Path
) -> None:
    store = undoable()
    with opened(store) as context:
        store_id = context.record.store_id
    database = Path(store.journal_url.removeprefix("sqlite:///"))
    shutil.copy(database, tmp_path / "older.db")
    clean(store, "r", max_segments=1)
    known = known_directories(Journal(store.journal_url), store_id)
    assert known == {str(quarantine_of_root(store) / "r")}
    assert unknown_notices(store, (), known) == ()
    (finding,) = quarantine_findings(look_at_quarantines(store, ()), clock_ms(), known)
    assert finding.kind == "quarantine"
    shutil.copy(tmp_path / "older.db", database)
    listed = run_command("runs", "--lake", database.parent)
    assert listed.exit_code == 0, listed.err
    assert f"rm -r {quarantine_of_root(store) / 'r'}" in listed.out.replace("\n", " ")
