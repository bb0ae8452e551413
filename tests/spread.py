"""Directories whose subdirectories ext4 puts far apart."""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path

_GET_FLAGS = 0x80086601
_SET_FLAGS = 0x40086602
_TOP_DIRECTORY = 0x00020000
"""FS_IOC_GETFLAGS, FS_IOC_SETFLAGS and EXT4_TOPDIR_FL of Linux; ``chattr +T``."""


def spread(directory: Path) -> None:
    """Give each directory that is made in this one a block group of its own, on ext4 alone.

    For a minute and more ext4 gives no inode a second time, and looks past each that was just deleted in the
    directory's group (recently_deleted in fs/ext4/ialloc.c): a third of the suite's time without this.
    """
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            flags = bytearray(8)
            fcntl.ioctl(descriptor, _GET_FLAGS, flags)
            (now,) = struct.unpack("i", flags[:4])
            fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("q", now | _TOP_DIRECTORY))
        finally:
            os.close(descriptor)
