"""A place where the commands of a page run: its paths lie below a directory of the test's own."""

from __future__ import annotations

import io
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import click
import pytest

from storage_engine.cli.main import cli, main
from storage_engine.project.up import unpack_sample_store
from tests.kafka_fixture import unpack as unpack_kafka_node

PROGRAM = "storage-engine"
_PATH = re.compile(r"(?<![\w./~:-])/(?=(?:data2?|lake2?|backup|new|srv|mnt|etc/broker|etc/kafka)\b)")
"""Directories that the pages speak of."""

_HOLD_LOCK = """
import fcntl, sys

file = open(sys.argv[1], "a")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


class Sandbox:
    """Runs commands for which ``/data`` and the like lie below a directory."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self._environment = monkeypatch
        self.ends: list[subprocess.Popen[bytes]] = []
        (directory / "work").mkdir(parents=True)
        for name in ("data", "data2", "backup", "new", "srv", "mnt/lake"):
            (directory / name).mkdir(parents=True)
        monkeypatch.chdir(directory / "work")

    def end(self) -> None:
        """End the processes that were started for it."""
        for process in self.ends:
            with process:
                process.kill()

    def inside(self, text: str) -> str:
        """Return a text with the pages' paths below the directory."""
        return _PATH.sub(f"{self.directory}/", text)

    def shown(self, text: str) -> str:
        """Return what was printed with the paths of the pages."""
        return text.replace(str(self.directory), "")

    def run(self, line: str) -> tuple[int, str]:
        """Run a command line as a shell would; its exit code and all that it printed come back."""
        words = shlex.split(self.inside(line), comments=True)
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            self._environment.setenv(name, value)
            return 0, ""
        code, printed = self._ours(words) if words[0] == PROGRAM else self._shell(line)
        return code, self.shown(printed)

    def _ours(self, words: list[str]) -> tuple[int, str]:
        """In this process: a page has dozens of commands, and each would import the lake's libraries."""
        out = io.StringIO()
        into = None
        if len(words) > 2 and words[-2] == ">":
            into = Path(words[-1])
            words = words[:-2]
        with redirect_stdout(out), redirect_stderr(out), pytest.raises(SystemExit) as stopped:
            main(words[1:])
        if into is not None:
            into.write_text(out.getvalue())
            out = io.StringIO()
        assert isinstance(stopped.value.code, int)
        return stopped.value.code, out.getvalue()

    def _shell(self, line: str) -> tuple[int, str]:
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        self._environment.setenv("PATH", path)
        done = subprocess.run(
            ["bash", "-c", self.inside(line)], capture_output=True, text=True, timeout=120, check=False
        )
        return done.returncode, done.stdout + done.stderr


def _nothing(sandbox: Sandbox) -> None:
    """No store and no lake."""


def _sample(sandbox: Sandbox) -> None:
    """The sample store of the demo at /data/store, its broker.conf beside it and in /etc/broker; no lake."""
    sample = unpack_sample_store(sandbox.directory / "data")
    (sandbox.directory / "etc" / "broker").mkdir(parents=True)
    shutil.copy(sample.broker_conf, sandbox.directory / "etc" / "broker")


def _archived(sandbox: Sandbox) -> None:
    """The same, and a lake at /lake that has all of its sealed segments."""
    _sample(sandbox)
    for line in (f"{PROGRAM} init-lake --lake /lake", f"{PROGRAM} archive /data/store --lake /lake"):
        assert sandbox.run(line)[0] == 0


def _cleaned(sandbox: Sandbox) -> None:
    """The same after a run that deleted what had expired."""
    _archived(sandbox)
    line = f"{PROGRAM} clean /data/store --lake /lake --manual --undo-window-hours 24 --run-key first"
    assert sandbox.run(line)[0] == 0


def _locked(sandbox: Sandbox) -> None:
    """The sample store and a lake, while another process has the lock that a running broker has."""
    _archived(sandbox)
    lock = sandbox.directory / "data" / "store" / "lock"
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD_LOCK, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    sandbox.ends.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == b"locked\n"


def _kafka(sandbox: Sandbox) -> None:
    """A node of Kafka that was stopped cleanly, with /etc/kafka/server.properties."""
    root = unpack_kafka_node(sandbox.directory / "srv" / "kafka")
    (sandbox.directory / "etc").mkdir(exist_ok=True)
    shutil.copytree(root, sandbox.directory / "etc" / "kafka", ignore=shutil.ignore_patterns("logs", "meta"))


def _kafka_lost(sandbox: Sandbox) -> None:
    """The same, and a lake at /lake that has its sealed segments; the directory of log plain-0 is lost."""
    _kafka(sandbox)
    node = "/etc/kafka/server.properties"
    for line in (
        f"{PROGRAM} init-lake --lake /lake --broker-type kafka",
        f"{PROGRAM} archive {node} --broker-type kafka --lake /lake",
    ):
        code, printed = sandbox.run(line)
        assert code == 0, printed
    shutil.rmtree(sandbox.directory / "srv" / "kafka" / "logs" / "plain-0")


STARTS: dict[str, Callable[[Sandbox], None]] = {
    "nothing": _nothing,
    "sample": _sample,
    "archived": _archived,
    "cleaned": _cleaned,
    "locked": _locked,
    "kafka": _kafka,
    "kafka-lost": _kafka_lost,
}
"""Data that a page's commands begin with, by name."""


def pattern(expected: str) -> re.Pattern[str]:
    """Return what an output has to match: ``…`` alone on a line is any lines, else any text of one."""
    lines = [line.rstrip() for line in expected.strip("\n").splitlines()]
    parts = [
        r"(?:.*\n)*?" if line.strip() == "…" else re.escape(line).replace("…", ".*") + r"[^\S\n]*\n"
        for line in lines
    ]
    return re.compile("".join(parts))


def unknown_words(line: str) -> str | None:
    """Return what is wrong with a command line of ours, such as an unknown option; None: nothing.

    :param line: without the shell's own words, such as pipes.
    """
    words = shlex.split(line.split(" > ")[0].split(" | ")[0], comments=True)[1:]
    if not words or words[0].startswith("-"):
        return None
    group: click.Command = cli
    context = click.Context(cli, info_name=PROGRAM)
    try:
        while isinstance(group, click.Group):
            name, command, words = group.resolve_command(context, words)
            assert command is not None
            group, context = command, click.Context(command, parent=context, info_name=name)
        given, left, _ = group.make_parser(context).parse_args(words)
    except click.UsageError as error:
        return error.format_message()
    missing = [
        p.human_readable_name
        for p in group.params
        if isinstance(p, click.Argument)
        and p.required
        and not isinstance(given.get(p.name or ""), str | tuple)
    ]
    return f"left over: {left}" if left else f"missing: {missing}" if missing else None
