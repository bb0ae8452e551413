"""A server that runs for a test, on a loopback port of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

START_SECONDS = 60
STOP_SECONDS = 30


class ServerError(Exception):
    """It ended, or did not serve in time; the message ends with what it last said."""


class Server:
    """A process that serves.

    :param log: receives what it prints.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._log = log
        if setpriv := shutil.which("setpriv"):
            # Even a test run that is killed leaves nothing behind.
            command = [setpriv, "--pdeathsig", "KILL", *command]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **(environment or {})},
            )

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Poll ``ready`` until it is true; an OSError counts as false.

        :raises ServerError: the process ended, or START_SECONDS passed; it is gone then.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if ready():
                    return
            except OSError:
                pass
            time.sleep(0.05)
        said = self._log.read_text(errors="replace")[-3000:]
        ended = self.process.poll()
        self.kill()
        raise ServerError(f"{self.process.args!r} does not serve (exit status {ended}):\n{said}")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ask it to end, and wait until it has."""
        self.process.send_signal(how)
        self.process.wait(STOP_SECONDS)

    def kill(self) -> None:
        """End it now, as a power cut would."""
        self.process.kill()
        self.process.wait(STOP_SECONDS)


def free_port() -> int:
    """A loopback port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Whether something accepts connections there."""
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
