"""Two lakes of one store laid over each other: what one lacks or has broken, the other may prove. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter

from storage_engine.model.proof.receipt import Receipt, SegmentIdentity


def in_either(
    rows: Iterable[Receipt], broken: Mapping[SegmentIdentity, str], elsewhere: Iterable[Receipt]
) -> tuple[tuple[Receipt, ...], dict[SegmentIdentity, str]]:
    """One lake's receipts with those of the other that say more; each segment's bytes once.

    :param broken: which of ``rows`` prove nothing, and why.
    :param elsewhere: receipts that hold in the other lake.
    :return: the receipts, and which of them prove nothing.
    """
    proven_elsewhere = {row.identity: row for row in elsewhere}
    kept, known = list(rows), frozenset[SegmentIdentity]()
    if broken or proven_elsewhere:
        kept = [row for row in kept if row.identity not in broken or row.identity not in proven_elsewhere]
        known = frozenset(row.identity for row in kept)
    more = [row for identity, row in proven_elsewhere.items() if identity not in known]
    merged = sorted((*kept, *more), key=attrgetter("log", "lineage", "base_offset"))
    return tuple(merged), {identity: why for identity, why in broken.items() if identity in known}
