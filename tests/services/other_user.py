"""Tests as another user than root, who may do everything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

NOBODY = 65534


@contextmanager
def as_nobody() -> Iterator[None]:
    """Be a user who owns nothing, while the block runs."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
