"""What happened to the lake behind our back is refused by the gate, put right, and then the release goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from storage_engine.cli.main import cli
from storage_engine.exceptions import GateRefusedError
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.file.jobs import SegmentJob
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import list_stores, receipt_history, receipts
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.validation import Status, VerifyLevel
from storage_engine.retention import steps
from storage_engine.retention.ranges.verification import verify_lake
from storage_engine.retention.store.managed_store import ManagedStore
from tests.lakes import damage, path_of
from tests.rounds import later, rounds

pytestmark = pytest.mark.slow

Make = Callable[..., ManagedStore]
TIMES = rounds("STORAGE_ENGINE_RENEWALS", 1, 2)
RENEW = ("verify", "--level", "bytes", "--renew")


def here(jobs: Sequence[SegmentJob]) -> tuple[Receipt, ...]:
    return archive_all(open_lake(jobs[0].lake), jobs)


def lake_of(store: ManagedStore) -> Lake:
    return open_lake(store.lake)


def rows_of(lake: Lake) -> tuple[Receipt, ...]:
    (store,) = list_stores(lake)
    return receipts(lake, store.store_id)


def compact(store: ManagedStore) -> None:
    """As another engine does: all rows into new files."""
    table = lake_of(store).messages()
    table.overwrite(table.scan().to_arrow())


def run(*arguments: str | Path) -> str:
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def refusal(store: ManagedStore) -> str:
    with pytest.raises(GateRefusedError) as refused:
        steps.release(store, "r")
    assert (Path(store.root) / "commitlog" / f"{0:020d}").exists()
    return str(refused.value)


def lose(path: Path) -> None:
    path.unlink()


def harm(lake: Lake, how: Callable[[Path], None]) -> None:
    how(path_of(lake, rows_of(lake)[0]))


@pytest.mark.again
def test_what_another_engine_rewrote_goes_only_once_it_is_proven_where_it_is(
    archived: Make, lake_dir: Path
) -> None:
    store = archived(max_segments=2)
    for _ in range(TIMES):
        compact(store)
        said = refusal(store)
        assert "another engine has put its rows into other files" in said
        assert f"storage-engine {' '.join(RENEW)}" in said
        before = rows_of(lake_of(store))
        plain = run(*RENEW[:-1], "--lake", lake_dir)
        assert f"storage-engine {' '.join(RENEW)}" in plain
        assert rows_of(lake_of(store)) == before
        refusal(store)
        assert "2 receipts renewed" in run(*RENEW, "--lake", lake_dir)
        assert "OK" in run(*RENEW, store.root, "--lake", lake_dir)
    lake = lake_of(store)
    history = receipt_history(lake, rows_of(lake)[0].store_id)
    assert [row.sequence for row in history] == list(range(2 + 2 * TIMES))
    check_chain(history)
    assert len(steps.release(store, "r").deleted) == 2


@pytest.mark.parametrize("how", [damage, *later(lose)])
def test_a_data_file_that_was_harmed_is_put_right_by_the_run_that_needs_it(how, archived: Make) -> None:
    store = archived(max_segments=2)
    harm(lake_of(store), how)
    assert "Archive them again" in refusal(store)
    done = steps.archive_planned(store, "r", here)
    assert [row.base_offset for row in done.receipts] == [0]
    assert len(steps.release(store, "r").deleted) == 2
    (found,) = verify_lake(store.lake, store.journal_url, VerifyLevel.BYTES)
    assert not [finding for finding in found.findings if finding.status is Status.FAILURE]


@pytest.mark.parametrize("how", [lose, *later(damage)])
def test_archiving_what_is_sealed_puts_right_what_verifying_found(how, managed: Make) -> None:
    store = managed()
    steps.archive_sealed(store, "a", here, budget_bytes=2 << 20)
    lake = lake_of(store)
    harm(lake, how)
    (found,) = verify_lake(store.lake, store.journal_url, VerifyLevel.FILES)
    assert found.overall is Status.FAILURE
    assert "run storage-engine archive again" in found.findings[0].advice
    done = steps.archive_sealed(store, "b", here, budget_bytes=1)
    assert [row.base_offset for row in done.receipts] == [0]
    (found,) = verify_lake(store.lake, store.journal_url, VerifyLevel.FILES)
    assert (found.overall, found.findings) == (Status.OK, ())


@pytest.mark.again
def test_renewing_leaves_alone_what_its_rows_do_not_prove_and_a_broken_chain(
    archived: Make, lake_dir: Path
) -> None:
    store = archived(max_segments=2)
    compact(store)
    lake = lake_of(store)
    lake.messages().delete("segment_base_offset = 0 and physical_offset > 1000")
    (found,) = verify_lake(store.lake, store.journal_url, VerifyLevel.BYTES, renew=True)
    assert (found.overall, found.renewed_count) == (Status.FAILURE, 1)
    assert [row.moved_to is None for row in rows_of(lake)] == [True, False]
    compact(store)
    lake.segments().delete("sequence = 0")
    (found,) = verify_lake(store.lake, store.journal_url, VerifyLevel.BYTES, renew=True)
    assert (found.overall, found.renewed_count) == (Status.FAILURE, 0)
    usage = CliRunner().invoke(cli, ["verify", "--lake", str(lake_dir), "--level", "files", "--renew"])
    assert usage.exit_code == 2
