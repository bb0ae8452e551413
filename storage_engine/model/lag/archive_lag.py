"""How far the lake is behind the broker: what is sealed and not proven to be in a lake."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from storage_engine.core.wording import bytes_text, count_text, duration_text, exact_bytes_text
from storage_engine.model.settings.policy import Policy
from storage_engine.model.store.store import Segment


@dataclass(frozen=True, slots=True)
class ArchiveLag:
    """:param segments: number of sealed segments without a proof.
    :param oldest_base_offset: of the one that was written to longest ago; None when there is none.
    :param oldest_age_seconds: time since it was written to; 0 when there is none.
    :param notes: lakes that could not be asked; there the journal's word stands for the lake's.
    :param touched: number of segments that a lake has, but whose files were touched since; no lag.
    """

    measured_at_ms: int
    segments: int
    size_bytes: int
    oldest_base_offset: int | None
    oldest_age_seconds: int
    notes: tuple[str, ...] = ()
    touched: int = 0

    @property
    def text(self) -> str:
        """The lag as a sentence."""
        touched = f"; {touched_text(self.touched)}" if self.touched else ""
        if self.oldest_base_offset is None:
            return f"everything that is sealed is {'archived' if touched else 'proven in the lake'}{touched}"
        age = duration_text(self.oldest_age_seconds * 1000)
        segments, size = count_text(self.segments, "segment"), exact_bytes_text(self.size_bytes)
        return (
            f"{segments} sealed and not proven, {size}; the oldest, "
            f"{self.oldest_base_offset:020d}, was last written to {age} ago{touched}"
        )

    def alarms(self, policy: Policy) -> tuple[str, ...]:
        """The policy's thresholds that are exceeded, each as a sentence."""
        found = []
        most_bytes, most_seconds = policy.archive_lag_alarm_bytes, policy.archive_lag_alarm_seconds
        if most_bytes is not None and self.size_bytes > most_bytes:
            found.append(
                f"archive lag: expected at most {bytes_text(most_bytes)} sealed and not proven in the lake, "
                f"found {bytes_text(self.size_bytes)} in {count_text(self.segments, 'segment')}"
            )
        if most_seconds is not None and self.oldest_age_seconds > most_seconds:
            found.append(
                f"archive lag: expected every segment in the lake {duration_text(most_seconds * 1000)} after "
                f"its last write, found {self.oldest_base_offset:020d} without a proof after "
                f"{duration_text(self.oldest_age_seconds * 1000)}"
            )
        return tuple(found)


def touched_text(count: int) -> str:
    """Say how many segments a lake has whose files were touched since, as by a chmod or a hard link."""
    was = "was" if count == 1 else "were"
    return f"{count_text(count, 'archived segment')} {was} touched since, to be hashed again"


def archive_lag_of(
    unproven: Iterable[Segment], now_ms: int, notes: tuple[str, ...] = (), touched: int = 0
) -> ArchiveLag:
    """Sum up the sealed segments that no lake proves.

    :param touched: how many others a lake has, but whose files were touched since.
    """
    segments = list(unproven)
    oldest = min(segments, key=lambda segment: segment.mtime_ns, default=None)
    age_ms = 0 if oldest is None else now_ms - oldest.mtime_ns // 1_000_000
    return ArchiveLag(
        measured_at_ms=now_ms,
        segments=len(segments),
        size_bytes=sum(segment.facts.size_bytes for segment in segments),
        oldest_base_offset=None if oldest is None else oldest.base_offset,
        oldest_age_seconds=max(0, age_ms // 1000),
        notes=notes,
        touched=touched,
    )
