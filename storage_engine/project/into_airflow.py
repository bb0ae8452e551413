"""Adds a store to an existing Airflow: DAG files and one option. It never overwrites a person's change.

All changes are computed before the first is made, so a person can review them. A repeat changes nothing.
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
"""Airflow's answer in the form's test if testing connections is off."""

_READABLE = 0o644
"""Mode of a new DAG file. Airflow's processes may run as another user than the person who sets it up."""
_OURS = re.compile(rb"# Written by storage-engine init [^\n]*; sha256 ([0-9a-f]{64})\. [^\n]*\n")
"""First line of our DAG files. It has the hash of the rest of the file."""


@dataclass(frozen=True, slots=True)
class OwnAirflow:
    """Facts about an Airflow.

    :param stores: the effective value of the option that lists the stores.
    :param by_environment: environment variables that set options. They win over the settings file.
    :param executor: the effective value of the option ``executor``.
    :param address: address of its API server, as other hosts know it, or "" if the settings name none.
    :param connections: ids of the existing connections among those that were looked for.
    :param spark_connections: ids of connections of the type spark, without Airflow's own unchanged one.
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
    """An option of Airflow's settings, with the needed value."""

    section: str
    name: str
    value: str

    @property
    def variable(self) -> str:
        """Return the environment variable for this option. It wins over the file."""
        return f"AIRFLOW__{self.section}__{self.name}".upper()


@dataclass(frozen=True, slots=True)
class FileChange:
    """Change of one file.

    :param before: content of the file before the change, or None if the file doesn't exist.
    """

    path: Path
    before: bytes | None
    after: bytes

    @property
    def is_of_dag(self) -> bool:
        return self.path.suffix == ".py"

    @property
    def text(self) -> str:
        """Return the change for a person. Only changed lines of settings are shown: others may be secret."""
        if self.before is None:
            return f"new      {self.path}"
        if self.is_of_dag:
            return f"renewed  {self.path}"
        before, after = (data.decode().splitlines() for data in (self.before, self.after))
        lines = difflib.unified_diff(before, after, lineterm="", n=0)
        return "\n".join((f"changed  {self.path}", *(f"  {line}" for line in [*lines][3:])))


def settings_change(airflow: OwnAirflow, *options: Option) -> tuple[FileChange, ...]:
    """Return the change of the settings file, or nothing if no change is needed.

    :raises BadInputError: Airflow can't start with the present file.
    """
    path = airflow.settings_file
    before = path.read_bytes()
    after = before.decode()
    for option in options:
        if parsed(after, path).get(option.section, option.name, fallback="").strip() == option.value:
            continue
        after = with_option(after, option.section, option.name, option.value)
        if parsed(after, path).get(option.section, option.name) != option.value:
            raise BadInputError(
                f"{path}: can't set the option {option.name} of [{option.section}] in this file. Nothing was "
                f"changed. Set {option.variable}={option.value} in the environment of Airflow instead.",
                page=PAGE,
            )
    return (FileChange(path, before, after.encode()),) if after.encode() != before else ()


def stores_with(airflow: OwnAirflow, conn_id: str, default: str, queue: str | None = None) -> str:
    """Return the option that lists the stores, with one more store.

    :param default: the store in the option's default value. It is left out if no connection has this id.
    :param queue: queue of the edge worker that sees the store's disk, or None if no edge worker sees it.
    """
    without = default if default not in airflow.connections and default != conn_id else ""
    places = {} if queue is None else {"queue": queue, "executor": EDGE_EXECUTOR.rpartition(".")[2]}
    return with_store(airflow.stores, conn_id, without=without, **places)


def edge_options(airflow: OwnAirflow) -> tuple[Option, ...]:
    """Return the settings with which edge workers get their tasks."""
    # The executors of teams come after the common ones, with the team's name.
    common, *of_teams = airflow.executor.split(";")
    listed = [name.strip() for name in common.split(",")]
    is_listed = any(name.rpartition(":")[2].rpartition(".")[2] == "EdgeExecutor" for name in listed)
    every = ";".join([",".join([*listed, EDGE_EXECUTOR]), *of_teams])
    added = () if is_listed else (Option("core", "executor", every),)
    return added if airflow.serves_edge else (*added, Option("edge", "api_enabled", "True"))


def dag_changes(folder: Path, *, older_dag_ids: bool) -> tuple[FileChange, ...]:
    """Return the DAG files that are new or renewed.

    :raises BadInputError: a file isn't ours, or a person has changed it. The error names all such files.
    """
    files = sorted(project_path("dags").glob("*.py"))
    if older_dag_ids:
        files += sorted(project_path("older_dags").glob("*.py"))
    changes = [
        FileChange(folder / file.name, _read(folder / file.name), _marked(file.read_bytes()))
        for file in files
    ]
    plain = {file.name: file.read_bytes() for file in files}
    foreign = [
        edit.path.name
        for edit in changes
        if edit.before is not None and edit.before != plain[edit.path.name] and not _is_unchanged(edit.before)
    ]
    if foreign:
        raise BadInputError(
            f"{folder}: expected no DAG files with these names, or unchanged files of an earlier init, found "
            f"other files: {', '.join(foreign)}. Nothing was changed. Rename or remove them first.",
            page=PAGE,
        )
    return tuple(edit for edit in changes if edit.before != edit.after)


def make(changes: Sequence[FileChange]) -> tuple[Path, ...]:
    """Make the changes. Each file is replaced in one step. Earlier settings files are kept as copies.

    :return: the copies, which lie beside the new files.
    :raises BadInputError: a file has changed since it was read.
    """
    for change in changes:
        if _read(change.path) != change.before:
            raise BadInputError(
                f"{change.path}: expected the content that was read before, found other content. Nothing was "
                "changed by this command. Run it again.",
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
    """Return a DAG file with a first line that marks it as ours."""
    digest = hashlib.sha256(content).hexdigest()
    mark = (
        f"# Written by storage-engine init {__version__}; sha256 {digest}. Renewed while it is unchanged.\n"
    )
    return mark.encode() + content


def _is_unchanged(content: bytes) -> bool:
    match = _OURS.match(content)
    return match is not None and match[1].decode() == hashlib.sha256(content[match.end() :]).hexdigest()


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
"""Page of the documentation on how to set up an Airflow."""


def parsed(text: str, path: Path) -> configparser.ConfigParser:
    """Return a settings file, parsed as Airflow parses it.

    :raises BadInputError: Airflow can't start with the file. The error names the line.
    """
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text, source=str(path))
    except configparser.DuplicateSectionError as error:
        raise BadInputError(
            f"{path}, line {error.lineno}: expected the section [{error.section}] once, found it twice. "
            "Airflow can't start with this file. Nothing was changed. Move the options of the second section "
            "into the first one, and remove the second one.",
            page=PAGE,
        ) from None
    except configparser.DuplicateOptionError as error:
        raise BadInputError(
            f"{path}, line {error.lineno}: expected the option {error.option} of [{error.section}] once, "
            "found it twice. Airflow can't start with this file. Nothing was changed. Remove one of the two "
            "lines.",
            page=PAGE,
        ) from None
    except configparser.Error as error:
        raise BadInputError(f"{path}: expected settings of an Airflow: {error}", page=PAGE) from None
    return parser


def with_option(text: str, section: str, option: str, value: str) -> str:
    """Return a settings file in which an option has a value. If the section is missing, it is added.

    :param text: text of the settings file, which :func:`parsed` can read.
    """
    lines = text.splitlines(keepends=True)
    setting = f"{option} = {value}\n"
    start = next((i + 1 for i, line in enumerate(lines) if line.strip() == f"[{section}]"), None)
    if start is None:
        gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        return f"{text}{gap}[{section}]\n{setting}"
    end = next((i for i in range(start, len(lines)) if lines[i].startswith("[")), len(lines))
    pattern = re.compile(rf"{re.escape(option)}\s*[=:]", re.IGNORECASE)
    index = next((i for i in range(start, end) if pattern.match(lines[i])), None)
    if index is None:
        return "".join([*lines[:start], setting, *lines[start:]])
    behind = index + 1
    while behind < end and lines[behind].strip() and lines[behind][0] in " \t":
        behind += 1
    return "".join([*lines[:index], setting, *lines[behind:]])


def with_store(listed: str, conn_id: str, *, without: str = "", **places: str) -> str:
    """Return the option ``stores`` with one more store. If the store is in it already, it isn't added again.

    :param listed: present value, in the format of
        :func:`~storage_engine.hooks.configured_stores.configured_stores`.
    :param without: default id to leave out, because it has no connection, or "" for none.
    :param places: fields of the store's entry that say where its tasks run, such as ``queue``.
    :raises BadInputError: the value isn't a list of stores.
    """
    if listed.lstrip().startswith("["):
        try:
            entries = json.loads(listed)
            conn_ids = [entry["conn_id"] for entry in entries]
        except (ValueError, TypeError, KeyError):
            raise BadInputError(
                "[storage_engine] stores: expected a JSON list of objects with conn_id, found another text. "
                "Nothing was changed. Correct the option first.",
                page=PAGE,
            ) from None
    else:
        names = [name.strip() for name in listed.split(",") if name.strip()]
        if not places:
            remaining = [name for name in names if name != without]
            return listed if conn_id in names else ",".join([*remaining, conn_id])
        conn_ids = [name for name in names if name != without or name == conn_id]
        entries = [{"conn_id": name} for name in conn_ids]
    if conn_id not in conn_ids:
        entries.append({"conn_id": conn_id})
    changed = [{**entry, **places} if entry["conn_id"] == conn_id else entry for entry in entries]
    return listed if changed == entries and conn_id in conn_ids else json.dumps(changed)
