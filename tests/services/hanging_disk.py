"""A disk that never answers, as one does whose server is gone."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_DEVICE = Path("/dev/fuse")
_MNT_DETACH = 2


@contextmanager
def hanging_disk(target: Path) -> Iterator[Path]:
    """Mount it at a directory, which is created; the test is skipped by name where that can't be.

    It is a FUSE whose server reads no request. Who waits for it gets an error once the block is left.
    """
    if os.geteuid() != 0 or not _DEVICE.exists():
        pytest.skip("hanging disk: only root can mount one, and it takes FUSE")
    target.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    server = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    try:
        options = f"fd={server},rootmode=40000,user_id=0,group_id=0"
        if libc.mount(b"hanging", os.fsencode(target), b"fuse", 0, options.encode()):
            pytest.skip(f"hanging disk: can't be mounted here: {os.strerror(ctypes.get_errno())}")
        try:
            yield target
        finally:
            libc.umount2(os.fsencode(target), _MNT_DETACH)
    finally:
        os.close(server)
