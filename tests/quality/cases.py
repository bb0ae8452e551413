"""A store with a lake, to be put back as it was for each test."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from storage_engine.model.plan import PlanRequest
from storage_engine.model.report.validation import ValidationResult
from storage_engine.quality.validate import validate_store
from storage_engine.retention import steps
from storage_engine.retention.store.managed_store import ManagedStore
from tests.fixture_stores import unpack
from tests.lakes import make_lakes

SEGMENT = 1 << 20
RELEASED = 4
RUN = "nightly/2026-11-20T04:00:00+00:00"


@dataclass(frozen=True)
class Case:
    """A store of which everything sealed is archived and the first four segments are released."""

    root: Path
    store: ManagedStore
    output: Path

    def validate(self, run_key: str | None = RUN, **options: bool) -> ValidationResult:
        return validate_store(self.store, run_key, output_dir=self.output, **options)

    @property
    def lake(self) -> Path:
        return self.output.parent / "lake"

    def data_file(self, number: int) -> Path:
        (found,) = self.lake.rglob(f"*-{number * SEGMENT:020d}-*.parquet")
        return found

    def segment(self, number: int) -> Path:
        return self.root / "commitlog" / f"{number * SEGMENT:020d}"


def make_case(base: Path) -> None:
    """Make the case once below a directory."""
    unpack("clean-stop", base / "case" / "broker")
    case = open_case(base)
    make_lakes(case.store)
    long_ago = time.time() - 100 * 3600
    for number in range(RELEASED):
        os.utime(case.segment(number), (long_ago, long_ago))
    steps.make_plan(case.store, RUN, PlanRequest(manual=True))
    steps.archive(case.store, RUN, steps.archive_jobs(case.store, RUN, all_sealed=True))
    assert len(steps.release(case.store, RUN).deleted) == RELEASED
    steps.clean_dependents(case.store, RUN)
    steps.flush_checkpoint(case.store, RUN)
    shutil.copytree(base / "case", base / "pristine")


def fresh_case(base: Path) -> Case:
    shutil.rmtree(base / "case")
    shutil.copytree(base / "pristine", base / "case")
    return open_case(base)


def open_case(base: Path) -> Case:
    (root,) = (base / "case" / "broker").iterdir()
    store = ManagedStore.local("orders", str(root), base / "case" / "data")
    return Case(root, store, base / "case" / "data" / "out")
