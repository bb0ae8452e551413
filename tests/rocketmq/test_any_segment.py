"""Whatever lies in a segment file, the lake gives back the identical file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_engine.exceptions import CorruptFrameError
from storage_engine.lake.archive.archive import archive_segment, segment_jobs
from storage_engine.lake.archive.commit import commit_segments
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.file.jobs import ProvenSegment
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.verify.verify import verify
from storage_engine.model.report.validation import Status, VerifyLevel
from storage_engine.model.store import FileFacts, Segment, SegmentState
from tests.rounds import rounds
from tests.services.restoring import restore

EXAMPLES = rounds("STORAGE_ENGINE_SEGMENT_EXAMPLES", 25, 80)


@pytest.fixture
def put_segment(tmp_path: Path) -> Callable[[int, bytes], Segment]:
    """Write a segment of a store that holds nothing else yet."""
    directory = tmp_path / "store" / "commitlog"
    directory.mkdir(parents=True)

    def put(base_offset: int, content: bytes) -> Segment:
        path = directory / f"{base_offset:020d}"
        path.write_bytes(content)
        return Segment("commitlog", base_offset, FileFacts.of(path), SegmentState.SEALED)

    return put


@pytest.mark.slow
def test_any_segment_comes_back_from_the_lake_as_it_was(
    any_segment: Callable[[int], Any],
    reference_rows: Callable[[bytes, int], list[dict[str, Any]]],
    put_segment: Callable[[int, bytes], Segment],
    tmp_path: Path,
) -> None:
    """Each example is archived with proof; all of them, back to back, are one store's log in the end."""
    lake = make_lake(LakeConfig.local(tmp_path / "lake"))
    identity = {"store_id": "s", "lineage": 0, "broker": "rocketmq", "store_root": str(tmp_path / "store")}
    written: dict[int, bytes] = {}
    proven: list[ProvenSegment] = []

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(source=st.data())
    def archive_one(source: st.DataObject) -> None:
        base_offset = sum(map(len, written.values()))
        data = source.draw(any_segment(base_offset).filter(len))
        segment = put_segment(base_offset, data)
        (job,) = segment_jobs(lake, [segment], accept_damage=True, **identity)
        expected = reference_rows(data, base_offset)
        damaged_bytes = sum(row["size"] for row in expected if row["kind"] == "undecodable")
        if damaged_bytes:
            (strict,) = segment_jobs(lake, [segment], **identity)
            with pytest.raises(CorruptFrameError):
                archive_segment(strict)
        found = archive_segment(job)
        messages = sum(row["kind"] == "message" for row in expected)
        assert (found.message_count, found.damaged_bytes) == (messages, damaged_bytes)
        written[base_offset] = data
        proven.append(found)

    archive_one()
    commit_segments(lake, proven)
    restored = restore(lake, "s", tmp_path / "restored", files_only=True)
    assert {row.base_offset: Path(row.path).read_bytes() for row in restored} == written
    assert len(written) > EXAMPLES // 2
    assert sum(map(len, written.values())) > 1_250 * EXAMPLES
    (verified,) = verify(lake, VerifyLevel.BYTES)
    assert {row.status for row in verified.ranges} <= {Status.OK, Status.WARNING}
    assert [finding for finding in verified.findings if finding.status is Status.FAILURE] == []
