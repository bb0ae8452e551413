"""Who looks at a path while a test runs, by the functions of ``os`` and by what the interpreter audits."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_LOOKS = ("stat", "lstat", "readlink", "access", "statvfs", "open", "listdir", "scandir")
_AUDITED = ("open", "socket", "sqlite3", "subprocess")

Note = Callable[[str], None]
_note: Note | None = None
_hooks: list[object] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _note is not None and event.partition(".")[0] in _AUDITED:
        _note(f"{event} {arguments}")


@contextmanager
def looks_told(note: Note, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tell of each look at a path, and of sockets, databases and processes, as ``event (arguments)``."""
    global _note
    if not _hooks:
        # Never to be removed again; it costs nothing while nobody is to be told.
        sys.addaudithook(_audit)
        _hooks.append(_audit)
    with monkeypatch.context() as patched:
        for name in _LOOKS:
            patched.setattr(os, name, _telling(name, getattr(os, name), note))
        _note = note
        try:
            yield
        finally:
            _note = None


def _telling(name: str, look: Callable[..., Any], note: Note) -> Callable[..., Any]:
    def telling(*arguments: Any, **options: Any) -> Any:
        note(f"os.{name} {arguments}")
        return look(*arguments, **options)

    return telling
