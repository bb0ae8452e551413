"""Scripts that tests run in a process of their own, such as those that are killed again and again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def told_by(*words: object, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> tuple[Any, str]:
    """Run a script, or ``-m`` and a module, to its good end.

    :return: the JSON that it printed, and its stderr.
    """
    done = subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, check=False, cwd=cwd, env=env
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr
