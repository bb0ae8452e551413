"""What :mod:`~storage_engine.retention.ranges.range_memory` remembers, in a table of the journal of its own.

It is made where a monitor has looked. Where it can't be read, lakes and journal are read from the beginning.
"""

from __future__ import annotations

import json
import zlib

from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.untrusted import MALFORMED
from storage_engine.exceptions import BadInputError
from storage_engine.retention.proof.kept_rows import KeptRows
from storage_engine.retention.ranges.range_memory import RangeMemory

_VERSION = 2
"""Of the memory's fields; what another version kept counts as nothing."""

_MEMORIES = KeptRows("storage_engine_range_memories", "memory")


def kept_ranges(journal_url: str, store_id: str) -> RangeMemory:
    """Return what the last look at a store kept; nothing is made or changed.

    :raises StorageEngineError: the journal can't be read.
    """
    stored = _MEMORIES.read(journal_url, store_id)
    if stored is None or stored[0] != _VERSION:
        return RangeMemory()
    try:
        return from_jsonable(RangeMemory, json.loads(zlib.decompress(stored[1])))
    except (zlib.error, BadInputError, *MALFORMED):
        return RangeMemory()


def keep_ranges(journal_url: str, store_id: str, memory: RangeMemory) -> None:
    """Keep it for the next look, in place of what was kept.

    :raises StorageEngineError: the journal can't be written.
    """
    _MEMORIES.write(journal_url, store_id, _VERSION, json.dumps(to_jsonable(memory)), reserve=False)
