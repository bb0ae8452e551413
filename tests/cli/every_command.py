"""All commands, as a shell names them."""

from __future__ import annotations

import runpy
from pathlib import Path

import click

_REFERENCE = Path(__file__).parents[2] / "docs" / "write_reference.py"

EVERY: dict[str, click.Command] = runpy.run_path(str(_REFERENCE))["commands"]()
"""By what is typed for them, as the docs have them; a command that groups others stands for these."""
