"""Puts a store into an Airflow that is there: DAG files and one option, and never over a person's change.

All changes are known before the first one is made, so that a person can look at them. Made twice, the second
time changes nothing.
"""

from __future__ import annotations

import configparser
import difflib
import hashlib
import json
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
from storage_engine.resources import project_path

SECTION, STORES = "storage_engine", "stores"
EDGE_EXECUTOR = "airflow.providers.edge3.executors.EdgeExecutor"
TEST_VARIABLE = "AIRFLOW__CORE__TEST_CONNECTION"
TEST_IS_OFF = "Testing connections is disabled in Airflow configuration."
"""Airflow's answer to where it is."""

_READABLE = 0o644
"""Of a new DAG file: Airflow's processes may run as another user than who sets it up."""
_OURS = re.compile(rb"# Written by storage-engine init [^\n]*; sha256 ([0-9a-f]{64})\. [^\n]*\n")
"""First line of a DAG file that is ours, with the hash of the rest."""


@dataclass(frozen=True, slots=True)
class OwnAirflow:
    """An Airflow's description of itself.

    :param dags_folder: where it reads DAG files from.
    :param stores: the option that lists the stores, as it is in effect.
    :param by_environment: variables by which the environment sets options, whatever the file has.
    :param executor: the option ``executor``, as it is in effect.
    :param has_edge: the packages that edge workers need are installed.
    :param serves_edge: its API server serves edge workers.
    :param address: of its API server, as other hosts know it; "": it names none.
    :param may_test: whether it tests connections.
    :param connections: ids of those that were asked for, and are there.
    :param spark_connections: ids of those of the type spark, without Airflow's own that no person has
        changed.
    """

    home: Path
    settings_file: Path
    dags_folder: Path
    stores: str
    by_environment: frozenset[str]
    may_test: bool
    connections: frozenset[str]
    spark_connections: frozenset[str] = frozenset()
    executor: str = ""
    has_edge: bool = False
    serves_edge: bool = False
    address: str = ""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of Airflow's settings, and the value that it needs."""

    section: str
    name: str
    value: str

    @property
    def variable(self) -> str:
        """Return the variable by which an environment sets it, and wins over the file."""
        return f"AIRFLOW__{self.section}__{self.name}".upper()


@dataclass(frozen=True, slots=True)
class FileChange:
    """Change of one file.

    :param before: its present content; None: there is no such file.
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


def settings_change(airflow: OwnAirflow, *options: Option) -> tuple[FileChange, ...]:
    """Return the change of the settings file; empty: none is needed.

    :raises BadInputError: Airflow would not start with the file as it is.
    """
    path = airflow.settings_file
    before = path.read_bytes()
    after = before.decode()
    for it in options:
        if parsed(after, path).get(it.section, it.name, fallback="").strip() == it.value:
            continue
        after = with_option(after, it.section, it.name, it.value)
        if parsed(after, path).get(it.section, it.name) != it.value:
            raise BadInputError(
                f"{path}: can't set {it.name} of [{it.section}] in it. Nothing was changed. Set "
                f"{it.variable}={it.value} in the environment of Airflow instead.",
                page=PAGE,
            )
    return (FileChange(path, before, after.encode()),) if after.encode() != before else ()


def stores_with(airflow: OwnAirflow, conn_id: str, default: str, queue: str | None = None) -> str:
    """Return the option that lists the stores with one more.

    :param default: its default; used where there is no such connection.
    :param queue: of the edge worker that sees its disk; None: another worker does.
    """
    without = default if default not in airflow.connections and default != conn_id else ""
    places = {} if queue is None else {"queue": queue, "executor": EDGE_EXECUTOR.rpartition(".")[2]}
    return with_store(airflow.stores, conn_id, without=without, **places)


def edge_options(airflow: OwnAirflow) -> tuple[Option, ...]:
    """Return the settings that an Airflow needs so that edge workers get their tasks."""
    # Those of teams stand behind, each team's with a name.
    common, *of_teams = airflow.executor.split(";")
    listed = [name.strip() for name in common.split(",")]
    is_there = any(name.rpartition(":")[2].rpartition(".")[2] == "EdgeExecutor" for name in listed)
    every = ";".join([",".join([*listed, EDGE_EXECUTOR]), *of_teams])
    added = () if is_there else (Option("core", "executor", every),)
    return added if airflow.serves_edge else (*added, Option("edge", "api_enabled", "True"))


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

    :return: the copies of the earlier files.
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


PAGE = "airflow"
"""Page of the documentation on setting up an Airflow."""


def parsed(text: str, path: Path) -> configparser.ConfigParser:
    """Return a settings file as Airflow reads it.

    :raises BadInputError: Airflow would not start with it; names the line.
    """
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text, source=str(path))
    except configparser.DuplicateSectionError as error:
        raise BadInputError(
            f"{path}, line {error.lineno}: expected the section [{error.section}] once, found it again. No "
            "Airflow starts with it. Nothing was changed. Move the options of the second one into the first "
            "one, and remove it.",
            page=PAGE,
        ) from None
    except configparser.DuplicateOptionError as error:
        raise BadInputError(
            f"{path}, line {error.lineno}: expected the option {error.option} of [{error.section}] once, "
            "found it again. No Airflow starts with it. Nothing was changed. Remove one of the two.",
            page=PAGE,
        ) from None
    except configparser.Error as error:
        raise BadInputError(f"{path}: expected settings of an Airflow: {error}", page=PAGE) from None
    return parser


def with_option(text: str, section: str, option: str, value: str) -> str:
    """Return a settings file in which an option has a value; its section is made where there is none.

    :param text: that :func:`parsed` can read.
    """
    lines = text.splitlines(keepends=True)
    said = f"{option} = {value}\n"
    start = next((i + 1 for i, line in enumerate(lines) if line.strip() == f"[{section}]"), None)
    if start is None:
        gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        return f"{text}{gap}[{section}]\n{said}"
    end = next((i for i in range(start, len(lines)) if lines[i].startswith("[")), len(lines))
    named = re.compile(rf"{re.escape(option)}\s*[=:]", re.IGNORECASE)
    found = next((i for i in range(start, end) if named.match(lines[i])), None)
    if found is None:
        return "".join([*lines[:start], said, *lines[start:]])
    behind = found + 1
    while behind < end and lines[behind].strip() and lines[behind][0] in " \t":
        behind += 1
    return "".join([*lines[:found], said, *lines[behind:]])


def with_store(listed: str, conn_id: str, *, without: str = "", **places: str) -> str:
    """Return the option ``stores`` with one more store, unless it is there.

    :param listed: as :func:`~storage_engine.hooks.configured_stores.configured_stores` reads it.
    :param without: its default where there is no connection; "": nothing.
    :param places: the parts of the store's entry on where its tasks run, such as ``queue``; it gets these
        values.
    :raises BadInputError: it is no list of stores.
    """
    if listed.lstrip().startswith("["):
        try:
            entries = json.loads(listed)
            there = [entry["conn_id"] for entry in entries]
        except (ValueError, TypeError, KeyError):
            raise BadInputError(
                "[storage_engine] stores: expected a JSON list of objects with conn_id, found another text. "
                "Nothing was changed. Correct it first.",
                page=PAGE,
            ) from None
    else:
        names = [name.strip() for name in listed.split(",") if name.strip()]
        if not places:
            return listed if conn_id in names else ",".join([*(it for it in names if it != without), conn_id])
        there = [it for it in names if it != without or it == conn_id]
        entries = [{"conn_id": it} for it in there]
    if conn_id not in there:
        entries.append({"conn_id": conn_id})
    found = [{**entry, **places} if entry["conn_id"] == conn_id else entry for entry in entries]
    return listed if found == entries and conn_id in there else json.dumps(found)
