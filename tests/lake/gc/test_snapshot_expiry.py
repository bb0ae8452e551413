"""Maintenance of a lake: what expires, what never does, and what a long history costs."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform

from benchmarks.growth import add_history, clean_one, make_store
from storage_engine.core.clock import DAY_MS
from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.archive import small_tables
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.tables import GROWTH_PROPERTIES
from storage_engine.lake.coverage.spans import receipt_spans
from storage_engine.lake.file.scan import RANGES_NAME, known_ranges, live_data_files
from storage_engine.lake.gc import snapshot_expiry
from storage_engine.lake.gc.snapshot_expiry import LakePolicy, maintain_lake
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.lake.storage.small_files import forget_files
from storage_engine.lake.verify.verify import read_state, verify
from storage_engine.model.plan import PlanRequest
from storage_engine.model.report.validation import Status, VerifyLevel
from storage_engine.retention import steps
from tests.stock_engine import set_properties, stock_table

pytestmark = pytest.mark.slow

FEW = LakePolicy(snapshot_age_ms=0, least_snapshots=1, most_snapshots=2)


_ROLL_BACK = """
import sys
from storage_engine.lake.archive import small_tables
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
table = open_lake(LakeConfig.local(sys.argv[1])).messages()
if table.current_snapshot().snapshot_id != int(sys.argv[2]):
    table.manage_snapshots().rollback_to_snapshot(int(sys.argv[2])).commit()
"""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def archived(filled):
    """A lake with one commit a segment."""
    return filled(3)


def _ids(table) -> list[int]:
    return [snapshot.snapshot_id for snapshot in table.metadata.snapshots]


def test_snapshots_expire_by_age_and_number_and_never_the_current_one(archived) -> None:
    now_ms = _now_ms()
    kept = maintain_lake(archived, LakePolicy(), now_ms)
    assert [table.expired for table in kept.tables] == [0, 0, 0]
    later = maintain_lake(archived, LakePolicy(least_snapshots=2), now_ms + 2 * DAY_MS)
    assert [(table.expired, table.left) for table in later.tables] == [(1, 2), (1, 2), (0, 0)]
    current = archived.messages().current_snapshot().snapshot_id
    maintain_lake(archived, FEW, now_ms + 2 * DAY_MS)
    assert _ids(archived.messages()) == [current]
    assert not broken_receipts(archived, receipts(archived, "store-1"), Depth.FILES)
    assert read_state(archived, None, (), lambda _: ())[0].findings == ()


def test_a_second_call_finds_nothing_and_commits_nothing(archived) -> None:
    maintain_lake(archived, FEW, _now_ms())
    before = archived.messages().metadata_location
    assert maintain_lake(archived, FEW, _now_ms()).expired == 0
    assert archived.messages().metadata_location == before


def test_a_dry_run_says_what_would_expire_and_changes_nothing(archived, fingerprint, tmp_path) -> None:
    before = fingerprint(tmp_path / "lake")
    said = maintain_lake(archived, FEW, _now_ms(), dry_run=True)
    assert [(table.expired, table.left) for table in said.tables] == [(2, 1), (2, 1), (0, 0)]
    after = fingerprint(tmp_path / "lake")
    # By the files that gc asks the disk for the time with.
    assert {path: after[path] for path in after if not path.endswith("-clock")} == before


def test_a_reader_and_an_older_catalog_find_the_files_of_an_expired_snapshot(archived) -> None:
    table = archived.messages()
    oldest = table.metadata.snapshots[0].snapshot_id
    older = Path(table.metadata.metadata_log[-1].metadata_file.removeprefix("file://"))
    maintain_lake(archived, FEW, _now_ms())
    forget_files()
    assert table.scan(snapshot_id=oldest).to_arrow().num_rows > 0
    assert older.exists()


def test_nothing_expires_while_a_receipt_needs_an_older_snapshot(archived) -> None:
    receipt = receipts(archived, "store-1")[0]
    archived.messages().delete(f"segment_base_offset = {receipt.base_offset}")
    said = maintain_lake(archived, FEW, _now_ms())
    assert said.expired == 0
    assert "no snapshot expires: 1 receipt of store store-1" in said.notices[0]


def test_nothing_expires_while_the_chain_lacks_a_row(archived) -> None:
    archived.segments().delete("sequence = 1")
    said = maintain_lake(archived, FEW, _now_ms())
    assert said.expired == 0
    assert "no snapshot expires: receipts of store store-1" in said.notices[0]


def test_what_a_tag_names_and_what_was_rolled_back_stay(archived) -> None:
    first, second, third = _ids(archived.messages())
    archived.messages().manage_snapshots().create_tag(first, "keep").commit()
    segments = archived.segments()
    newest = segments.current_snapshot().snapshot_id
    said = maintain_lake(archived, FEW, _now_ms())
    assert _ids(archived.messages()) == [first, third]
    assert _ids(archived.segments()) == [newest]
    assert (said.tables[0].expired, second in _ids(archived.messages())) == (1, False)


@pytest.mark.again
def test_a_rollback_during_maintenance_is_never_undone_by_it(archived, monkeypatch, tmp_path) -> None:
    second = _ids(archived.messages())[1]
    prepare = snapshot_expiry._prepare

    def rolled_back_before(table, expiring):
        transaction = prepare(table, expiring)
        if table.name()[-1] == "messages" and second in expiring:
            # By another process: what this one writes here counts as the attempt's own.
            subprocess.run([sys.executable, "-c", _ROLL_BACK, tmp_path / "lake", str(second)], check=True)
        return transaction

    monkeypatch.setattr(snapshot_expiry, "_prepare", rolled_back_before)
    maintain_lake(archived, FEW, _now_ms())
    assert archived.messages().current_snapshot().snapshot_id == second


def test_a_lake_of_other_properties_gets_those_that_bound_its_growth(archived) -> None:
    set_properties(archived.config, {"write.metadata.delete-after-commit.enabled": "true"}, "messages")
    maintain_lake(archived, LakePolicy(), _now_ms())
    found = stock_table(archived.config, "messages").properties
    assert GROWTH_PROPERTIES.items() <= found.items()


def test_maintenance_killed_at_any_moment_goes_on(archived, tmp_path) -> None:
    """Each durable operation of a lake is an fsync, a rename or a removal; SQLite's are its own."""
    script = tmp_path / "kill.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "from storage_engine.lake.catalog.catalog import open_lake\n"
        "from storage_engine.lake.catalog.config import LakeConfig\n"
        "from storage_engine.lake.gc.snapshot_expiry import LakePolicy, maintain_lake\n"
        "lake = open_lake(LakeConfig.local(sys.argv[1]))\n"
        "policy = LakePolicy(snapshot_age_ms=0, least_snapshots=1, most_snapshots=2)\n"
        "for number in range(200):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        left = [number]\n"
        "        def before(do):\n"
        "            def counted(*args, **options):\n"
        "                if not left[0]:\n"
        "                    os.kill(os.getpid(), signal.SIGKILL)\n"
        "                left[0] -= 1\n"
        "                return do(*args, **options)\n"
        "            return counted\n"
        "        for name in ('fsync', 'replace', 'rename', 'unlink'):\n"
        "            setattr(os, name, before(getattr(os, name)))\n"
        "        maintain_lake(lake, policy, time.time_ns() // 10**6)\n"
        "        os._exit(0)\n"
        "    _, status = os.waitpid(child, 0)\n"
        "    if not os.WIFSIGNALED(status):\n"
        "        print(number, os.waitstatus_to_exitcode(status))\n"
        "        break\n"
    )
    said = subprocess.run(
        [sys.executable, script, tmp_path / "lake"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert int(said[0]) > 3
    assert said[1] == "0"
    lake = open_lake(LakeConfig.local(tmp_path / "lake"))
    assert [len(_ids(table)) for table in lake.tables()] == [1, 1]
    assert not broken_receipts(lake, receipts(lake, "store-1"), Depth.FILES)


def test_a_damaged_list_of_ranges_costs_nothing_but_time(archived) -> None:
    maintain_lake(archived, LakePolicy(), _now_ms())
    table = archived.messages()
    path = Path(table.location().removeprefix("file://")) / RANGES_NAME
    offsets = [next(iter(ranges.values())) for ranges in known_ranges(table).values()]
    assert sorted(it[:2] for it in offsets) == [(n << 20, n << 20) for n in range(3)]
    for content in (b"", b"{}", b'{"version": 1, "manifests": {}, "sha256": "0"}', b"\xff"):
        path.write_bytes(content)
        assert known_ranges(table) == {}
        assert len(live_data_files(table, "store-1", (0, 0))) == 1


@pytest.mark.parametrize("name", ["segments", "messages"])
@pytest.mark.parametrize("column", ["log", None])
def test_other_partitions_hide_nothing_and_nothing_is_put_into_them(
    filled, segments, make_jobs, name, column
) -> None:
    lake = filled(2)
    with lake.load(name).update_spec() as change:
        change.remove_field("store_id")
        if column is not None:
            change.add_field(column, IdentityTransform(), "by_another_engine")
    table = lake.load(name)
    before = table.scan().to_arrow()
    table.overwrite(before)
    maintain_lake(lake, LakePolicy(), _now_ms())
    forget_files()
    for first in range(2):
        span = (first << 20, first << 20)
        assert len(receipts(lake, "store-1", base_offsets=span)) == 1
        assert len(receipt_spans(lake, "store-1", first)) == 2 - first
        assert live_data_files(lake.messages(), "store-1", span)
    (found,) = verify(lake, VerifyLevel.BYTES)
    assert found.overall is (Status.OK if name == "segments" else Status.WARNING)
    with pytest.raises(LakeUnavailableError, match="expected partitions by store_id"):
        archive_all(lake, make_jobs(lake, segments[2]))
    assert lake.load(name).scan().to_arrow().num_rows == before.num_rows
    with lake.load(name).update_spec() as change:
        if column is not None:
            change.remove_field("by_another_engine")
        change.add_field("store_id", IdentityTransform(), "store_id")
    archive_all(lake, make_jobs(lake, *segments))
    rows = receipts(lake, "store-1")
    assert len(rows) == 3
    assert lake.messages().scan().to_arrow().num_rows == sum(row.row_count for row in rows)


@pytest.mark.again
def test_plans_archives_and_looks_open_no_manifest_of_older_receipts(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(small_tables, "FULL_FILE_ROWS", 4)
    store = make_store(tmp_path, first_offset=2000 << 20, segments=7, segment_bytes=1 << 20)
    clean_one(store, "first")
    add_history(store, 2000, 10, 500)
    # The first run and look read all.
    clean_one(store, "known")
    steps.monitor(store, "known")
    maintain_lake(open_lake(store.lake), LakePolicy(), _now_ms())
    known = known_ranges(open_lake(store.lake).segments())
    of_stores = [(key.partition(" ")[0], it) for key, stores in known.items() for it in stores.values()]
    older = {name for name, it in of_stores if it.least_rows >= 4 and it.newest < 1900}
    assert older
    opened: set[str] = set()
    fetch = ManifestFile.fetch_manifest_entry

    def fetched(self, *args, **options):
        opened.add(self.manifest_path.rpartition("/")[2])
        return fetch(self, *args, **options)

    for key in "abcd":
        with monkeypatch.context() as patched:
            patched.setattr(ManifestFile, "fetch_manifest_entry", fetched)
            forget_files()
            steps.make_plan(store, key, PlanRequest(manual=True, max_segments=1))
            steps.archive_planned(store, key, partial(steps.archive, store, key))
            steps.monitor(store, f"look-{key}")
        # A release follows the chain from its first row on.
        assert steps.release(store, key).deleted
    segments = open_lake(store.lake).segments()
    assert Operation.OVERWRITE in {it.summary.operation for it in segments.metadata.snapshots[-4:]}
    assert opened
    assert not opened & older


@pytest.mark.again
def test_a_run_after_a_long_history_parses_and_writes_about_what_the_first_one_does(
    tmp_path, monkeypatch
) -> None:
    new, old = (
        make_store(tmp_path / name, first_offset=300 << 20, segments=4, segment_bytes=1 << 20)
        for name in ("new", "old")
    )
    clean_one(old, "first")
    add_history(old, 300)
    maintain_lake(open_lake(old.lake), LakePolicy(), _now_ms())
    parsed: list[str] = []
    opened: list[str] = []
    convert = SqlCatalog._convert_orm_to_iceberg
    monkeypatch.setattr(
        SqlCatalog,
        "_convert_orm_to_iceberg",
        lambda self, row: parsed.append(row.metadata_location) or convert(self, row),
    )
    fetch = ManifestFile.fetch_manifest_entry
    monkeypatch.setattr(
        ManifestFile,
        "fetch_manifest_entry",
        lambda self, *args, **options: opened.append(self.manifest_path) or fetch(self, *args, **options),
    )
    first = clean_one(new, "a")
    parsed.clear()
    opened.clear()
    later = clean_one(old, "a")
    assert later.written_bytes < 1.5 * first.written_bytes
    # Four steps know two tables, and the archive commits to each.
    assert len(parsed) <= 10
    assert len(opened) <= 60
