"""Benchmarks run to their ends on small sizes; what they measure there means nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks import put_latency
from demo.brokers.rocketmq import Load

ROOT = Path(__file__).parents[2]
SMALL = {
    "agent": "b.run(segments=1, segment_bytes=1 << 20)",
    "archive": "sys.modules['benchmarks.common'].TURNS = 1; b.run(segments=2, segment_bytes=1 << 20)",
    "console": "b.DAYS = 2; b.START_MS = b.NOW_MS - 2 * b.DAY_MS; b.ROUNDS = 1; b.run()",
    "dag_parse": "b.run(stores=2)",
    "decode": "b.SEGMENT_BYTES = 1 << 20; b.TURNS = 1; b.run()",
    "doctor": "b.run(segments=10, queues=16)",
    "driver": "sys.argv[1:] = ['--segments', '4']; b.main()",
    "engine_append": "b.SECONDS, b.REST_SECONDS, b.TURNS, b.REBUILT_MESSAGES = 0.2, 0.1, 1, 2_000; b.run()",
    "generate": (
        "sys.argv[1:] = [f'{work}/store', '--segments', '2', '--segment-bytes', '1048576']; b.main()"
    ),
    "growth": "b.run(commits=20); b.run_receipts(40, 20, 5, turns=1)",
    "journal": "b.DAYS = 2; b.EVENTS = 1_000; b.MANY = 20; b.ROUNDS = 1; b.run()",
    "shared_files": "b.run(80)",
    "kafka_archive": "b.SEGMENT_BYTES = 1 << 20; sys.modules['benchmarks.common'].TURNS = 1; b.run()",
    "kafka_decode": (
        "b.SEGMENT_BYTES, b.TURNS, b.ROUNDS_A_TURN, b.WARM_UP_ROUNDS = 1 << 20, 1, 1, 1; b.run()"
    ),
    "kafka_groups": "b.run(topics=2, partitions=3, groups=4)",
    "kafka_live": "b.ALONE_SECONDS = 1.0; b.run(topics=2)",
    "kafka_plan": "b.run(topics=3)",
    "kafka_run": "b.run(topics=3)",
    "lag": "b.run(queues=16, groups=3)",
    "metrics": "c = b.console; c.DAYS = 2; c.START_MS = c.NOW_MS - 2 * c.DAY_MS; b.STORES = 2; b.run()",
    "plans": "b.LOGS, b.SEGMENTS = 20, 10; sys.modules['benchmarks.common'].TURNS = 1; b.run()",
    # A broker's first cleanup begins when it has run for a minute.
    "put_latency": (
        "b.ROUNDS, b.SECONDS, b.SEGMENTS_A_CYCLE, b.LEAVING_FILES = 1, 2.0, 2, 1; "
        "b.SETTINGS['deleteFileBatchMax'] = b.SEGMENTS_A_CYCLE; b.run()"
    ),
    "query": (
        "b.MESSAGES, b.SEGMENT_BYTES, b.COPIES = 12_000, 2 << 20, 1; "
        "sys.modules['benchmarks.common'].TURNS = 1; b.run()"
    ),
    "read_on": "b._SETTINGS['log.segment.bytes'] = 1 << 20; b.SEEKS, b.SEGMENTS = 2, 9; b.run(records=3_000)",
    "scale": (
        "b.ROUNDS, b.HASHED_BYTES = 1, 1 << 20; b.MUST_BY_MASTER = {'local[2]': 1.4}; "
        "b.run(segments=3, segment_bytes=1 << 20)"
    ),
    "stages": "sys.argv[1:] = ['--segments', '2', '--segment-bytes', '1048576']; b.main()",
}
PARTS = {"common", "history"}
"""Of others, which run them."""


def test_each_benchmark_has_a_small_run() -> None:
    names = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"__init__", "__main__"}
    assert names == {*SMALL, *PARTS}


def test_a_put_that_failed_is_counted_by_what_its_client_was_told(tmp_path: Path) -> None:
    busy = "MQBrokerException: CODE: 2  DESC: [TIMEOUT_CLEAN_QUEUE]broker busy"
    records: list[dict[str, object]] = [
        {"sent": "steady", "atMs": 1000, "micros": 300},
        {"failed": "steady", "atMs": 1001, "micros": 201_000, "error": f"{busy}\nFor more: a page"},
        {"failed": "steady", "atMs": 2000, "micros": 9, "error": "behind the span"},
    ]
    record = tmp_path / "load.jsonl"
    record.write_text("".join(f"{json.dumps(it)}\n" for it in records))
    puts = put_latency.Puts()
    put_latency.count(Load(cast(Any, None), record, record), puts, 1000, 2000)
    assert puts.line("gentle").splitlines()[1:] == [f"  1 failed: {busy}"]


@pytest.mark.slow
@pytest.mark.again
@pytest.mark.parametrize("name", SMALL)
def test_it_runs_to_its_end(name: str, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; work = sys.argv[1]; "
        f"import benchmarks.{name} as b; {SMALL[name]}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
