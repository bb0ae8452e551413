"""Which bytes a store's offsets carry, log by log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from storage_engine.model.store.store import Segment


@dataclass(frozen=True, slots=True)
class Lineages:
    """The lineage of each log: a number that rises when other bytes appear under its offsets.

    :param whole: the store's, which each log has that has none of its own.
    :param of_logs: by name, of logs that have got one since.
    """

    whole: int
    of_logs: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def archived(cls, newest: Mapping[str, int], stamped: Lineages | None) -> Lineages:
        """Return them as far as receipts and a stamp tell.

        Receipts alone don't tell whether the newest lineage is one log's or the whole store's: then it is
        taken for the store's, so that nothing which is over proves anything.

        :param newest: the newest lineage of each log of which something is archived.
        :param stamped: by the store's stamp; None: it has none.
        """
        if stamped is None:
            return Lineages(max(newest.values(), default=1))
        return _above(min(newest.values(), default=1), newest).merged(stamped)

    def of(self, log: str) -> int:
        """Return the lineage of a log."""
        return self.of_logs.get(log, self.whole)

    @property
    def newest(self) -> int:
        """The highest number that was given so far."""
        return max((self.whole, *self.of_logs.values()))

    def merged(self, other: Lineages) -> Lineages:
        """Return the newest of each log that either knows: no log goes back to an older one."""
        names = {*self.of_logs, *other.of_logs}
        return _above(
            max(self.whole, other.whole), {name: max(self.of(name), other.of(name)) for name in names}
        )

    def grouped(self, segments: Iterable[Segment]) -> Mapping[int, list[Segment]]:
        """Return segments by the lineages of their logs, in their order."""
        groups: dict[int, list[Segment]] = {}
        for segment in segments:
            groups.setdefault(self.of(segment.log), []).append(segment)
        return groups


def _above(whole: int, of_logs: Mapping[str, int]) -> Lineages:
    return Lineages(whole, {log: lineage for log, lineage in sorted(of_logs.items()) if lineage > whole})
