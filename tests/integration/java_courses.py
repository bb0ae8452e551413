"""Courses by the broker's own cleaning classes; run as a module, it writes the kept ones again."""

from __future__ import annotations

import gzip
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.courses import KEPT, scenarios
from tests.integration.jars import JAVA_PROJECTS, JavaError, class_path, java

_SECONDS = 1_000


def java_courses(paths: Sequence[Path], work: Path) -> list[str]:
    """Run scenarios through the broker's classes; returns a line of JSON for each.

    :param paths: the scenarios' files, each with a name of its own.
    :param work: an empty directory; the stores are made in it.
    :raises JavaError: Java, Maven or a compiler is missing or fails.
    """
    command = [java(), "-Xmx512m", "-Djdk.attach.allowAttachSelf=true", f"-Duser.home={work}"]
    command += ["-cp", class_path(JAVA_PROJECTS / "cleaning"), "Course", str(work), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    lines = done.stdout.splitlines()
    if done.returncode != 0 or len(lines) != len(paths):
        raise JavaError(f"The broker's classes ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return lines


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        text = "".join(f"{line}\n" for line in java_courses(list(scenarios().values()), Path(made)))
    # No time in it: the same courses are the same bytes.
    KEPT.write_bytes(gzip.compress(text.encode(), mtime=0))
