"""Reading manifests that may be damaged.

PyIceberg's compiled Avro decoder believes the counts that it reads, and a damaged one leads it beyond its
memory: the process ends. Its decoder in Python, which takes five times as long, finds the end of the file.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyiceberg.avro.file
from pyiceberg.avro.decoder import BinaryDecoder, StreamingBinaryDecoder, new_decoder

_lock = threading.Lock()
_careful = 0


@contextmanager
def careful_avro() -> Iterator[None]:
    """Let every thread of this process read Avro carefully while the block runs."""
    global _careful
    with _lock:
        _careful += 1
    try:
        yield
    finally:
        with _lock:
            _careful -= 1


def _decoder(content: bytes) -> BinaryDecoder:
    return StreamingBinaryDecoder(content) if _careful else new_decoder(content)


vars(pyiceberg.avro.file)["new_decoder"] = _decoder
