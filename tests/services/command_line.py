"""Today's command line as its user runs it, in this process."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import pytest

from storage_engine.cli.main import main


@dataclass(frozen=True)
class Outcome:
    """What a command line came to."""

    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run_command(*words: object) -> Outcome:
    """Call the command line with these words; its output and exit code come back."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    assert isinstance(stopped.value.code, int)
    return Outcome(stopped.value.code, out.getvalue(), err.getvalue())
