"""A process that keeps others from opening files: who does, waits, unless O_NONBLOCK says otherwise."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_KEEP = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
kept = [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]
for descriptor in kept:
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def nobody_else_opens(paths: Iterable[Path]) -> Iterator[subprocess.Popen[str]]:
    """Keep files from being opened until the block, or that process's standard input, ends."""
    words = [sys.executable, "-c", _KEEP, *map(str, paths)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        try:
            yield process
        finally:
            process.stdin.close()
