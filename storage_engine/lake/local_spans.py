"""What a store has on disk, compared with its receipts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from storage_engine.lake.ranges import LocalSpan
from storage_engine.lake.staging import sha256_of
from storage_engine.model.receipt import Receipt
from storage_engine.model.store import LogSnapshot, Segment, StoreSnapshot
from storage_engine.same_bytes.own_acts import read_own_acts


def local_spans(
    snapshot: StoreSnapshot,
    rows: Sequence[Receipt],
    *,
    pending: frozenset[tuple[str, int]] = frozenset(),
    hash_changed: bool = True,
) -> tuple[LocalSpan, ...]:
    """What a store has on disk, compared with its receipts. A file that goes away meanwhile isn't on disk.

    :param rows: the store's receipts; of several lineages the newest counts.
    :param pending: (log, base offset) of segments that are planned to go.
    :param hash_changed: read and hash an archived segment whose facts are no longer those it was proven
        with; without it such a segment is only known to have been touched.
    :raises OSError: a segment to hash can't be read.
    """
    newest = {(row.log, row.base_offset): row for row in sorted(rows, key=lambda row: row.lineage)}
    acts = read_own_acts(snapshot.root)
    spans = []
    for log in snapshot.logs:
        for segment in log.segments:
            with suppress(FileNotFoundError):
                receipt = newest.get((log.name, segment.base_offset))
                same = receipt is not None and acts.same_file(segment.facts, receipt.source_facts)
                spans.append(_local_span(log, segment, receipt, same, pending, hash_changed))
    return tuple(spans)


def _local_span(
    log: LogSnapshot,
    segment: Segment,
    receipt: Receipt | None,
    same: bool,
    pending: frozenset[tuple[str, int]],
    hash_changed: bool,
) -> LocalSpan:
    sha256 = sha256_of(segment.facts.path) if receipt is not None and not same and hash_changed else None
    return LocalSpan(
        log=log.name,
        start_offset=segment.base_offset,
        end_offset=min(segment.end_offset, log.max_offset),
        name=segment.name,
        sha256=sha256,
        unchanged=same,
        pending=(log.name, segment.base_offset) in pending,
        path=segment.facts.path,
    )
