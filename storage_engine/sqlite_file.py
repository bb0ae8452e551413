"""SQLite databases as files."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from storage_engine.durable import replacing


def break_hard_links(path: Path) -> None:
    """Give a SQLite database that has other names (hard links) a file of its own, with the same content.

    A backup may be made of hard links. A change through one name would reach the other one's lake.

    :raises OSError: it can't be written.
    """
    before = path.stat()
    if before.st_nlink == 1:
        return
    with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=rw", uri=True)) as connection:
        # Nobody commits meanwhile, and what a killed writer left is rolled back.
        connection.execute("BEGIN IMMEDIATE")
        with replacing(path) as file:
            file.write(connection.serialize())
            os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
            if os.geteuid() == 0:
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
