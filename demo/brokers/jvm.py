"""What a real broker takes: a JDK, its jars by Maven, free ports, and the end of its log."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from storage_engine.exceptions import BadInputError, StorageEngineError

HOST = "127.0.0.1"
_MAVEN_SECONDS = 900
JAVA = Path(__file__).parents[2] / "tests" / "java"
"""Java programs, and the Maven projects that name the jars of brokers."""


@dataclass(frozen=True, slots=True)
class Jars:
    """:param java: the launcher of a JDK.
    :param class_path: the jars of a broker and what it needs, separated as Java wants it.
    """

    java: str
    class_path: str


def maven_jars(
    pom: Path, listed: Path, whose: str, properties: Mapping[str, str] = MappingProxyType({})
) -> Jars:
    """Have Maven bring the jars that a project names; it keeps them in its own repository for the next time.

    :param listed: receives their paths.
    :param whose: name of the broker.
    :param properties: of the project, over its own.
    :raises BadInputError: no JDK or no Maven is installed.
    :raises StorageEngineError: Maven failed.
    """
    java, maven = _jdk(), shutil.which("mvn")
    if maven is None:
        raise BadInputError(
            "A broker's jars come by Maven: expected mvn on PATH, found none. Install it (Debian: maven)."
        )
    command = [maven, "--batch-mode", "--quiet", f"--file={pom}"]
    command += [f"-D{name}={value}" for name, value in properties.items()]
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={listed}", "-Dmdep.includeScope=runtime"]
    result = subprocess.run(
        [*command, *goal], capture_output=True, text=True, timeout=_MAVEN_SECONDS, check=False
    )
    if result.returncode != 0:
        raise StorageEngineError(
            f"Maven ended with status {result.returncode}, expected 0. It has to reach a repository with "
            f"{whose}'s jars the first time. It said:\n{result.stdout[-3000:]}{result.stderr[-1000:]}"
        )
    return Jars(java, listed.read_text().strip())


def _jdk() -> str:
    """The launcher of JAVA_HOME's JDK, else of the one on PATH; a bare runtime can't compile the load."""
    home = os.environ.get("JAVA_HOME")
    compiler = str(Path(home) / "bin" / "javac") if home else shutil.which("javac")
    if not compiler or not Path(compiler).exists():
        raise BadInputError(
            f"A real broker needs a JDK, version 17 or newer: expected {compiler or 'javac on PATH'}, found "
            "none. Install one (Debian: openjdk-17-jdk-headless), or set JAVA_HOME."
        )
    return str(Path(compiler).resolve().with_name("java"))


def free_ports(size: int) -> int:
    """The first of so many consecutive loopback ports that are free now."""
    for _ in range(200):
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            first = int(probe.getsockname()[1])
        if first + size <= 65535 and all(_is_free(port) for port in range(first, first + size)):
            return first
    raise BadInputError(f"{HOST}: expected {size} consecutive free ports, found none.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def write_properties(path: Path, values: Mapping[str, object]) -> None:
    """Write a broker's settings, one a line."""
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))


def tail(path: Path, lines: int = 15) -> str:
    """Return the last lines of a log, for a message."""
    text = path.read_text(errors="replace") if path.exists() else ""
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:])
