"""Benchmarks run to their ends on small sizes; what they measure there means nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = {
    "archive": "b.run(segments=2, segment_bytes=1 << 20)",
    "console": "b.DAYS = 2; b.START_MS = b.NOW_MS - 2 * b.DAY_MS; b.ROUNDS = 1; b.run()",
    "dag_parse": "b.run(stores=2)",
    "decode": "b.SEGMENT_BYTES = 1 << 20; b.TURNS = 1; b.run()",
    "plans": "b.LOGS = 20; b.run()",
    "stages": "sys.argv[1:] = ['--segments', '2', '--segment-bytes', '1048576']; b.main()",
}


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
