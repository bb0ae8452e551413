from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.lake.archive.archive import SegmentJob, archive_all
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.coverage.spans import local_spans
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.store import Lineages

MakeJobs = Callable[..., tuple[SegmentJob, ...]]


@pytest.fixture
def archived(lake: Lake, segments: list[Path], make_jobs: MakeJobs) -> tuple[Receipt, ...]:
    return archive_all(lake, make_jobs(lake, *segments[:2]))


def test_a_touched_file_is_hashed_and_an_untouched_one_is_not(
    segments: list[Path], archived: tuple[Receipt, ...], snapshot_of
) -> None:
    os.utime(segments[0])
    touched, untouched, unknown = local_spans(snapshot_of(segments), archived, Lineages(0))
    assert (touched.sha256, touched.unchanged) == (archived[0].sha256, False)
    assert (untouched.sha256, untouched.unchanged) == (None, True)
    assert (unknown.sha256, unknown.unchanged) == (None, False)


def test_the_active_segment_ends_at_the_logical_end(segments: list[Path], snapshot_of) -> None:
    snapshot = snapshot_of(segments)
    log = replace(snapshot.logs[0], max_offset=(2 << 20) + 77)
    spans = local_spans(replace(snapshot, logs=(log,)), (), Lineages(0))
    assert [span.end_offset for span in spans] == [1 << 20, 2 << 20, (2 << 20) + 77]


def test_unchanged_means_every_fact(segments: list[Path], archived: tuple[Receipt, ...], snapshot_of) -> None:
    snapshot = snapshot_of(segments[:1])
    (segment,) = snapshot.logs[0].segments
    for change in ("device", "inode", "size_bytes", "mtime_ns", "ctime_ns"):
        changed = replace(segment, facts=replace(segment.facts, **{change: 1}))
        log = replace(snapshot.logs[0], segments=(changed,))
        (span,) = local_spans(replace(snapshot, logs=(log,)), archived, Lineages(0))
        assert not span.unchanged


def test_a_receipt_of_an_older_lineage_is_not_compared(
    segments: list[Path], archived: tuple[Receipt, ...], snapshot_of
) -> None:
    os.utime(segments[0])
    newer = replace(archived[1], lineage=2)
    spans = local_spans(snapshot_of(segments), (*archived, newer), Lineages(0, {"commitlog": 2}))
    assert [(span.sha256, span.unchanged, span.lineage) for span in spans] == [
        (None, False, 2),
        (None, True, 2),
        (None, False, 2),
    ]
    # What another place has opened since counts as well.
    (_, span, _) = local_spans(snapshot_of(segments), (*archived, newer), Lineages(1))
    assert span.unchanged
