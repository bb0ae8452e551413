"""What a job leaves on disk goes with it, or is swept once its process is dead."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from storage_engine.retention.store.managed_store import job_directory, sweep_job_files

RUN = """
import sys, time
from pathlib import Path
from storage_engine.retention.store.managed_store import job_directory
with job_directory(Path(sys.argv[1])) as directory:
    (directory / "request.json").write_text("{}")
    print(directory, flush=True)
    time.sleep(600)
"""


def _start(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    job = subprocess.Popen([sys.executable, "-c", RUN, str(parent)], stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    return job, Path(job.stdout.readline().strip())


def test_the_files_of_a_killed_job_go_when_the_next_one_starts(tmp_path: Path) -> None:
    job, left = _start(tmp_path)
    with job:
        job.send_signal(signal.SIGKILL)
    assert (left / "request.json").exists()
    with job_directory(tmp_path) as mine:
        assert not left.exists()
        assert mine.stat().st_mode & 0o777 == 0o700
    assert not list(tmp_path.iterdir())


def test_the_files_of_a_running_job_stay(tmp_path: Path) -> None:
    job, directory = _start(tmp_path)
    with job:
        try:
            assert sweep_job_files(tmp_path) == ()
            assert (directory / "request.json").exists()
        finally:
            job.kill()
    assert sweep_job_files(tmp_path, dry_run=True) == (directory,)
    assert sweep_job_files(tmp_path) == (directory,)
    assert not directory.exists()


def test_nothing_behind_a_link_is_swept(tmp_path: Path) -> None:
    other, parent = tmp_path / "other", tmp_path / "reports"
    other.mkdir()
    parent.mkdir()
    (parent / ".spark-job-link").symlink_to(other)
    assert sweep_job_files(parent) == ()
    assert other.is_dir()
