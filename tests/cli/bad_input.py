"""What a refusal says, and what must be left as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MIB = 1 << 20


def segment_of(store: Path, base: int) -> Path:
    return store / "commitlog" / f"{base:020d}"


def lake_itself(lake: Path) -> tuple[Path, Path]:
    return lake / "warehouse", lake / "catalog.db"


def check_error(outcome: Any, code: int, *expected: object) -> str:
    """One error, on stderr, of one line, with everything in it that it takes to find the fault."""
    assert outcome.exit_code == code
    errors = [line for line in outcome.err.splitlines() if line.startswith("Error")]
    assert len(errors) == 1
    assert "Traceback" not in outcome.err
    for part in expected:
        assert str(part) in errors[0]
    return errors[0]
