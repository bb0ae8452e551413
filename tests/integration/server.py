"""A server that runs for a test, on a loopback port of its own."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

START_SECONDS = 180
STOP_SECONDS = 120
FIRST_PORT, LAST_PORT = 11_000, 32_000


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


def free_ports(size: int) -> int:
    """The first of ``size`` consecutive ports that nothing listens on now.

    They lie below those that the kernel gives to connections and to other tests' servers, any of which
    could take one before the server that it is for has started.

    :raises ServerError: there are none.
    """
    for _ in range(200):
        first = random.SystemRandom().randrange(FIRST_PORT, LAST_PORT - size)
        if all(_is_free(port) for port in range(first, first + size)):
            return first
    raise ServerError(f"expected {size} consecutive free ports in [{FIRST_PORT}, {LAST_PORT}), found none")


def free_port() -> int:
    """A port that nothing listens on now."""
    return free_ports(1)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """Whether something accepts connections there."""
    with socket.create_connection((host, port), timeout=30):
        return True
