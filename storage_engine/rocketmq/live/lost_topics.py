"""Whose messages lay in a range of the log that is gone, as far as consume queues still tell. Reads only.

The broker soon removes what points below its min offset: ask as soon as a range is missed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from storage_engine.exceptions import CorruptFileError
from storage_engine.model.hold import Drift, DriftKind
from storage_engine.rocketmq import batch_consume_queue, consume_queue
from storage_engine.rocketmq.layout import StoreLayout
from storage_engine.rocketmq.mapped_files import MappedFile
from storage_engine.rocketmq.queue_files import EntryFormat, iter_queues
from storage_engine.wording import count_text

_NAMED = 20
"""Topics that the sentence names; the list has them all."""


def with_topics(disturbances: Iterable[Drift], layout: StoreLayout) -> tuple[Drift, ...]:
    """Say of each range that is gone whose messages were in it."""
    disturbances = tuple(disturbances)
    gone = [d for d in disturbances if d.kind is DriftKind.SEGMENT_GONE and not d.topics]
    counted = topics_in(layout, [(d.start_offset, d.end_offset) for d in gone])
    told = {id(d): _with(d, counts) for d, counts in zip(gone, counted, strict=True)}
    return tuple(told.get(id(d), d) for d in disturbances)


def topics_in(layout: StoreLayout, ranges: Sequence[tuple[int, int]]) -> tuple[Counter[str], ...]:
    """For each range of physical offsets [start, end): how many entries each topic's queues have there.

    A queue's file that can't be read, or went away meanwhile, tells nothing.
    """
    counts = tuple(Counter[str]() for _ in ranges)
    if not ranges:
        return counts
    for form, directory in (
        (consume_queue.FORMAT, layout.consumequeue),
        (batch_consume_queue.FORMAT, layout.batchconsumequeue),
    ):
        for queue in iter_queues(directory):
            try:
                files = form.files(queue.path)
                for count, of_range in zip(_entries(form, files, ranges), counts, strict=True):
                    if count:
                        of_range[queue.topic] += count
            except (CorruptFileError, OSError):
                continue
    return counts


def _entries(
    form: EntryFormat, files: tuple[MappedFile, ...], ranges: Sequence[tuple[int, int]]
) -> Iterator[int]:
    if not files:
        yield from (0 for _ in ranges)
        return
    last = form.last_position(files)
    for start, end in ranges:
        first = _index(form, form.first_at_or_above(files, start, last))
        yield _index(form, form.first_at_or_above(files, end, last)) - first


def _index(form: EntryFormat, at: tuple[MappedFile, int]) -> int:
    file, position = at
    return file.base_offset // form.dtype.itemsize + position


def _with(disturbance: Drift, counts: Counter[str]) -> Drift:
    if not counts:
        told = "The consume queues don't tell any more whose messages were in it."
    else:
        named = [f"{topic} ({count_text(n, 'message')})" for topic, n in counts.most_common(_NAMED)]
        more = [f"{len(counts) - _NAMED} more"] if len(counts) > _NAMED else []
        told = f"By what the consume queues still have, of topics: {', '.join(named + more)}."
    return replace(disturbance, detail=f"{disturbance.detail} {told}", topics=tuple(sorted(counts)))
