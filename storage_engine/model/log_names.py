"""What a log may be called. Its name stands in receipts, journals, reports, messages and names of files."""

from __future__ import annotations

MAX_NAME_BYTES = 200
"""A data file's name has a log's name and less than 55 bytes more; file systems take 255."""

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
