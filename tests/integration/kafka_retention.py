"""Retention by Kafka's own classes, on logs by chance; run as a module, it writes the kept runs again."""

from __future__ import annotations

import lzma
import subprocess
import tempfile
from pathlib import Path

from tests.integration.jars import JAVA_PROJECTS, JavaError, class_path, java
from tests.kafka.retention_runs import COUNT, KEPT, SEED, VERSIONS

_SECONDS = 600


def java_retention(version: str, seed: int, count: int, work: Path) -> list[str]:
    """Make logs by chance and let a version's UnifiedLog delete; returns a line of JSON for each.

    :param work: an empty directory; the logs are made in it.
    :raises JavaError: Java, Maven or a compiler is missing or fails.
    """
    shared = JAVA_PROJECTS / "kafka"
    project = shared / f"v{version.replace('.', '_')}"
    command = [java(), "-Xmx512m", f"-Duser.home={work}", "-cp", class_path(project, shared)]
    command += ["RandomLogs", str(work), str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    lines = done.stdout.splitlines()
    if done.returncode != 0 or len(lines) != count:
        raise JavaError(f"Kafka's classes ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return lines


if __name__ == "__main__":
    made: list[str] = []
    for one in VERSIONS:
        with tempfile.TemporaryDirectory() as directory:
            made += java_retention(one, SEED, COUNT, Path(directory))
    KEPT.write_bytes(lzma.compress("".join(f"{line}\n" for line in made).encode(), preset=9))
