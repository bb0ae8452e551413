"""The package as it was when it was frozen, in a process of its own: it writes what today's code takes over.

A zip of tests/fixtures/releases is extracted once, and stays in pytest's cache, with its compiled kernels.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any

from tests.services.command_line import Outcome
from tests.services.freeze_release import RELEASES

DRIVER = Path(__file__).with_name("released_driver.py")
KERNELS = Path("storage_engine/rocketmq")
SHARED = ("crc.py", "native.py")
"""What kernels are compiled by and call, which lay in their folder once."""
TODAY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Kill:
    """Die by SIGKILL before a durable operation of a step.

    :param step: as the command names its steps, or ``finish``; one lasts until the next one begins. See
        released_driver.STEPS.
    :param operation: fsync, unlink, rename, replace, link, mkdir, commit (of a database).
    :param nth: which one of these in the step, counted from 0.
    :param path: only those on a path that contains this; a commit has none.
    """

    step: str
    operation: str
    nth: int = 0
    path: str = ""


@dataclass(frozen=True)
class Released:
    """A frozen package that waits for requests; see :func:`released_package`."""

    name: str
    process: subprocess.Popen[str]

    def cli(self, *words: object, exit_code: int = 0) -> Outcome:
        """Run a command to its end, which has to be this exit code."""
        outcome = Outcome(**self.call("cli", words=[str(word) for word in words], kill=None))
        assert outcome.exit_code == exit_code, f"{words}: {outcome}"
        return outcome

    def killed_cli(self, kill: Kill, *words: object) -> None:
        """Run a command until it dies where ``kill`` says; it must not end before."""
        answer = self._ask("cli", words=[str(word) for word in words], kill=asdict(kill))
        assert answer == {"signal": SIGKILL}, f"{words} did not die at {kill}: {answer}"

    def make_plan(self, store: Path, lake: Path, run_key: str, max_segments: int | None = None) -> str:
        """Store the plan of a run, with nothing of it done; returns its digest."""
        digest: str = self.call(
            "make_plan", store=str(store), lake=str(lake), run_key=run_key, max_segments=max_segments
        )
        return digest

    def record_gap(self, store: Path, lake: Path, start_offset: int, end_offset: int) -> None:
        """Record that this range went from a held store without being archived."""
        self.call(
            "record_gap", store=str(store), lake=str(lake), start_offset=start_offset, end_offset=end_offset
        )

    def call(self, function: str, **arguments: object) -> Any:
        """Call a function of released_driver; returns its result."""
        answer = self._ask(function, **arguments)
        assert "result" in answer, f"{function}: {answer.get('error', answer)}"
        return answer["result"]

    def _ask(self, function: str, **arguments: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"function": function, "arguments": arguments}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.name}: the released package ended with {self.process.wait()}"
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def released_package(name: str, cache: Path) -> Iterator[Released]:
    """Start the package of tests/fixtures/releases/NAME.zip; it ends with the block.

    :param cache: directory that outlives a session, for the extracted package and its compiled kernels.
    """
    package = extracted(RELEASES / f"{name}.zip", cache)
    process = subprocess.Popen(
        [sys.executable, "-P", str(DRIVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(package)},
    )
    released = Released(name, process)
    try:
        imported = Path(released._answer()["package"])
        assert imported == package / "storage_engine" / "__init__.py", f"another package: {imported}"
        yield released
    finally:
        process.kill()
        process.communicate()


def extracted(release: Path, cache: Path) -> Path:
    """The directory with a release's files; several processes may ask at one time."""
    target = cache / f"{release.stem}-{hashlib.sha256(release.read_bytes()).hexdigest()[:16]}"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=cache) as work:
            whole = Path(work) / "whole"
            with zipfile.ZipFile(release) as frozen:
                frozen.extractall(whole)
            lend_machine_code(whole / KERNELS)
            try:
                whole.rename(target)
            except OSError:
                if not target.is_dir():
                    raise
    return target


def lend_machine_code(release: Path) -> None:
    """Give a frozen release the kernels that today's package has compiled, where both have the same code.

    Numba takes machine code whose source has the size and the time that it had when it was compiled. How a
    kernel is compiled, and which module says so, is no part of what is frozen.
    """
    today = TODAY / KERNELS
    for how in SHARED:
        shutil.copy2(today.parent / how, release.parent / how)
    for source in list(release.rglob("*.py")):
        path = today / source.relative_to(release)
        if path.exists() and _code_of(path) == _code_of(source):
            shutil.copy2(path, source)
    for path in today.rglob("__pycache__/*.nb[ic]"):
        folder = release / path.relative_to(today).parent
        if folder.parent.is_dir():
            folder.mkdir(exist_ok=True)
            shutil.copy2(path, folder)


def _code_of(path: Path) -> tuple[list[str], list[str]]:
    """Return a module's imports in any order, with the names of what is shared by now, and its other code."""
    text = path.read_text()
    for how in SHARED:
        text = text.replace(f"storage_engine.rocketmq.{how[:-3]}", f"storage_engine.{how[:-3]}")
    dumped = [(isinstance(n, ast.Import | ast.ImportFrom), ast.dump(n)) for n in ast.parse(text).body]
    imports = sorted(code for is_import, code in dumped if is_import)
    return imports, [code for is_import, code in dumped if not is_import]
