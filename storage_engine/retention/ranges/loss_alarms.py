"""What is lost of a store, as alarms in the words of drift. Pure.

What a hold found gone was told as drift, and is no alarm again. The rest stays one until a person accepts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from storage_engine.core.wording import count_text
from storage_engine.model.hold.hold import Drift, DriftKind
from storage_engine.model.store.known_logs import may_be_one, name_in_label
from storage_engine.retention.ranges.offset_ranges import OffsetRange

_MOST_NAMED = 10
_VERIFY = "storage-engine verify names each"


def loss_alarms(ranges: Iterable[OffsetRange], recorded: Sequence[tuple[Drift, int]]) -> tuple[str, ...]:
    """Return an alarm for each range that should be somewhere and isn't; of more than a few the number.

    :param ranges: of :func:`storage_engine.retention.ranges.offset_ranges.offset_ranges`.
    :param recorded: what others deleted, each with the lineage in which it went.
    """
    found = [one for one in ranges if one.is_missing and not _is_recorded(one, recorded)]
    named = tuple(map(_text, found[:_MOST_NAMED]))
    more = found[_MOST_NAMED:]
    if not more:
        return named
    said = f"{count_text(len(more), 'more range')} neither on disk nor in a lake; {_VERIFY}"
    return (*named, f"{DriftKind.SEGMENT_GONE.value}: {said}")


def _text(one: OffsetRange) -> str:
    where = f"{one.log} [{one.start_offset}, {one.end_offset}) is {one.where.value.upper()}"
    return f"{DriftKind.SEGMENT_GONE.value}: {one.detail.removesuffix('.')}. {where}."


def _is_recorded(one: OffsetRange, recorded: Sequence[tuple[Drift, int]]) -> bool:
    return any(
        drift.log == name_in_label(one.log, one.log_id)
        and may_be_one(drift.log_id, one.log_id)
        and lineage == one.lineage
        and drift.start_offset <= one.start_offset
        and one.end_offset <= drift.end_offset
        for drift, lineage in recorded
    )
