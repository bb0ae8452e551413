"""Commands of this package as a demo shows them: what a person would type, and what it prints."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

from demo.dag_run import Say
from storage_engine.core.wording import count_text
from storage_engine.exceptions import StorageEngineError

MAIN = "import sys; from storage_engine.cli.main import main; sys.exit(main(sys.argv[1:]))"
_MOST_ALIKE = 2
"""Of the lines of a paragraph that are alike so many are shown, and the last one."""
_NUMBERS = re.compile(r"[0-9a-f]{8,}|[0-9]+")


class Shell:
    """Runs commands in processes of their own, as a shell does, and shows them.

    What lies below the working directory is named from there, so that a command can be read and run again.

    :param environment: of all of them; shown first.
    """

    def __init__(self, tell: Say, environment: Mapping[str, str | Path] = MappingProxyType({})) -> None:
        self._tell = tell
        self._environment = {name: _shown(value) for name, value in environment.items()}
        if self._environment:
            tell("")
        for name, value in self._environment.items():
            tell(f"$ export {name}={shlex.quote(value)}")

    def run(self, *words: str | Path, expected: Sequence[int] = (0,)) -> None:
        """
        :param expected: statuses, of which one is right.
        :raises StorageEngineError: it ended with another one.
        """
        texts = [_shown(word) for word in words]
        self._tell("")
        self._tell(f"$ storage-engine {shlex.join(texts)}")
        done = subprocess.run(
            [sys.executable, "-c", MAIN, *texts],
            env={**os.environ, **self._environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        for line in _shortened(done.stdout.splitlines()):
            self._tell(f"  {line}")
        if done.returncode not in expected:
            raise StorageEngineError(
                f"storage-engine {shlex.join(texts)}: expected status {' or '.join(map(str, expected))}, "
                f"found {done.returncode}. It is said above."
            )


def _shortened(lines: Sequence[str]) -> Iterator[str]:
    """Leave out lines of paragraphs that differ from others there by numbers and hashes alone."""
    for _, group in groupby(lines, key=lambda line: not line.strip()):
        paragraph = list(group)
        places: dict[str, list[int]] = {}
        for place, line in enumerate(paragraph):
            places.setdefault(_NUMBERS.sub("", line), []).append(place)
        shown = {place for alike in places.values() for place in (*alike[:_MOST_ALIKE], alike[-1])}
        for is_shown, run in groupby(range(len(paragraph)), key=shown.__contains__):
            if is_shown:
                yield from (paragraph[place] for place in run)
            else:
                yield f"      … {count_text(len(list(run)), 'more line')} like these …"


def _shown(word: str | Path) -> str:
    here = Path.cwd()
    return str(word.relative_to(here) if isinstance(word, Path) and word.is_relative_to(here) else word)
