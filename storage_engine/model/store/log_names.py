"""What a log may be called. Its name stands in receipts, journals, reports, messages and names of files."""

from __future__ import annotations

import hashlib
import re

MAX_NAME_BYTES = 260
"""A name of 249 bytes, a hyphen and a number of 32 bits; in a file's name it is shortened, see
:func:`in_file_name`."""

_DIGITS = 32
_SHORTENED = re.compile(f"~[0-9a-f]{{{_DIGITS}}}$")

_SEPARATORS = frozenset("/\\")


def log_name_fault(name: object) -> str:
    """Return what is wrong with a log's name, in words; "" where it may be stored and printed."""
    if type(name) is not str:
        return f"text, found {type(name).__name__}"
    if not name or name.isspace():
        return "at least one character, found none"
    if name in (".", ".."):
        return "a name, found the way to a directory"
    if not name.isprintable():
        return "printable characters alone"
    if not _SEPARATORS.isdisjoint(name):
        return "no / and no \\"
    # What is printable has no lone surrogate, so that it can be encoded.
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"at most {MAX_NAME_BYTES} bytes in UTF-8, found {len(name.encode())}"
    return ""


def in_file_name(log: str, max_bytes: int) -> str:
    """Return a log's name as a part of a file's name; a longer one is shortened, with a hash at its end.

    No two logs get the same: a name that looks as if it had been shortened gets a hash of its own.

    :param max_bytes: of the part, in UTF-8.
    """
    name = log.replace("/", "_")
    data = name.encode()
    if len(data) <= max_bytes and not _SHORTENED.search(name):
        return name
    begin = data[: max_bytes - 1 - _DIGITS].decode(errors="ignore")
    return f"{begin}~{hashlib.sha256(log.encode()).hexdigest()[:_DIGITS]}"
