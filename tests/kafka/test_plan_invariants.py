"""What holds of every plan, whatever logs a node has."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from storage_engine.kafka.format.layout import read_node
from storage_engine.kafka.format.log_end import log_end, segment_facts
from storage_engine.kafka.retention_rules import LogFacts, RetentionSettings, retention_pass
from storage_engine.kafka.store.plan import SeenLog, log_facts
from storage_engine.kafka.store.store import log_snapshot
from storage_engine.model.plan import Plan
from tests.kafka.made_node import WRITTEN_MS, MadeNode, batch_of
from tests.kafka.plans import DAY_MS, planned

LOGS = st.lists(st.tuples(st.integers(-10, 10), st.integers(1, 3)), min_size=1, max_size=5)
"""Of each segment the day of its records and how many batches it has."""

SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "retention.ms": st.sampled_from(["-1", "0", str(3 * DAY_MS)]),
        "retention.bytes": st.sampled_from(["-1", "0", "100", "300"]),
        "cleanup.policy": st.sampled_from(["delete", "compact", "compact,delete", ""]),
        "remote.storage.enable": st.just("true"),
    },
)

NODES = st.lists(
    st.tuples(LOGS, SETTINGS, st.one_of(st.none(), st.integers(0, 12)), st.integers(0, 12)),
    min_size=1,
    max_size=4,
)

made_often = hypothesis_settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def node_of(
    root: Path, logs: Sequence[tuple[Sequence[tuple[int, int]], Mapping[str, str], int | None, int]]
) -> Path:
    made = MadeNode(root / uuid.uuid4().hex)
    starts = {}
    for number, (shape, settings, watermark, start) in enumerate(logs):
        segments, at = {}, 0
        for day, count in shape:
            ms = WRITTEN_MS + day * DAY_MS
            segments[at] = [batch_of(at + 2 * i, ms=ms) for i in range(count)]
            at += 2 * count
        made.add(f"t{number}-0", segments, settings=settings)
        if watermark is None:
            del made.watermarks[f"t{number}-0"]
        else:
            made.watermarks[f"t{number}-0"] = min(watermark, at)
        starts[f"t{number}-0"] = min(start, at)
    made.checkpoint("log-start-offset-checkpoint", starts)
    written = made.write()
    for path in root.rglob("*.log"):
        # What has no time of its own is as old as its file.
        os.utime(path, (WRITTEN_MS / 1000, WRITTEN_MS / 1000))
    return written


def words(plan: Plan) -> dict[str, list[tuple[int, str, str]]]:
    return {
        log.log: [(one.segment.base_offset, one.reason.value, one.detail) for one in log.decisions]
        for log in plan.logs
    }


@made_often
@given(logs=NODES)
def test_one_plan_of_many_logs_is_many_plans_of_one(
    tmp_path: Path, logs: list[tuple[list[tuple[int, int]], dict[str, str], int | None, int]]
) -> None:
    together = words(planned(node_of(tmp_path, logs), now_ms=WRITTEN_MS))
    for number, one in enumerate(logs):
        alone = words(planned(node_of(tmp_path, [one]), now_ms=WRITTEN_MS))
        assert alone["t0-0"] == together[f"t{number}-0"]


@made_often
@given(logs=NODES, left_out=st.sampled_from(["watermarks", "metadata", "properties", "ids", "metadata.log"]))
def test_what_is_unknown_never_frees(
    tmp_path: Path,
    logs: list[tuple[list[tuple[int, int]], dict[str, str], int | None, int]],
    left_out: str,
) -> None:
    root = node_of(tmp_path, logs)
    known = {segment.id for segment in planned(root, now_ms=WRITTEN_MS).to_delete}
    logs_dir = root.parent / "logs"
    if left_out == "watermarks":
        (logs_dir / "replication-offset-checkpoint").unlink()
    elif left_out == "metadata":
        (root.parent / "meta" / "__cluster_metadata-0" / f"{0:020d}.log").write_bytes(b"")
    elif left_out == "metadata.log":
        (root.parent / "meta" / "__cluster_metadata-0" / f"{0:020d}.log").unlink()
    elif left_out == "ids":
        for path in logs_dir.glob("*/partition.metadata"):
            path.unlink()
    else:
        root = logs_dir
    assert planned(root, now_ms=WRITTEN_MS).to_delete == (), known


@made_often
@given(logs=NODES)
def test_reading_few_indexes_decides_as_reading_all(
    tmp_path: Path, logs: list[tuple[list[tuple[int, int]], dict[str, str], int | None, int]]
) -> None:
    for directory, log in read_node(node_of(tmp_path, logs).parent / "logs").logs:
        end = log_end(log)
        one = SeenLog(log_snapshot(directory, log, end), directory, log, end)
        facts = tuple(segment_facts(each, active=each is log.segments[-1]) for each in log.segments)
        whole = LogFacts(facts, one.start_offset, one.high_watermark, end.offset)
        for kept_ms in (-1, 0, 2 * DAY_MS):
            for kept_bytes in (-1, 0, 200):
                settings = RetentionSettings(retention_ms=kept_ms, retention_bytes=kept_bytes)
                few = log_facts(one, settings, WRITTEN_MS)
                assert retention_pass(few, settings, WRITTEN_MS) == retention_pass(
                    whole, settings, WRITTEN_MS
                )
