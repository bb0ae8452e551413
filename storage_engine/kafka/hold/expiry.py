"""When a running broker's own rules take the segments of a log, the active one too. Pure.

Of age it is known. Of size it follows from how fast the log has grown lately; where that isn't known, neither
is the moment. What isn't known to be safe counts as going: above the high watermark, too, as that rises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from storage_engine.kafka.hold.hold_state import KnownLog, Written
from storage_engine.kafka.rules import LogFacts, RetentionSettings, SegmentFacts

_LONGEST_MS = 600_000
"""From when on growth is measured again from a new moment."""


def expiry(
    facts: LogFacts, settings: RetentionSettings, now_ms: int, bytes_per_ms: float | None
) -> Mapping[int, int | None]:
    """Return when the rules take each segment, by its base offset; None: never, as far as is known.

    A segment goes no earlier than those before it. An active one goes by its age as soon as all others do:
    the broker closes it then (UnifiedLog#deleteOldSegments).

    :param bytes_per_ms: how fast the log grows; None: not known, so that size is left out.
    """
    if settings.compact or settings.is_copied or not settings.delete:
        return {one.base_offset: None for one in facts.segments}
    found: dict[int, int | None] = {}
    behind_bytes = sum(one.size_bytes for one in facts.segments)
    before_ms: int | None = now_ms
    for one in facts.segments:
        behind_bytes -= one.size_bytes
        moments = [_by_age(one, settings, now_ms), _by_size(behind_bytes, settings, now_ms, bytes_per_ms)]
        known = [at_ms for at_ms in moments if at_ms is not None]
        before_ms = max(before_ms, min(known)) if known and before_ms is not None else None
        found[one.base_offset] = before_ms
    return found


def kept_span_ms(settings: RetentionSettings, bytes_per_ms: float | None) -> float | None:
    """Return for how long the rules keep a record, as far as is known; None: for ever, or it isn't known."""
    spans = [float(settings.kept_ms)] if settings.kept_ms >= 0 else []
    if settings.kept_bytes >= 0 and bytes_per_ms:
        spans.append(settings.kept_bytes / bytes_per_ms)
    return min(spans, default=None)


def _by_age(segment: SegmentFacts, settings: RetentionSettings, now_ms: int) -> int | None:
    if settings.kept_ms < 0:
        return None
    return max(now_ms, segment.largest_timestamp_ms + settings.kept_ms + 1)


def _by_size(
    behind_bytes: int, settings: RetentionSettings, now_ms: int, bytes_per_ms: float | None
) -> int | None:
    """Return when so much lies behind a segment that size keeps it no more."""
    left_bytes = settings.kept_bytes - behind_bytes
    if settings.kept_bytes < 0:
        return None
    if left_bytes <= 0:
        return now_ms
    return now_ms + int(left_bytes / bytes_per_ms) if bytes_per_ms else None


def grown_bytes(segments: Sequence[SegmentFacts], since: Written) -> int | None:
    """Return what was written to a log since a moment; None: its segment of then isn't there any more."""
    later = [one for one in segments if one.base_offset >= since.base_offset]
    if not later or later[0].base_offset != since.base_offset:
        return None
    return max(0, sum(one.size_bytes for one in later) - since.size_bytes)


def growth(segments: Sequence[SegmentFacts], known: KnownLog | None, now_ms: int) -> float | None:
    """Return how many bytes a millisecond a log has grown by since it was remembered; None: not known."""
    since = None if known is None else known.written
    if since is None or now_ms <= since.at_ms or (grown := grown_bytes(segments, since)) is None:
        return None
    return grown / (now_ms - since.at_ms)


def least_growth(segments: Sequence[SegmentFacts], known: KnownLog | None, now_ms: int) -> float | None:
    """Return how fast a log has grown at least, whose segment of then is gone: by all that is there since.

    :return: bytes a millisecond; None: not known.
    """
    since = None if known is None else known.written
    if since is None or now_ms <= since.at_ms:
        return None
    return sum(one.size_bytes for one in segments) / (now_ms - since.at_ms)


def written(segments: Sequence[SegmentFacts], known: KnownLog | None, now_ms: int) -> Written | None:
    """Return from where on growth is measured at the next look: not from a moment ago, which tells little."""
    since = None if known is None else known.written
    if since is not None and now_ms - since.at_ms < _LONGEST_MS and grown_bytes(segments, since) is not None:
        return since
    return Written(now_ms, segments[-1].base_offset, segments[-1].size_bytes) if segments else None
