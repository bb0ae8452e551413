"""Bytes as Java reads them as text: what is no UTF-8 becomes U+FFFD, and how often matters to hashes."""

from __future__ import annotations

import codecs

_HANDLER = "storage-engine-java"


def java_text(data: bytes) -> str:
    """Decode as ``new String(bytes, UTF_8)`` does.

    An encoded surrogate, or what there is of it, is one fault to Java (sun.nio.cs.UTF_8); to Python
    each of its bytes is one.
    """
    return data.decode(errors=_HANDLER)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    first, second, third = (*error.object[error.start : error.start + 3], 0, 0, 0)[:3]
    if first == 0xED and 0xA0 <= second <= 0xBF:
        return "\ufffd", error.start + (3 if 0x80 <= third <= 0xBF else 2)
    return "\ufffd", error.end


codecs.register_error(_HANDLER, _replace)
