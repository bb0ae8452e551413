"""SQLite databases as files."""

from __future__ import annotations

import os
import shlex
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from storage_engine.core.durable import replacing


def break_hard_links(path: Path) -> None:
    """Give a SQLite database that has other names (hard links) a file of its own, with the same content.

    A backup may be made of hard links. A change through one name would reach the other one's lake. Where the
    path is a symbolic link, its target is given the new file.

    :raises OSError: it can't be written.
    :raises sqlite3.Error: it is locked, damaged, or in WAL mode.
    """
    path = path.resolve()
    before = path.stat()
    if before.st_nlink == 1:
        return
    with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=rw", uri=True)) as connection:
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode == "wal":
            # There, a connection that is open already doesn't notice that its file was replaced.
            command = shlex.join(["sqlite3", str(path), "PRAGMA journal_mode=DELETE"])
            raise sqlite3.NotSupportedError(
                "expected a rollback journal, found WAL mode. End every program that uses the database, then "
                f"checkpoint it and leave WAL mode: {command}"
            )
        # Nobody commits meanwhile, and what a killed writer left is rolled back.
        connection.execute("BEGIN IMMEDIATE")
        with replacing(path) as file:
            file.write(connection.serialize())
            os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
            if os.geteuid() == 0:
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
