"""Finding a broker's codec by the broker's name: a new broker is a new package with a ``CODEC``."""

from __future__ import annotations

from functools import cache

from storage_engine.model.broker import broker_module
from storage_engine.model.codec import SegmentCodec


@cache
def codec_for(broker: str) -> SegmentCodec:
    """The ``CODEC`` of ``storage_engine.<broker>.codec``.

    :raises BadInputError: no such broker.
    """
    codec: SegmentCodec = broker_module(broker, "codec").CODEC
    return codec
