"""Java programs of the integration tests: their jars and classes, made once and kept in ``target``."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

JAVA_PROJECTS = Path(__file__).resolve().parents[1] / "java"

_MODULES_OF = {"5.5.1": "5.5.0"}
"""Which version of the client and of filters goes with a broker whose own may not be had."""


class JavaError(Exception):
    """Java or Maven is missing, or failed; the message ends with what it last said."""


def java() -> str:
    """The Java launcher: of JAVA_HOME when that is set, else the one on PATH.

    :raises JavaError: when there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not found or not Path(found).exists():
        raise JavaError("No Java found: set JAVA_HOME, or install a JDK (Debian: openjdk-17-jdk-headless).")
    return found


@cache
def class_path(project: Path, shared: Path | None = None) -> str:
    """Jars that a project's ``pom.xml`` names with what they need, and the classes of its Java files.

    :param shared: a directory with further Java files, for projects of several versions.
    :raises JavaError: when Maven or a compiler is missing or fails.
    """
    target = project / "target"
    target.mkdir(exist_ok=True)
    # One process of a parallel run resolves and compiles, the others wait.
    with (target / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        jars = _resolved(project / "pom.xml", target / "classpath.txt")
        directories = [project] if shared is None else [project, shared]
        if sources := sorted(path for directory in directories for path in directory.glob("*.java")):
            return os.pathsep.join([str(_compiled(sources, target, jars)), jars])
        return jars


def broker_jars(version: str) -> str:
    """Jars of a broker of another version than that of the tests' own classes.

    :raises JavaError: when Maven is missing or fails.
    """
    project = JAVA_PROJECTS / "broker_versions"
    target = project / "target"
    target.mkdir(exist_ok=True)
    modules = _MODULES_OF.get(version, version)
    with (target / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _resolved(
            project / "pom.xml",
            target / f"classpath-{version}.txt",
            f"-Drocketmq.version={version}",
            f"-Drocketmq.modules.version={modules}",
        )


def _resolved(pom: Path, resolved: Path, *options: str) -> str:
    if resolved.exists() and resolved.stat().st_mtime >= pom.stat().st_mtime:
        jars = resolved.read_text().strip()
        if all(Path(jar).exists() for jar in jars.split(os.pathsep)):
            return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise JavaError("No Maven found: install it (Debian: maven).")
    command = [maven, "--batch-mode", "--quiet", f"--file={pom}", *options, "dependency:build-classpath"]
    result = subprocess.run(
        [*command, f"-Dmdep.outputFile={resolved}", "-Dmdep.includeScope=runtime"],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if result.returncode != 0:
        raise JavaError(f"Maven failed to resolve {pom}:\n{result.stdout[-4000:]}{result.stderr[-2000:]}")
    return resolved.read_text().strip()


def _compiled(sources: Sequence[Path], target: Path, jars: str) -> Path:
    """Jar of the classes; Java would compile a source file at each start of it."""
    jar = target / "classes.jar"
    newest = max(path.stat().st_mtime for path in [*sources, target / "classpath.txt"])
    if jar.exists() and jar.stat().st_mtime >= newest:
        return jar
    compiler = Path(java()).resolve().with_name("javac")
    if not compiler.exists():
        raise JavaError(f"No {compiler} found: install a JDK (Debian: openjdk-17-jdk-headless).")
    with tempfile.TemporaryDirectory(dir=target) as classes:
        command = [str(compiler), "-nowarn", "-d", classes, "-cp", jars, *map(str, sources)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if result.returncode != 0:
            raise JavaError(f"{compiler} failed:\n{result.stderr[-4000:]}")
        made = Path(shutil.make_archive(f"{classes}/classes", "zip", classes))
        made.replace(jar)
    return jar
