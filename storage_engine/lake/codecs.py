"""Finding a broker's codec by the broker's name: a new broker is a new package with a ``CODEC``."""

from __future__ import annotations

import importlib
from functools import cache

from storage_engine.exceptions import BadInputError
from storage_engine.model.codec import SegmentCodec


@cache
def codec_for(broker: str) -> SegmentCodec:
    """The ``CODEC`` of ``storage_engine.<broker>.codec``.

    :raises BadInputError: no such broker.
    """
    module = f"storage_engine.{broker}.codec"
    try:
        codec: SegmentCodec = importlib.import_module(module).CODEC
    except ModuleNotFoundError as error:
        if error.name not in (module, f"storage_engine.{broker}"):
            raise
        raise BadInputError(
            f"broker {broker!r}: expected one that has a {module} module, found none"
        ) from None
    return codec
