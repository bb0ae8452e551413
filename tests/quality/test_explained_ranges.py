"""A validation of logs that are others than the archived ones, or that a broker's cleaner has cleaned."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from storage_engine.cycle import archive_here
from storage_engine.lake.move.making import make_lake
from storage_engine.model.report.validation import RangeStatus, Status, Where
from storage_engine.quality.facts import collect_facts, explain_ranges
from storage_engine.retention.archive.sealed import archive_sealed
from storage_engine.retention.decisions import adopt
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.made_node import MadeNode, batch_of

FOUR = {0: [batch_of(0)], 2: [batch_of(2)], 4: [batch_of(4)], 6: [batch_of(6)]}


def test_a_topic_that_was_made_again_and_an_emptied_segment_are_told_for_what_they_are(
    tmp_path: Path,
) -> None:
    node = MadeNode(tmp_path / "node")
    again = node.add("again-0", FOUR)
    cleaned = node.add("cleaned-0", {**FOUR, 2: []})
    node.checkpoint("cleaner-offset-checkpoint", {"cleaned-0": 4})
    store = ManagedStore.local("k", str(node.write()), tmp_path / "managed", broker="kafka")
    make_lake(store.lake, "kafka")
    archive_sealed(store, "run", archive_here)
    # Its broker deletes what has expired; the topic comes back with the same records.
    for offset in (0, 2):
        (cleaned / f"{offset:020d}.log").unlink()
    shutil.rmtree(again)
    node.topic_ids["again"] = uuid.uuid5(uuid.NAMESPACE_DNS, "made again")
    node.add("again-0", FOUR)
    node.write()

    def found(log: str) -> list[tuple[int, int, Where, Status]]:
        return [(one.start_offset, one.end_offset, one.where, one.status) for one in of(log)]

    def of(log: str) -> list[RangeStatus]:
        facts = collect_facts(store, None, full=False, with_lake=True)
        return [one for one in facts.ranges if one.log == log]

    assert found("cleaned-0") == [
        (0, 2, Where.ARCHIVED, Status.OK),
        (2, 4, Where.LOST, Status.WARNING),
        (4, 6, Where.BOTH, Status.OK),
        (6, 8, Where.LOCAL, Status.OK),
    ]
    (first,) = of("again-0")
    assert (first.where, first.status) == (Where.LOCAL, Status.FAILURE)
    assert "the log on disk isn't the archived log: it is log " in first.detail
    assert "adopt STORE --log again-0 --reason WHY" in first.detail
    adopt(store, "me", "it was made again", log="again-0")
    assert {one.status for one in of("again-0")} == {Status.OK}


def test_what_no_cleaner_can_have_taken_is_lost() -> None:
    lost = RangeStatus("a-0", 2, 6, Where.LOST, Status.FAILURE, (), "nowhere")
    assert explain_ranges([lost], {}, {"a-0": 5, "b-0": 9}) == (lost,)
    (cleaned,) = explain_ranges([lost], {}, {"a-0": 6})
    assert cleaned.status is Status.WARNING
    assert cleaned.detail.startswith("nowhere; the broker's cleaner has run up to offset 6")
