"""Creates a project: DAGs, Spark entry points, suites, Airflow's settings and the connections.

It writes only into the given directory, and never over a file that a person may have changed.
"""

from __future__ import annotations

import base64
import configparser
import io
import json
import os
import secrets
import shutil
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import Any

from storage_engine.commands import Command, Text
from storage_engine.core.durable import make_dirs, write_file
from storage_engine.core.extras import SPARK, SPARK_JAVA, SparkPair
from storage_engine.exceptions import BadInputError
from storage_engine.get_provider_info import form_fields
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.model.settings.store_settings import SETTINGS
from storage_engine.resources import project_path
from storage_engine.spark.session import has_java

SPARK_CONNECTION = "spark_default"
_OWN_CONNECTION = "storage_engine_spark"
"""Id of a new connection if the usual id belongs to Airflow's own connection, which names a YARN cluster."""
SAME_PROOF = "the tasks archive and measure consumer lag by themselves, with the same proof"


@dataclass(frozen=True, slots=True)
class SparkProposal:
    """The proposed place for a store's heavy work.

    :param conn_id: id of the Spark connection for the store's connection, or None for no Spark.
    :param text: where each kind of work runs, or why there is no Spark.
    """

    conn_id: str | None
    is_new: bool
    text: str


def propose_spark(named: str | None, usable: Collection[str], taken: Collection[str]) -> SparkProposal:
    """Propose a Spark connection.

    :param named: id that a person named, or "" if no Spark is wanted, or None if the person named nothing.
    :param usable: ids of connections of the type spark, without Airflow's own unchanged connection.
    :param taken: ids of the existing connections among those that were looked for.
    """
    if named == "":
        return SparkProposal(None, False, f"No Spark, as you chose: {SAME_PROOF}.")
    if named is None and (missing := spark_missing()):
        return SparkProposal(None, False, f"No Spark: {missing}. Until then {SAME_PROOF}.")
    new = (
        _OWN_CONNECTION if SPARK_CONNECTION in taken and SPARK_CONNECTION not in usable else SPARK_CONNECTION
    )
    conn_id = named or (SPARK_CONNECTION if SPARK_CONNECTION in usable else next(iter(sorted(usable)), new))
    return SparkProposal(
        conn_id,
        conn_id not in taken and conn_id not in usable,
        f"Archive and consumer lag run as Spark jobs by the connection {conn_id} if the work reaches one of "
        f"{SETTINGS['spark_from'].empty}. Smaller work runs in the tasks themselves, with the same proof. "
        "The field spark_from sets another limit. With 0, all work runs in Spark.",
    )


def spark_definition(conf: Mapping[str, str]) -> dict[str, object]:
    """Return a connection for Spark on the worker's machine, as ``airflow connections import`` reads it.

    :param conf: settings for Spark, such as ``spark.eventLog.dir``.
    """
    definition: dict[str, object] = {"conn_type": "spark", "host": "local[*]"}
    return {**definition, "extra": json.dumps(dict(conf))} if conf else definition


def wrapped(text: str) -> str:
    """Return a text wrapped for a terminal. Commands in it are not broken."""
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def spark_missing() -> str:
    """Return why no Spark can start here, and the command that installs it; "" if Spark can start."""
    if not SPARK.is_installed:
        return f"Spark isn't installed here. {SPARK.install}, and run this again"
    pair = SparkPair.installed()
    if pair.is_unequal:
        return f"{pair.what}. {pair.install}, and run this again"
    if not has_java():
        return f"no Java 17 or 21 was found here. {SPARK_JAVA.install} or set JAVA_HOME, and run this again"
    return ""


STORE_CONNECTION = "storage_engine_default"
_TREES = ("dags", "plugins", "spark_jobs", "expectations")
_OLDER_DAGS = "older_dags"
_OLDER_DAG_IDS = "older_dag_ids.py"
OLDER_DAGS = {
    "storage_retention": "storage_retention__{store}",
    "storage_forced_cleanup": "storage_forced_cleanup__{store}",
    "storage_flush_checkpoint": "storage_monitor__{store}",
}
"""Old DAG ids, from releases without DAGs for each store, with the DAG that does the same work today."""
_SETTINGS_FILE = "airflow.cfg"
_CONNECTIONS_FILE = "connections.json"
_WORKERS = 10
"""Largest number of tasks at a time, of 27 MiB each. A store that hangs blocks at most nine tasks."""


@dataclass(frozen=True, slots=True)
class Project:
    """Paths in a project directory, which is also its AIRFLOW_HOME."""

    home: Path

    @property
    def settings_file(self) -> Path:
        return self.home / _SETTINGS_FILE

    @property
    def connections_file(self) -> Path:
        return self.home / _CONNECTIONS_FILE

    @property
    def passwords_file(self) -> Path:
        return self.home / "passwords.json"

    @property
    def lake(self) -> Path:
        return self.home / "lake"

    @property
    def reports(self) -> Path:
        return self.home / "reports"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def store_root(self) -> str:
        """The store's root in the connection with which the project was created."""
        return str(json.loads(self.connections[STORE_CONNECTION]["extra"])["root"])

    @property
    def connections(self) -> dict[str, dict[str, Any]]:
        """The connections with which the project was created, by id."""
        content: dict[str, dict[str, Any]] = json.loads(self.connections_file.read_text())
        return content

    @property
    def journal_url(self) -> str:
        return f"sqlite:///{self.home / 'journal.db'}"

    def made_by_us(self) -> tuple[Path, ...]:
        """Return every path that ``init`` and Airflow write in the directory."""
        databases = (f"{name}.db{end}" for name in ("airflow", "journal") for end in ("", "-shm", "-wal"))
        files = (_SETTINGS_FILE, _CONNECTIONS_FILE, "passwords.json", *databases)
        return tuple(self.home / name for name in (*_TREES, *files, "lake", "reports", "logs"))


def init_project(
    directory: Path,
    *,
    store_root: Path | None = None,
    broker_conf: Path | None = None,
    time_zone: str = "UTC",
    fields: Mapping[str, Any] = MappingProxyType({}),
    spark_conf: Mapping[str, str] = MappingProxyType({}),
    older_dag_ids: bool = False,
) -> Project:
    """Create a project that Airflow can run without changes.

    :param directory: directory of the project. It is created if it is missing.
    :param store_root: the broker's storePathRootDir, for the connection, or None for a placeholder.
    :param time_zone: the zone in which the broker reads ``deleteWhen``.
    :param older_dag_ids: add DAGs with the ids of :data:`OLDER_DAGS`, under which active runs can end.
    :raises BadInputError: the directory already has one of the files.
    """
    project = Project(directory.resolve())
    existing = [p for p in (*(project.home / t for t in _TREES), project.settings_file) if p.exists()]
    if existing:
        raise BadInputError(
            f"{project.home}: expected no project in this directory, found {existing[0].name}. Nothing was "
            "written. Choose another directory, or remove this project first."
        )
    make_dirs(project.home)
    for tree in _TREES:
        shutil.copytree(
            project_path(tree), project.home / tree, ignore=shutil.ignore_patterns("__pycache__", ".*")
        )
    if older_dag_ids:
        shutil.copy(project_path(_OLDER_DAGS) / _OLDER_DAG_IDS, project.home / "dags")
    write_file(project.settings_file, _settings(project).encode())
    # If no Spark can start, there is no connection for it.
    spark = propose_spark(None, (), ()).conn_id
    values = store_fields(store_root, broker_conf, time_zone) | {"spark_conn_id": spark, **fields}
    connections = {STORE_CONNECTION: store_definition(values)}
    if spark is not None:
        connections[spark] = spark_definition(spark_conf)
    write_file(project.connections_file, (json.dumps(connections, indent=2) + "\n").encode())
    from storage_engine.lake.move.making import make_lake

    make_lake(LakeConfig.local(project.lake))
    return project


def next_steps(project: Project, *, store_is_known: bool) -> str:
    """Return a text about a new project and the next steps."""
    edit = (
        ""
        if store_is_known
        else f"\n{STORE_CONNECTION} names no store yet: set its root in {project.connections_file}.\n"
    )
    ids = {old: new.format(store=STORE_CONNECTION) for old, new in OLDER_DAGS.items()}
    width = max(map(len, ids))
    listed = "".join(f"  {old:{width}}  {new}\n" for old, new in ids.items())
    file = project.home / "dags" / _OLDER_DAG_IDS
    runs = (
        f"The file {file} lets active runs end under their old ids. Remove it when they have ended.\n"
        if file.exists()
        else Text("To let an active run end under its old id: ", Command("init", "--older-dag-ids"), "\n")
    )
    text = f"DAGs from before each store had its own DAGs, and the DAGs that do their work now:\n{listed}"
    return Text(
        f"Created a project in {project.home}:\n"
        "  dags/             the DAGs of each store and each lake. These run on a schedule:\n"
        "                    storage_monitor__STORE, storage_flush_checkpoint__STORE and\n"
        "                    storage_maintenance__LAKE. These run when they are due:\n"
        "                    storage_retention__STORE and storage_archive__STORE. A person starts\n"
        "                    storage_forced_cleanup__STORE. These run in Spark:\n"
        "                    storage_validate_rows__STORE and storage_retention_report__STORE.\n"
        "  plugins/          the console, where the provider's wheel isn't installed\n"
        "  spark_jobs/       what spark-submit runs\n"
        "  expectations/     the rules by which a store is validated\n"
        f"  {_SETTINGS_FILE}       Airflow's settings; [storage_engine] lists the stores\n"
        f"  {_CONNECTIONS_FILE}  the connections: {', '.join(project.connections)}\n"
        f"{edit}\n"
        "Start a separate Airflow for this project, on the loopback address, until Ctrl-C:\n"
        "  ",
        Command("up", quote(str(project.home))),
        f"\n\n{wrapped(propose_spark(None, (), ()).text)}\n\n"
        "Or use your own Airflow. Then you don't need this project:\n"
        "  ",
        Command("init --airflow"),
        "\n\n",
        text,
        runs,
    )


def store_fields(
    store_root: Path | None, broker_conf: Path | None, time_zone: str | None, *, is_here: bool = True
) -> dict[str, Any]:
    """Return the fields of a store's connection; with a placeholder if no store is given.

    Airflow's form for editing shows only the fields that a connection has. So the connection gets all fields.

    :param is_here: whether the store is on this host, so that its links and files can be read.
    """
    # Imported only here, because a command's help doesn't need it.
    from storage_engine.brokers import broker_of, default_broker

    place = Path.resolve if is_here else Path.absolute
    broker = broker_of(store_root) if store_root and is_here else default_broker()
    return {
        **{name: field["schema"].get("default") for name, field in form_fields().items()},
        **({} if broker == default_broker() else {"broker_type": broker}),
        "root": str(place(store_root)) if store_root else "/path/to/store",
        "broker_conf": str(place(broker_conf)) if broker_conf else None,
        "time_zone": time_zone,
    }


def store_definition(fields: Mapping[str, Any]) -> dict[str, object]:
    """Return a store's connection, in the format of ``airflow connections import``."""
    return {
        "conn_type": "storage_engine",
        "description": "The message store whose retention is managed",
        # Airflow's form tests with port 0, and refuses a connection without a port.
        "port": 0,
        "extra": json.dumps(fields),
    }


def _settings(project: Project) -> str:
    """Return the settings of Airflow that differ from its defaults. It uses only the loopback address."""
    address = "http://127.0.0.1:8080"
    settings = configparser.RawConfigParser()
    settings.read_dict(
        {
            "core": {
                "dags_folder": str(project.home / "dags"),
                "load_examples": "False",
                "executor": "LocalExecutor",
                "parallelism": str(_WORKERS),
                "fernet_key": base64.urlsafe_b64encode(os.urandom(32)).decode(),
                "test_connection": "Enabled",
                "simple_auth_manager_users": "admin:admin",
                "simple_auth_manager_passwords_file": str(project.passwords_file),
                "execution_api_server_url": f"{address}/execution/",
            },
            "database": {"sql_alchemy_conn": f"sqlite:///{project.home / 'airflow.db'}"},
            "api": {
                "host": "127.0.0.1",
                "port": "8080",
                "base_url": address,
                "workers": "1",
                "secret_key": secrets.token_urlsafe(32),
            },
            "api_auth": {"jwt_secret": secrets.token_urlsafe(48)},
            "logging": {"base_log_folder": str(project.logs)},
            "usage_data_collection": {"enabled": "False"},
            "storage_engine": {
                "stores": STORE_CONNECTION,
                "journal_url": project.journal_url,
                "lake": str(project.lake),
                "report_dir": str(project.reports),
            },
        }
    )
    text = io.StringIO()
    settings.write(text)
    return text.getvalue()
