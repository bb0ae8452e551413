"""Files that can't be read any more, as those on a failing disk."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def unreadable(*paths: Path, number: int = errno.EIO) -> Iterator[None]:
    """Let each opening of these files fail, by whatever call of Python's, while the block runs."""
    refused = {str(path) for path in paths}
    own_os_open, own_open = os.open, io.open

    def refuse(path: Any) -> None:
        if isinstance(path, str | os.PathLike) and os.fspath(path) in refused:
            raise OSError(number, os.strerror(number), os.fspath(path))

    def os_open(path: Any, *args: Any, **named: Any) -> int:
        refuse(path)
        return own_os_open(path, *args, **named)

    def python_open(path: Any, *args: Any, **named: Any) -> Any:
        refuse(path)
        return own_open(path, *args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", os_open)
        patch.setattr(io, "open", python_open)
        patch.setattr(builtins, "open", python_open)
        yield
