"""A process of its own that goes through commands on one store again and again: a child of
``test_side_by_side``."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from contextlib import redirect_stderr, redirect_stdout

from storage_engine.cli.main import main


def command(words: list[str]) -> dict[str, object]:
    out, err = io.StringIO(), io.StringIO()
    code: object = None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(words)
        except SystemExit as ended:
            code = ended.code
    return {"words": words, "code": code, "out": out.getvalue(), "err": err.getvalue()}


def run(commands: list[list[str]], seconds: float, least: int) -> None:
    """Say what each came to, for so long and so often at least."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    begun, rounds = time.monotonic(), 0
    while rounds < least or time.monotonic() - begun < seconds:
        for words in commands:
            sys.stdout.write(f"{json.dumps(command(words))}\n")
            sys.stdout.flush()
        rounds += 1


if __name__ == "__main__":
    os.umask(0o022)
    run(json.loads(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
