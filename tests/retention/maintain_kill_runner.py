"""Kills maintenance at each operation that changes something, and finishes it after each kill.

Arguments: the directory that :class:`ManagedStore` keeps things in, a work directory, the moment in
milliseconds, and the stride: 3 kills at every third operation. Prints one line a kill: the state right after
it and after maintenance was run again, as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage_engine.core import durable
from storage_engine.journal.tables.database import JournalDatabase
from storage_engine.retention.housekeeping import maintaining
from storage_engine.retention.housekeeping.maintaining import maintain_directory

TABLES = ("runs", "events", "samples", "plans", "waivers", "stores", "topic_days")


def state(directory: Path) -> dict[str, Any]:
    """All that maintenance may change: ids of rows, states of runs, files of reports."""
    connection = sqlite3.connect(directory / "journal.db")
    rows = {
        table: sorted(map(str, connection.execute(f"SELECT * FROM storage_engine_{table}")))
        for table in TABLES
    }
    connection.close()
    reports = directory / "reports"
    return {**rows, "files": sorted(str(path.relative_to(reports)) for path in reports.rglob("*"))}


def maintain(directory: Path, now_ms: int) -> None:
    maintain_directory(f"sqlite:///{directory / 'journal.db'}", directory / "reports", now_ms)


def _kill_at(number: int) -> None:
    """From now on, end this process before the operation of that number."""
    done = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            nonlocal done
            done += 1
            if done == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **keywords)

        return call

    JournalDatabase.write = counted(JournalDatabase.write)  # type: ignore[method-assign]
    durable.unlink = counted(durable.unlink)
    shutil.rmtree = counted(shutil.rmtree)  # type: ignore[assignment]
    os.rmdir = counted(os.rmdir)


def main(prepared: Path, work: Path, now_ms: int, stride: int) -> None:
    maintaining.BATCH = 2
    number, survived = 1 - stride, False
    while not survived:
        number += stride
        copy = work / str(number)
        shutil.copytree(prepared, copy, symlinks=True)
        child = os.fork()
        if child == 0:
            _kill_at(number)
            maintain(copy, now_ms)
            os._exit(0)
        survived = os.waitpid(child, 0)[1] == 0
        killed = state(copy)
        maintain(copy, now_ms)
        sys.stdout.write(json.dumps([killed, state(copy)]) + "\n")
        shutil.rmtree(copy)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
