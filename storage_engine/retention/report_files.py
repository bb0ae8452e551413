"""Where the files of a run's report go."""

from __future__ import annotations

import re
from pathlib import Path

from storage_engine.retention.managed_store import ManagedStore


def run_directory(store: ManagedStore, run_key: str) -> Path:
    """The directory of a run's own files under the store's reports."""
    return Path(store.report_dir) / report_name(store.name) / report_name(run_key)


def report_name(text: str) -> str:
    """A file name made of any text: Airflow's run ids have colons and plus signs, which not every file
    system and tool takes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-") or "run"
