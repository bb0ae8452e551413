"""Runs a project's Airflow until a person ends it."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from storage_engine.core.durable import make_dirs
from storage_engine.exceptions import BadInputError
from storage_engine.project.init import Project, init_project
from storage_engine.project.local_airflow import Interrupted, LocalAirflow, interruptible
from storage_engine.resources import project_path

RESERVED_HOURS = 72
_ARCHIVE = ("sample/rocketmq-store.tar.xz", "tests/fixtures/rocketmq/clean-stop.tar.xz")
"""Its names in the wheel and in a checkout."""
_OLD_SEGMENTS = 5
_DAYS_OLD = 10


@dataclass(frozen=True, slots=True)
class SampleStore:
    """An unpacked sample.

    :param root: its storePathRootDir.
    :param old: segments that are past their reserved time, oldest first.
    """

    root: Path
    broker_conf: Path
    old: tuple[Path, ...]


def unpack_sample_store(directory: Path) -> SampleStore:
    """Unpack the sample into ``directory/store`` and date its oldest segments back.

    Only modification times are set, since a broker tells a segment's age by nothing else; no byte of
    what the broker wrote is touched. The other segments are as old as the unpacking.
    """
    with tarfile.open(project_path(*_ARCHIVE)) as archive:
        archive.extractall(directory, filter="data")
    (unpacked,) = (path for path in directory.iterdir() if (path / "commitlog").is_dir())
    root = unpacked.rename(directory / "store")
    segments = sorted((root / "commitlog").iterdir())
    old = segments[:_OLD_SEGMENTS]
    now = time.time()
    for path in segments:
        modified = now - _DAYS_OLD * 86400 if path in old else now
        os.utime(path, (modified, modified))
    broker_conf = directory / "broker.conf"
    broker_conf.write_text(_broker_conf(root))
    return SampleStore(root=root, broker_conf=broker_conf, old=tuple(old))


def _broker_conf(root: Path) -> str:
    """Every hour is a deleteWhen hour, so that the sample's window is open whenever somebody looks."""
    hours = ";".join(f"{hour:02}" for hour in range(24))
    return (
        "brokerClusterName=DefaultCluster\n"
        "brokerName=broker-a\n"
        "brokerId=0\n"
        f"storePathRootDir={root}\n"
        f"deleteWhen={hours}\n"
        f"fileReservedTime={RESERVED_HOURS}\n"
    )


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
