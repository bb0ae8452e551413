"""How a test starts a Java class of the broker, its name server or their clients.

What they need first, 6,000 classes, is archived once in ``target``: a JVM that maps them starts with a third
of the work. An archive of other jars, options or Java is made again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.integration.jars import JAVA_PROJECTS, JavaError, broker_jars, class_path, java
from tests.integration.server import free_ports

OPTIONS = (
    "-Xms256m",
    "-Xmx512m",
    "-XX:MaxDirectMemorySize=512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "-XX:+IgnoreUnrecognizedVMOptions",
    # Making up its keys takes a start a while; who asks for TLS says so.
    "-Dtls.server.mode=disabled",
)
_REHEARSAL_SECONDS = 180


def java_command(
    home: Path,
    main_class: str,
    arguments: Sequence[str],
    options: Sequence[str] = (),
    version: str | None = None,
) -> list[str]:
    """The command that runs a main class.

    :param home: the user's home directory for it.
    :param options: of the JVM, beyond :data:`OPTIONS`, and over them.
    :param version: of the broker whose class it is; None: the one that the tests' own classes are for.
    :raises JavaError: Java, Maven or a compiler is missing or fails.
    """
    if version is not None:
        jvm = (java(), *OPTIONS, f"-Duser.home={home}", *options)
        # The tests' own classes, of which that version's jars have what they call.
        classes = class_path(JAVA_PROJECTS).partition(os.pathsep)[0]
        return [*jvm, "-cp", f"{classes}{os.pathsep}{broker_jars(version)}", main_class, *arguments]
    return _command(home, [class_archive_option(), *options], main_class, arguments)


def class_archive_option() -> str:
    """The option that maps the archive; a JVM of other jars ignores it.

    :raises JavaError: Java, Maven or a compiler is missing or fails.
    """
    return f"-XX:SharedArchiveFile={_class_archive()}"


def write_properties(path: Path, values: Mapping[str, object]) -> None:
    """Write a name server's or broker's settings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (f"{key}={str(v).lower() if isinstance(v, bool) else v}\n" for key, v in values.items())
    path.write_text("".join(lines), encoding="utf-8")


def _command(home: Path, options: Sequence[str], main_class: str, arguments: Sequence[str]) -> list[str]:
    path = ("-cp", class_path(JAVA_PROJECTS))
    return [java(), *OPTIONS, f"-Duser.home={home}", *options, *path, main_class, *arguments]


@cache
def _class_archive() -> Path:
    """Made by the first process that needs it, while others wait."""
    launcher, jars = Path(java()).resolve(), class_path(JAVA_PROJECTS)
    seen = [(path, path.stat().st_mtime_ns) for path in [launcher, *map(Path, jars.split(os.pathsep))]]
    target = JAVA_PROJECTS / "target"
    archive = target / f"{hashlib.sha256(repr((seen, OPTIONS)).encode()).hexdigest()[:16]}.jsa"
    with (target / ".archive-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            for old in target.glob("*.jsa"):
                old.unlink()
            with tempfile.TemporaryDirectory(dir=target) as work:
                _rehearse(Path(work)).replace(archive)
    return archive


def _rehearse(work: Path) -> Path:
    """Run all of it once; returns the archive of the classes that it needed."""
    archive, store = work / "classes.jsa", work / "store"
    first = free_ports(5)
    name_server, broker = f"127.0.0.1:{first + 4}", first + 2
    write_properties(work / "name-server.conf", {"listenPort": first + 4, "bindAddress": "127.0.0.1"})
    write_properties(
        work / "broker.conf",
        {
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            "mappedFileSizeCommitLog": 1 << 20,
            "mappedFileSizeConsumeQueue": 6000,
            "timerWheelEnable": False,
            "brokerName": "rehearsal",
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "namesrvAddr": name_server,
            "listenPort": broker,
            "haListenPort": broker + 1,
        },
    )
    load = {
        "name-server": name_server,
        "broker": f"127.0.0.1:{broker}",
        "record": work / "load.jsonl",
        "topics": "orders",
        "group": "rehearsal",
    }
    arguments = [*(str(work / f"{name}.conf") for name in ("name-server", "broker"))]
    arguments += [f"{key}={value}" for key, value in load.items()]
    done = subprocess.run(
        _command(work, [f"-XX:ArchiveClassesAtExit={archive}"], "Rehearsal", arguments),
        cwd=work,
        env={**os.environ, "ROCKETMQ_HOME": str(work)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_REHEARSAL_SECONDS,
        check=False,
    )
    if done.returncode != 0 or not archive.exists():
        raise JavaError(f"A rehearsal of the broker ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return archive
