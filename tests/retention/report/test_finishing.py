"""What a run's end keeps for who looks at months of runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine import cycle
from storage_engine.core.clock import clock_ms
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.retention.store.managed_store import ManagedStore
from tests.retention.conftest import MANUAL
from tests.rounds import later

pytestmark = pytest.mark.usefixtures("plainly")


@pytest.mark.parametrize("is_damaged", [True, *later(False)])
def test_the_verdict_of_a_real_validation_is_kept_in_columns(
    managed: Callable[..., ManagedStore], lake_dir: Path, is_damaged: bool
) -> None:
    store = managed()
    cleanup = cycle.Cleanup(store, "r", MANUAL)
    for step in cycle.CLEANUP:
        if step is cycle.validate and is_damaged:
            min(lake_dir.rglob("*commitlog-0000*.parquet")).unlink()
        step(cleanup)
    reader = JournalReader(store.journal_url)
    (kept,) = reader.verdicts(reader.stores()[0].store_id, 0, clock_ms() + 1)
    assert (kept.validation, kept.lost_ranges) == (("FAILURE", 1) if is_damaged else ("OK", 0))
    assert kept.outcome == ("failed" if is_damaged else "done")
