"""Lets the package take an install for a smaller one than it is."""

from __future__ import annotations

import pytest

from storage_engine.core import extras


def take_away(monkeypatch: pytest.MonkeyPatch, *missing: extras.Extra) -> None:
    """Let extras count as not installed, whatever is importable here."""
    real = extras.Extra.is_installed
    monkeypatch.setattr(
        extras.Extra, "is_installed", property(lambda self: self not in missing and real.fget(self))
    )
