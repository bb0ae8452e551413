"""Zeros over bytes that a recovery cut off.

The broker leaves them. New entries end where old ones begin, so that its next recovery may read on in these.
"""

from __future__ import annotations

import errno
import os

_BLOCK_BYTES = 1 << 20


def erase_behind(fd: int, position: int, size_bytes: int) -> None:
    """Write zeros over what is not zero from a position of a file on, and take them to disk.

    :raises OSError: the disk refuses.
    """
    erased = False
    while position < size_bytes:
        try:
            # What was never written takes no time.
            position = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break
            raise
        content = os.pread(fd, min(_BLOCK_BYTES, size_bytes - position), position)
        if not content:
            break
        if content.strip(b"\0"):
            os.pwrite(fd, bytes(len(content)), position)
            erased = True
        position += len(content)
    if erased:
        os.fsync(fd)
