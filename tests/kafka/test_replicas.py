"""Replicas of one log, which cut the same batches into other files."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.exceptions import RestoreError
from storage_engine.kafka.codec.record_batch import read_batches
from storage_engine.kafka.format.batch_headers import sha256_of_range
from storage_engine.lake.archive.archive import archive_all, segment_jobs
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.restore.restore import choose_segments
from storage_engine.lake.verify.replica_coverage import compare_with_replicas, replica_receipts
from storage_engine.lake.verify.verify import verify
from storage_engine.model.report.validation import Status, VerifyLevel, Where
from storage_engine.model.store import FileFacts, Segment, SegmentContext, SegmentState
from tests.kafka.lakes import STORE, archive, new_lake, segments_of
from tests.lake.expiry import expire
from tests.lake.garbage_helpers import local

LOG = "javacodec-0"


def recut(segments: list[Segment], directory: Path, every: int) -> list[Segment]:
    """Return a replica of a log whose files have so many batches each, but the last, which may have fewer."""
    data = b"".join(Path(one.facts.path).read_bytes() for one in segments)
    found = read_batches(data)
    directory.mkdir()
    starts = list(range(0, len(found.positions), every))
    cuts = [*(int(found.positions[at]) for at in starts), len(data)]
    bases = [*(int(found.base_offsets[at]) for at in starts), segments[-1].end_offset]
    bases[0] = segments[0].base_offset
    replica = []
    for (begin, end), (base, following) in zip(pairwise(cuts), pairwise(bases), strict=True):
        path = directory / f"{base:020d}.log"
        path.write_bytes(data[begin:end])
        replica.append(Segment(LOG, base, FileFacts.of(path), SegmentState.SEALED, end=following))
    return replica


@pytest.fixture(scope="module")
def original(node: Path) -> list[Segment]:
    return segments_of(node, LOG)


@pytest.fixture(scope="module")
def replica(original: list[Segment], tmp_path_factory: pytest.TempPathFactory) -> list[Segment]:
    return recut(original, tmp_path_factory.mktemp("replica") / LOG, 7)


def test_a_range_has_one_digest_however_it_is_cut(original: list[Segment], replica: list[Segment]) -> None:
    data = b"".join(Path(one.facts.path).read_bytes() for one in original)
    found = read_batches(data)
    ends = [*found.base_offsets.tolist()[1:], original[-1].end_offset]
    every = list(
        zip(found.base_offsets.tolist(), ends, found.positions.tolist(), found.sizes.tolist(), strict=True)
    )

    @given(st.tuples(*[st.integers(0, len(every) - 1)] * 2).map(sorted))
    def one_digest(chosen: list[int]) -> None:
        (first, _, begin, _), (_, end, at, size) = every[chosen[0]], every[chosen[1]]
        expected = hashlib.sha256(data[begin : at + size]).hexdigest()
        assert sha256_of_range(original, first, end) == expected
        assert sha256_of_range(replica, first, end) == expected

    one_digest()


def test_a_range_that_no_batches_have_has_none(original: list[Segment], replica: list[Segment]) -> None:
    found = read_batches(Path(original[0].facts.path).read_bytes())
    long = next(
        (base, last)
        for base, last in zip(found.base_offsets.tolist(), found.last_offsets.tolist(), strict=True)
        if last > base
    )
    for segments in (original, replica):
        end = segments[-1].end_offset
        assert sha256_of_range(segments, long[0] + 1, end) is None
        assert sha256_of_range(segments, 0, long[1]) is None
        assert sha256_of_range(segments, 0, end + 1) is None
        assert sha256_of_range(segments[1:], 0, end) is None
        assert sha256_of_range([], 0, 1) is None


def test_an_index_of_another_file_leads_nowhere(replica: list[Segment], tmp_path: Path) -> None:
    segment = replica[2]
    path = tmp_path / Path(segment.facts.path).name
    path.write_bytes(Path(segment.facts.path).read_bytes())
    # Its entry leads behind what is asked for.
    path.with_suffix(".index").write_bytes((1).to_bytes(4) + (path.stat().st_size - 100).to_bytes(4))
    found = read_batches(path.read_bytes())
    first = int(found.base_offsets[3])
    expected = hashlib.sha256(path.read_bytes()[int(found.positions[3]) :]).hexdigest()
    here = replace(segment, facts=FileFacts.of(path))
    assert sha256_of_range([here], first, segment.end_offset) == expected


def test_what_another_replica_archived_counts_where_the_bytes_are_the_same(
    node: Path, original: list[Segment], replica: list[Segment], tmp_path: Path
) -> None:
    lake = new_lake(tmp_path / "lake")
    rows = archive(lake, node, original[:-1])
    archive(lake, node, segments_of(node, "plain-0")[:2])
    log_id = rows[0].log_id
    assert log_id is not None
    log = (0, original[-1].end_offset)
    found = replica_receipts(lake, "node-2", {log_id: log})
    assert found == {log_id: rows}
    assert replica_receipts(lake, STORE, {log_id: log}) == {}
    assert replica_receipts(lake, "node-2", {"another/log/0": log}) == {}
    inside = replica_receipts(lake, "node-2", {log_id: (rows[1].base_offset, rows[3].end)})
    assert inside == {log_id: rows[1:4]}

    hashed: list[tuple[int, int]] = []

    def hash_range(first: int, end: int) -> str | None:
        hashed.append((first, end))
        return sha256_of_range(replica, first, end)

    archived_to = rows[-1].end
    compared = compare_with_replicas(lake, replica, rows, hash_range)
    covers = compared.covers
    assert (compared.same, compared.differences) == (rows, ())
    assert [it.segment for it in covers] == [one for one in replica if one.end_offset <= archived_to]
    for cover in covers:
        assert cover.receipts[0].base_offset <= cover.segment.base_offset
        assert cover.receipts[-1].end >= cover.segment.end_offset
    # Only what may cover it is hashed.
    hashed.clear()
    (one,) = compare_with_replicas(lake, replica[:1], rows, hash_range).covers
    assert hashed == [(row.base_offset, row.end) for row in one.receipts]
    assert len(hashed) < len(rows)
    # A file of the lake that is gone proves nothing here either.
    local(data_file_of(lake.messages(), rows[0])).unlink()
    assert compare_with_replicas(lake, replica[:1], rows, hash_range).covers == ()


def test_other_bytes_at_the_same_offsets_cover_nothing(
    node: Path, original: list[Segment], replica: list[Segment], tmp_path: Path
) -> None:
    lake = new_lake(tmp_path / "lake")
    rows = archive(lake, node, original[:2])
    path = tmp_path / Path(replica[0].facts.path).name
    data = bytearray(Path(replica[0].facts.path).read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    diverged = [replace(replica[0], facts=FileFacts.of(path)), *replica[1:]]
    compared = compare_with_replicas(
        lake, diverged, rows, lambda first, end: sha256_of_range(diverged, first, end)
    )
    assert diverged[0] not in [it.segment for it in compared.covers]
    assert compared.differences
    for one in compared.differences:
        assert one.sha256 not in (None, one.receipt.sha256)


@pytest.mark.again
def test_what_this_node_lacks_and_another_has_archived_is_no_loss(
    node: Path, original: list[Segment], replica: list[Segment], tmp_path: Path
) -> None:
    lake = new_lake(tmp_path / "lake")
    rows = archive(lake, node, original)
    segments = [*replica[:2], *replica[6:]]
    jobs = segment_jobs(
        lake,
        segments,
        store_id="node-2",
        lineage=0,
        broker="kafka",
        store_root=str(tmp_path),
        contexts={one.id: SegmentContext(rows[0].log_id) for one in segments},
    )
    archive_all(lake, jobs)
    first, end = replica[1].end_offset, replica[6].base_offset

    def ranges() -> list[tuple[int, int, Where, Status]]:
        (found,) = verify(lake, VerifyLevel.RECEIPTS, store_id="node-2")
        return [(it.start_offset, it.end_offset, it.where, it.status) for it in found.ranges]

    last = replica[-1].end_offset
    assert ranges() == [
        (0, first, Where.ARCHIVED, Status.OK),
        (first, end, Where.ARCHIVED, Status.OK),
        (end, last, Where.ARCHIVED, Status.OK),
    ]
    gone = next(row for row in rows if row.base_offset <= first < row.end)
    local(data_file_of(lake.messages(), gone)).unlink()
    assert ranges()[1] == (first, min(gone.end, end), Where.LOST, Status.FAILURE)


def test_what_another_replica_archived_and_let_expire_covers_nothing_and_is_no_loss(
    node: Path, original: list[Segment], replica: list[Segment], tmp_path: Path
) -> None:
    lake = new_lake(tmp_path / "lake")
    rows = archive(lake, node, original)
    segments = [*replica[:1], *replica[3:4]]
    jobs = segment_jobs(
        lake,
        segments,
        store_id="node-2",
        lineage=0,
        broker="kafka",
        store_root=str(tmp_path),
        contexts={one.id: SegmentContext(rows[0].log_id) for one in segments},
    )
    archive_all(lake, jobs)
    expire(lake, rows)
    log_id = str(rows[0].log_id)
    # No receipt permits a deletion of the node that has the bytes still.
    assert replica_receipts(lake, "node-2", {log_id: (0, original[-1].end_offset)}) == {}
    first, end = replica[0].end_offset, replica[3].base_offset
    (found,) = verify(lake, VerifyLevel.RECEIPTS, store_id="node-2")
    assert (found.overall, [(it.start_offset, it.end_offset, it.where) for it in found.ranges]) == (
        Status.OK,
        [
            (0, first, Where.ARCHIVED),
            (first, end, Where.EXPIRED),
            (end, replica[3].end_offset, Where.ARCHIVED),
        ],
    )
    with pytest.raises(RestoreError, match="EXPIRED: expired by act"):
        choose_segments(lake, "node-2", files_only=True)
