"""When a log's segments go by their age, if nothing changes."""

from __future__ import annotations

from collections.abc import Mapping

from storage_engine.kafka.rules import LogFacts, RetentionSettings, retention_pass


def deletes_at_ms(facts: LogFacts, settings: RetentionSettings, now_ms: int) -> Mapping[int, int | None]:
    """Return when the rules may delete each segment, by its base offset; None: never for its age.

    A segment goes no earlier than those before it. What reaches above the high watermark is left out: it is
    not known when that rises. The active one is left out, too: it is not known when it is closed.
    """
    going = {one.base_offset for one in retention_pass(facts, settings, now_ms).deletions}
    found: dict[int, int | None] = {}
    by_age = settings.delete and not settings.compact and settings.kept_ms >= 0
    at_ms = now_ms
    for segment, following in zip(facts.segments, facts.segments[1:], strict=False):
        if segment.base_offset in going:
            found[segment.base_offset] = now_ms
            continue
        if facts.high_watermark is None or facts.high_watermark < following.base_offset:
            break
        at_ms = max(at_ms, segment.largest_timestamp_ms + settings.kept_ms + 1)
        found[segment.base_offset] = at_ms if by_age else None
    return found
