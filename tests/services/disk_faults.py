"""Commands whose disk fails: each runs in a process of its own, whose calls disk_faults.c lets fail."""

from __future__ import annotations

import ctypes
import errno
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".c")


@dataclass(frozen=True, slots=True)
class Fault:
    """Calls that fail.

    :param call: write, read, fsync, rename, create, open, mkdir or unlink.
    :param error: by the name of its number.
    :param number: the first of them that fails, counted from 1.
    """

    call: str
    error: str
    number: int


@dataclass(frozen=True, slots=True)
class Failing:
    """A command, and what fails below a path.

    :param copies: directories that are made first, or made again: from where, and where.
    """

    words: tuple[str, ...]
    below: str
    fault: Fault
    copies: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """:param calls: that failed."""

    exit_code: int
    err: str
    calls: int


def compiled(directory: Path) -> Path:
    """Compile what lets calls fail."""
    library = directory / "disk_faults.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"], check=True)
    return library


def run_failing(library: Path, commands: Iterable[Failing]) -> list[Failed]:
    """Run commands one after the other, each forked from a process that has their libraries."""
    asked = [asdict(one) for one in commands]
    done = subprocess.run(
        [sys.executable, "-m", "tests.services.disk_faults", str(library)],
        input=json.dumps(asked),
        env=os.environ | {"LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
    )
    assert done.returncode == 0, done.stderr
    return [Failed(**json.loads(line)) for line in done.stdout.splitlines()]


def _run(library: ctypes.CDLL, words: Sequence[str], below: str, fault: Fault) -> Failed:
    from storage_engine.cli.main import main

    reader, writer = os.pipe()
    counts, counter = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(writer, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 70
        try:
            arguments = (below.encode(), fault.call.encode(), getattr(errno, fault.error), fault.number)
            library.disk_faults_begin(*arguments)
            main(list(words))
        except SystemExit as ended:
            code = int(ended.code or 0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os.write(counter, str(library.disk_faults_count()).encode())
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    os.close(counter)
    with os.fdopen(reader) as errors, os.fdopen(counts) as count:
        err, calls = errors.read(), int(count.read() or 0)
    _, status = os.waitpid(child, 0)
    return Failed(os.waitstatus_to_exitcode(status), err, calls)


def _main(path: str) -> None:
    for name in ("retention.steps", "retention.doctor.overview", "lake.move.describing", "cycle"):
        importlib.import_module(f"storage_engine.{name}")
    library = ctypes.CDLL(path)
    for one in json.load(sys.stdin):
        for source, target in one["copies"]:
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target, symlinks=True)
        failed = _run(library, one["words"], one["below"], Fault(**one["fault"]))
        sys.stdout.write(json.dumps(asdict(failed)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main(sys.argv[1])
