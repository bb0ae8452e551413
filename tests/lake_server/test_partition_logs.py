"""Where readers go on, against all offsets looked at one by one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from storage_engine.lake_server.partition_logs import LogSource, next_step
from tests.lake_server.test_archived_partitions import archive, receipt

SPANS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 10), st.sampled_from([None, None, "expired"])),
    min_size=1,
    max_size=8,
)
CLUSTERS = st.tuples(st.integers(0, 45), st.integers(0, 20)).map(lambda one: (one[0], sum(one)))


@given(SPANS, CLUSTERS, st.integers(0, 60), st.integers(0, 5))
def test_a_reader_goes_on_at_the_next_offset_that_anyone_has(
    spans: list[tuple[int, int, str | None]], cluster: tuple[int, int], offset: int, deleted: int
) -> None:
    rows = [receipt(base, base + length, state=state) for base, length, state in spans]
    partition = archive(*rows).topics["orders"][0]
    if partition.ranges:
        # Records were deleted up to one inside the first range.
        first_range = partition.ranges[0]
        partition = replace(partition, start=min(first_range.first + deleted, first_range.end - 1))
    archived = {at for one in partition.ranges for at in range(one.first, one.end) if at >= partition.start}
    first, end = cluster
    anywhere = archived | set(range(first, end))
    step = next_step(partition, offset, cluster)
    at_once = next_step(partition, offset, None)
    # The cluster is asked before anything is known of it, for whatever the lake lacks.
    assert at_once.offset == offset
    assert at_once.source is (LogSource.LAKE if offset in archived else LogSource.CLUSTER)
    if step.source is LogSource.LAKE:
        assert step.offset in archived
        assert step.end > step.offset
        assert set(range(step.offset, step.end)) <= archived
        assert step.end not in archived
    elif step.source is LogSource.CLUSTER:
        assert step.offset not in archived
        assert first <= step.offset <= end
        # Waiting at its end for records is right only where no other record has the offset.
        assert step.offset < end or end >= partition.end
    elif step.source is LogSource.BEHIND:
        assert end < partition.end
        assert offset == partition.end or not archived
    else:
        starts = [first, *([partition.start] if archived else [])]
        assert offset < min(starts) or offset > max(end, partition.end)
        assert offset not in anywhere
        return
    skipped = set(range(offset, step.offset))
    assert not skipped & anywhere
    expired = {at for begun, ended, _ in partition.expired for at in range(begun, ended)}
    assert {at for begun, ended in step.missing for at in range(begun, ended)} == skipped - expired
    assert all(begun < ended for begun, ended in step.missing)


@given(SPANS, CLUSTERS)
@example([(0, 1, None), (3, 1, None)], (2, 2))
def test_a_reader_that_goes_on_gets_every_offset_once_and_in_order(
    spans: list[tuple[int, int, str | None]], cluster: tuple[int, int]
) -> None:
    partition = archive(*[receipt(base, base + length, state=state) for base, length, state in spans])
    of_lake = partition.topics["orders"][0]
    archived = {at for one in of_lake.ranges for at in range(one.first, one.end)}
    first, end = cluster
    offset = min([first, *([of_lake.start] if archived else [])])
    read: list[int] = []
    while (step := next_step(of_lake, offset, cluster)).source in (LogSource.LAKE, LogSource.CLUSTER):
        if step.source is LogSource.CLUSTER and step.offset == end:
            break
        got = range(step.offset, step.end if step.source is LogSource.LAKE else step.offset + 1)
        read += got
        offset = got[-1] + 1
    assert read == sorted(archived | set(range(first, end)))


def test_what_the_lake_refuses_is_asked_of_the_cluster_first() -> None:
    rows = [receipt(0, 10), receipt(10, 20, row_hash="0" * 64), receipt(20, 30)]
    partition = archive(*rows).topics["orders"][0]
    assert next_step(partition, 5, None).end == 10
    assert next_step(partition, 12, None).source is LogSource.CLUSTER
    assert next_step(partition, 12, (0, 40)).source is LogSource.CLUSTER
    refused = next_step(partition, 12, (30, 40))
    assert (refused.source, refused.offset) == (LogSource.LAKE, 12)
    assert refused.end > 12
