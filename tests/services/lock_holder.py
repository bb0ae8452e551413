"""Another process that has a store's lock, as a broker that runs on it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a+b")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def lock_held(path: Path, *words_of_it: str) -> Iterator[int]:
    """Have a process lock all of a file until the block ends; yields its id.

    :param words_of_it: that its command line has besides.
    """
    words = [sys.executable, "-c", _HOLD, str(path), *words_of_it]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        try:
            yield holder.pid
        finally:
            holder.stdin.close()
