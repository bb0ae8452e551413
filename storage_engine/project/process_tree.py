"""Starts processes whose whole offspring can be found and ended again.

Airflow's components fork executors, task supervisors and a JVM, some in sessions of their own, so
neither the parent's id nor a process group finds them all once one in between has died. Every process
started here inherits a mark in its environment, and the mark is what is looked for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

MARK = "STORAGE_ENGINE_PROCESS_TREE"

# A process that sets its own title otherwise writes it over its environment, and the mark with it.
_KEEP_ENVIRONMENT = {"SPT_NOENV": "1"}

_ASK_SECONDS = 8.0
"""How long a component may take to end by itself; a scheduler would wait for its running tasks."""
_KILL_SECONDS = 10.0


class ProcessTree:
    """Some processes and everything they start."""

    def __init__(self) -> None:
        self._mark = uuid.uuid4().hex
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """Start ``command`` in a session of its own, so that a terminal's Ctrl-C reaches only us."""
        with log.open("ab") as output:
            self._started[name] = subprocess.Popen(
                command,
                env={**environment, **_KEEP_ENVIRONMENT, MARK: self._mark},
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self._started[name]

    def wait(self, name: str) -> int:
        """Wait for a started process that ends by itself.

        :return: its exit status.
        """
        return self._started.pop(name).wait()

    def ended(self) -> tuple[str, ...]:
        """Names of started processes that are no longer running."""
        return tuple(name for name, process in self._started.items() if process.poll() is not None)

    def living(self) -> list[psutil.Process]:
        """Every process that carries our mark, whoever its parent is now."""
        found = []
        for pid in psutil.pids():
            if pid == os.getpid():
                continue
            try:
                # Not process_iter: it keeps what it knew of a process number that is used again.
                process = psutil.Process(pid)
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, OSError):
                # Gone in the meantime, or another user's and so not ours.
                continue
        return found

    def ask(self) -> None:
        """Ask the started processes to end."""
        for process in self._started.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)

    def stop(self, *, politely: bool = True) -> None:
        """End every process of the tree: ask the started ones, then kill whatever is left.

        :param politely: give the started ones time to end by themselves.
        """
        self.ask()
        self._wait_for_started(_ASK_SECONDS if politely else 0)
        deadline = time.monotonic() + _KILL_SECONDS
        while (living := self.living()) and time.monotonic() < deadline:
            for orphan in living:
                try:
                    orphan.kill()
                except psutil.NoSuchProcess:
                    continue
            # Reaps our own children; others are reaped by their new parent.
            self._wait_for_started(0.5)
        self._started.clear()

    def _wait_for_started(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while any(p.poll() is None for p in self._started.values()) and time.monotonic() < deadline:
            time.sleep(0.05)
