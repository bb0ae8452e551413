"""What the released package leaves behind: lakes, journals and half-finished runs, where a test uses them.

A store and its lake stay where they were written: paths are part of what is recorded.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.services.command_line import run_command
from tests.services.released import Kill, Released

MIB = 1 << 20
RUN = "night"
REASON = "a test store"
_LONG_AGO_NS = 30 * 24 * 3600 * 10**9


@dataclass(frozen=True)
class State:
    """A store with the lake that the released package made for it; the journal lies in the lake.

    :param sealed: file name → SHA-256 of every segment that was sealed before anything was done.
    """

    store: Path
    lake: Path
    sealed: Mapping[str, str]

    @property
    def segments(self) -> Path:
        return self.store / "commitlog"

    @property
    def there(self) -> list[int]:
        """Base offsets of the segments that the store has, the active one among them."""
        return sorted(int(path.name) for path in self.segments.iterdir())

    def lost(self, work: Path) -> list[str]:
        """Segments that neither the store nor the lake has byte for byte, as today's code reads the lake.

        :param work: new directory to restore into.
        """
        here = {path.name: sha256(path) for path in self.segments.iterdir()}
        gone = [name for name, expected in self.sealed.items() if here.get(name) != expected]
        if not gone:
            return []
        names = ",".join(gone)
        restored = run_command("restore", "--lake", self.lake, "--to", work, "--segments", names)
        assert restored.exit_code == 0, restored.err
        return [name for name in gone if sha256(work / "commitlog" / name) != self.sealed[name]]

    def files(self) -> dict[str, tuple[int, str]]:
        """Mtime in ns and SHA-256 of each file of the lake, but of its journal, by its path there."""
        return {
            str(path.relative_to(self.lake)): (path.stat().st_mtime_ns, sha256(path))
            for path in sorted(self.lake.rglob("*"))
            if path.is_file() and not path.name.startswith("journal.db")
        }


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def expired(store: Path, lake: Path) -> State:
    """An unpacked fixture store whose segments have all expired, and the name of a lake to be."""
    (store / "timerwheel").unlink(missing_ok=True)  # 38 MB that no step looks at
    old_ns = time.time_ns() - _LONG_AGO_NS
    for segment in (store / "commitlog").iterdir():
        os.utime(segment, ns=(old_ns, old_ns))
    *sealed, _active = sorted((store / "commitlog").iterdir())
    return State(store, lake, {path.name: sha256(path) for path in sealed})


def clean_words(state: State, run_key: str = RUN, max_segments: int | None = None) -> list[object]:
    """The command that runs, or goes on with, ``run_key``; a run goes on with its first max_segments only."""
    words = ["clean", state.store, "--lake", state.lake, "--manual", "--run-key", run_key]
    return words if max_segments is None else [*words, "--max-segments", max_segments]


def archive(released: Released, state: State) -> None:
    """Archive every sealed segment; none is deleted."""
    released.cli("archive", state.store, "--lake", state.lake)


def clean(released: Released, state: State, run_key: str, max_segments: int) -> None:
    """A run from its plan to its report."""
    released.cli(*clean_words(state, run_key, max_segments))


def kill(released: Released, state: State, moment: Kill) -> str:
    """Plan the run :data:`RUN`, and kill it at this moment; returns the plan's digest."""
    digest = released.make_plan(state.store, state.lake, RUN)
    released.killed_cli(moment, *clean_words(state))
    leases_run_out(state)
    return digest


def leases_run_out(state: State) -> None:
    """Let the ten minutes pass that a lease outlives its last renewal.

    What the released package recorded of a lease's owner doesn't tell in which PID namespace it ran, so
    nobody takes it over before.
    """
    with sqlite3.connect(state.lake / "journal.db") as connection:
        connection.execute("UPDATE storage_engine_leases SET expires_at_ms = 1 WHERE token IS NOT NULL")
    connection.close()


def waive(released: Released, state: State) -> None:
    """Damage the first segment, so that it can't be archived, and waive the run :data:`RUN`, of it alone.

    The released package refuses the run until then.
    """
    first = state.segments / f"{0:020d}"
    old_ns = first.stat().st_mtime_ns
    with first.open("r+b") as file:
        file.seek(4)
        file.write(bytes(8))
    os.utime(first, ns=(old_ns, old_ns))
    digest = released.make_plan(state.store, state.lake, RUN, max_segments=1)
    refused = released.cli(*clean_words(state, max_segments=1), exit_code=1)
    assert "bad frame at physical offset 0" in refused.err
    released.cli("waive", digest, "--lake", state.lake, "--reason", REASON)


def accept_loss(released: Released, state: State) -> None:
    """Lose the first segment, of which the lake has nothing under this lineage, and go on without it."""
    archive(released, state)
    adopt(released, state)
    released.record_gap(state.store, state.lake, 0, MIB)
    (state.segments / f"{0:020d}").unlink()
    span = ("--from", 0, "--to", MIB)
    released.cli("accept-loss", state.store, "--lake", state.lake, "--reason", REASON, *span)


def adopt(released: Released, state: State) -> None:
    released.cli("adopt", state.store, "--lake", state.lake, "--reason", REASON)


def write_anew(released: Released, state: State, other: Path) -> State:
    """Put another store in the place of one that is archived, and archive it under the lineage after."""
    archive(released, state)
    shutil.rmtree(state.store)
    shutil.move(other, state.store)
    anew = expired(state.store, state.lake)
    adopt(released, anew)
    archive(released, anew)
    return anew


def spread(released: Released, state: State, second: Path) -> None:
    """Archive the first segment into the lake and, while that can't be reached, the others into a second."""
    words = ("archive", state.store, "--lake", state.lake, "--second-lake", second)
    released.cli(*words, "--budget", 1)
    away = state.lake.with_name("away")
    (state.lake / "warehouse").rename(away)
    released.cli(*words)
    away.rename(state.lake / "warehouse")
