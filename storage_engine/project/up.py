"""Runs a project's Airflow until a person ends it."""

from __future__ import annotations

import fcntl
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from storage_engine.core.durable import make_dirs
from storage_engine.exceptions import BadInputError
from storage_engine.project.init import Project, init_project
from storage_engine.project.local_airflow import Interrupted, LocalAirflow, interruptible
from storage_engine.project.sample import unpack_sample_store

LOCK_FILE = ".storage-engine.lock"


@contextmanager
def directory_lock(directory: Path) -> Iterator[None]:
    """Hold ``directory``, creating it when missing; the lock ends with the process at the latest.

    :raises BadInputError: when another process holds it.
    """
    make_dirs(directory)
    with (directory / LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInputError(
                f"{directory}: expected an idle project, found another demo or up running in it. End that "
                "one first, or name another directory."
            ) from None
        yield


_PREFERRED_PORT = 8080


def up(directory: Path, say: Callable[[str], None]) -> int:
    """Start Airflow for the project in ``directory`` and wait for Ctrl-C.

    A missing project is created, with the sample store and the connection to it; one that is there is
    started again as it was left, with whatever was changed in it.

    :param say: receives progress and, once Airflow is ready, address and login.
    :return: exit status: 0 after Ctrl-C, 128 + signal number after another signal.
    :raises StorageEngineError: when Airflow does not start or one of its components ends.
    """
    try:
        with interruptible(), directory_lock(directory):
            project = _project(directory)
            with LocalAirflow(project, free_port(), say) as airflow:
                say(f"address   {airflow.address}")
                say(f"user      {airflow.user}")
                say(f"password  {airflow.password}")
                say(f"store     {project.store_root}")
                say(f"console   {airflow.address}/plugin/storage-engine")
                say("Press Ctrl-C to stop.")
                airflow.wait()
    except Interrupted as interrupted:
        say("stopped; nothing is left running")
        return 0 if interrupted.signal_number == signal.SIGINT else interrupted.exit_status
    return 0


def free_port(preferred: int = _PREFERRED_PORT) -> int:
    """Return the preferred port of the loopback address, or any free one where it is taken; 0: any."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            # A port that an ended server left in TIME_WAIT is free; one that is listened on is not.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise BadInputError("127.0.0.1: expected a free port, found none.")


def _project(directory: Path) -> Project:
    project = Project(directory.resolve())
    if project.settings_file.exists():
        return project
    make_dirs(directory)
    sample = unpack_sample_store(directory.resolve())
    # A person looks at Spark's jobs here, however little there is to do.
    fields = {"spark_from": "0"}
    return init_project(directory, store_root=sample.root, broker_conf=sample.broker_conf, fields=fields)
