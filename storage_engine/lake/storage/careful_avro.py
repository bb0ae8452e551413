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


class CarefulDecoder(StreamingBinaryDecoder):
    """Tells content that is cut short from its end, which PyIceberg takes an EOFError for."""

    def read(self, n: int) -> bytes:
        data = super().read(0) if n < 1 else self._input_stream.read(n)
        if n < 0 or (len(data) < n and (data or n > 1)):
            raise ValueError(f"expected {n} bytes of Avro, found {len(data)}: cut short or damaged")
        if len(data) < n:
            raise EOFError("the end of the Avro content")
        return data


def _decoder(content: bytes) -> BinaryDecoder:
    return CarefulDecoder(content) if _careful else new_decoder(content)


vars(pyiceberg.avro.file)["new_decoder"] = _decoder
