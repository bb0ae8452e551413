"""Puts a store into an Airflow that is there: DAG files and one option, and never over a person's change.

All changes are known before the first one is made, so that a person can look at them. Made twice, the second
time changes nothing.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage_engine import __version__
from storage_engine.core.durable import replacing
from storage_engine.exceptions import BadInputError
from storage_engine.project.settings_text import PAGE, parsed, with_option, with_store
from storage_engine.resources import project_path

SECTION, STORES = "storage_engine", "stores"
VARIABLE = "AIRFLOW__STORAGE_ENGINE__STORES"
"""By it the environment sets the option, and wins over the file."""
TEST_VARIABLE = "AIRFLOW__CORE__TEST_CONNECTION"
TEST_IS_OFF = "Testing connections is disabled in Airflow configuration."
"""What Airflow says where it is."""

_READABLE = 0o644
"""Of a new DAG file: Airflow's processes may run as another user than who sets it up."""
_OURS = re.compile(rb"# Written by storage-engine init [^\n]*; sha256 ([0-9a-f]{64})\. [^\n]*\n")
"""First line of a DAG file that is ours, with the hash of the rest."""


@dataclass(frozen=True, slots=True)
class OwnAirflow:
    """What an Airflow says of itself.

    :param dags_folder: where it reads DAG files from.
    :param stores: the option that lists the stores, as it is in effect.
    :param set_by_environment: the environment sets that option, whatever the file has.
    :param may_test: whether it tests connections.
    :param connections: ids of those that were asked for, and are there.
    :param spark_connections: ids of those of the type spark, without Airflow's own that nobody has touched.
    """

    home: Path
    settings_file: Path
    dags_folder: Path
    stores: str
    set_by_environment: bool
    may_test: bool
    connections: frozenset[str]
    spark_connections: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class FileChange:
    """What becomes of one file.

    :param before: what it has now; None: there is no such file.
    """

    path: Path
    before: bytes | None
    after: bytes

    @property
    def is_of_dag(self) -> bool:
        return self.path.suffix == ".py"

    @property
    def text(self) -> str:
        """Return the change for a person; of settings only the lines that differ, as others may be secret."""
        if self.before is None:
            return f"new      {self.path}"
        if self.is_of_dag:
            return f"renewed  {self.path}"
        before, after = (data.decode().splitlines() for data in (self.before, self.after))
        lines = difflib.unified_diff(before, after, lineterm="", n=0)
        return "\n".join((f"changed  {self.path}", *(f"  {line}" for line in [*lines][3:])))


def settings_change(airflow: OwnAirflow, stores: str) -> tuple[FileChange, ...]:
    """Return the change of the settings file; empty: none is needed.

    :raises BadInputError: Airflow would not start with the file as it is.
    """
    path = airflow.settings_file
    before = path.read_bytes()
    text = before.decode()
    found = parsed(text, path)
    if found.get(SECTION, STORES, fallback="").strip() == stores:
        return ()
    after = with_option(text, SECTION, STORES, stores)
    if parsed(after, path).get(SECTION, STORES) != stores:
        raise BadInputError(
            f"{path}: can't set {STORES} of [{SECTION}] in it. Nothing was changed. Set {VARIABLE}={stores} "
            "in the environment of Airflow instead.",
            page=PAGE,
        )
    return (FileChange(path, before, after.encode()),)


def stores_with(airflow: OwnAirflow, conn_id: str, default: str) -> str:
    """Return the option that lists the stores with one more.

    :param default: what it has where nobody said anything; it goes where no such connection is.
    """
    without = default if default not in airflow.connections and default != conn_id else ""
    return with_store(airflow.stores, conn_id, without=without)


def dag_changes(folder: Path, *, older_dag_ids: bool) -> tuple[FileChange, ...]:
    """Return which DAG files are new or renewed.

    :raises BadInputError: one is there that isn't ours, or that a person has changed; names all of them.
    """
    sources = sorted(project_path("dags").glob("*.py"))
    if older_dag_ids:
        sources += sorted(project_path("older_dags").glob("*.py"))
    changes = [
        FileChange(folder / it.name, _read(folder / it.name), _marked(it.read_bytes())) for it in sources
    ]
    plain = {it.name: it.read_bytes() for it in sources}
    others = [
        it.path.name
        for it in changes
        if it.before is not None and it.before != plain[it.path.name] and not _is_unchanged(it.before)
    ]
    if others:
        raise BadInputError(
            f"{folder}: expected no DAG files under these names, or those of an earlier init as it wrote "
            f"them, found others: {', '.join(others)}. Nothing was changed. Rename or remove them first.",
            page=PAGE,
        )
    return tuple(it for it in changes if it.before != it.after)


def make(changes: Sequence[FileChange]) -> tuple[Path, ...]:
    """Make changes; each file is replaced at once, and what a person had in it is kept beside it.

    :return: the copies of what was there.
    :raises BadInputError: a file isn't as it was looked at.
    """
    for change in changes:
        if _read(change.path) != change.before:
            raise BadInputError(
                f"{change.path}: expected it as it was a moment ago, found it changed. Nothing was changed. "
                "Run the command again.",
                page=PAGE,
            )
    copies = []
    for change in changes:
        path = change.path.resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else _READABLE
        if change.before is not None and not change.is_of_dag:
            copies.append(copy := _free_name(path))
            _write(copy, change.before, mode)
        _write(path, change.after, mode)
    return tuple(copies)


def add_words(conn_id: str, definition: Mapping[str, Any]) -> list[str]:
    """Return Airflow's own command that adds a connection."""
    words = ["airflow", "connections", "add", conn_id, "--conn-type", str(definition["conn_type"])]
    for name in ("description", "host", "port", "extra"):
        if name in definition:
            words += [f"--conn-{name}", str(definition[name])]
    return words


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _marked(content: bytes) -> bytes:
    """Return a DAG file with a first line by which it is known again."""
    digest = hashlib.sha256(content).hexdigest()
    said = (
        f"# Written by storage-engine init {__version__}; sha256 {digest}. Renewed while it is unchanged.\n"
    )
    return said.encode() + content


def _is_unchanged(content: bytes) -> bool:
    found = _OURS.match(content)
    return found is not None and found[1].decode() == hashlib.sha256(content[found.end() :]).hexdigest()


def _free_name(path: Path) -> Path:
    number = 1
    while (copy := path.with_name(f"{path.name}.before-{number}")).exists():
        number += 1
    return copy


def _write(path: Path, data: bytes, mode: int) -> None:
    with replacing(path) as file:
        file.write(data)
        os.fchmod(file.fileno(), mode)
