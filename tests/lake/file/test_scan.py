"""Whatever changed a lake's manifests, and whatever is written down of them: each file is found once."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyiceberg.expressions import And, BooleanExpression, EqualTo

from storage_engine.core.clock import DAY_MS, clock_ms
from storage_engine.lake.archive import small_tables
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.coverage.spans import receipt_spans
from storage_engine.lake.file.scan import RANGES_NAME, between, count_rows, live_data_files
from storage_engine.lake.gc.snapshot_expiry import LakePolicy, maintain_lake
from storage_engine.lake.move.copying import copy_lake, promote
from storage_engine.lake.move.rebuilding import rebuild
from storage_engine.lake.soundness.chain import check_links, check_links_on, forget_links
from storage_engine.lake.soundness.receipts import receipts, receipts_in
from storage_engine.lake.storage.small_files import forget_files
from storage_engine.lake.verify.reproof import reprove
from storage_engine.model.proof.receipt import ChainHead
from tests.lake.conftest import MakeJobs
from tests.rounds import rounds
from tests.stock_engine import stock_table

pytestmark = pytest.mark.slow

STORES = ("store-1", "store-2")
FEW = LakePolicy(snapshot_age_ms=0, least_snapshots=1, most_snapshots=2)


def check(lake: Lake) -> None:
    """Hold what readers that skip manifests find against whole scans of another program."""
    segments = stock_table(lake.config, "segments")
    every_row = segments.scan().to_arrow().to_pylist()
    for store in STORES:
        rows = sorted((row["sequence"], row) for row in every_row if row["store_id"] == store)
        numbers = [number for number, _ in rows]
        for first in {0, 1, len(rows) // 2, len(rows) - 1, len(rows)}:
            assert [span.sequence for span in receipt_spans(lake, store, first)] == numbers[max(first, 0) :]
        for base in (0, 1 << 20, 2 << 20):
            found = receipts_in(lake.segments(), store, base_offsets=(base, base), superseded=True)
            assert [it.sequence for it in found] == [at for at, row in rows if row["base_offset"] == base]
            there = _paths(lake, "messages", And(EqualTo("store_id", store), _at(base)))
            live = live_data_files(lake.messages(), store, (base, base))
            assert sorted(file.location for file in live) == sorted(it.file_path for it in there)
        files = _paths(lake, "segments", EqualTo("store_id", store))
        small = [it.file_path for it in files if it.record_count < small_tables.FULL_FILE_ROWS]
        merged = small_tables._files(lake.segments(), store)
        assert sorted(task.file.file_path for task in merged) == sorted(small)
        assert count_rows(lake.segments(), store) == len(rows)
        head = check_links(lake.segments(), store, whole=True)
        assert head.sequence == len(rows) - 1
        assert check_links_on(lake.segments(), store) == head
        if len(rows) > 1:
            before = ChainHead(len(rows) - 2, rows[-2][1]["row_hash"])
            assert check_links(lake.segments(), store, [before]) == head


def _at(base: int) -> BooleanExpression:
    return between("segment_base_offset", base, base)


def _paths(lake: Lake, name: str, where: BooleanExpression) -> list[Any]:
    return [task.file for task in stock_table(lake.config, name).scan(where).plan_files()]


@pytest.mark.parametrize("seed", range(rounds("STORAGE_ENGINE_MANIFEST_HISTORIES", 1, 40)))
def test_readers_that_skip_manifests_find_what_a_whole_scan_does(
    lake: Lake,
    segments: list[Path],
    make_jobs: MakeJobs,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    seed: int,
) -> None:
    random, older, here = Random(seed), list[bytes](), [lake]
    monkeypatch.setattr(small_tables, "FULL_FILE_ROWS", random.choice([3, 4, 6]))
    monkeypatch.setattr(small_tables, "MERGED_FILES", 2)

    def archive() -> None:
        paths = random.sample(segments, random.choice([1, 1, 2, 3]))
        archive_all(here[0], make_jobs(here[0], *paths, store_id=random.choice(STORES)))

    def renew() -> None:
        reprove(here[0], STORES[0], receipts(here[0], STORES[0]))

    def maintain() -> None:
        maintain_lake(here[0], random.choice([LakePolicy(), FEW]), clock_ms() + 2 * DAY_MS)

    def forget() -> None:
        forget_files()
        forget_links()

    def rewrite() -> None:
        table = stock_table(here[0].config, random.choice(["segments", "messages"]))
        if table.current_snapshot() is not None:
            table.overwrite(table.scan().to_arrow())

    def roll_back_and_forth() -> None:
        table = stock_table(here[0].config, "segments")
        ids = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
        if len(ids) > 1 and (now := table.metadata.current_snapshot_id):
            table.manage_snapshots().set_current_snapshot(snapshot_id=random.choice(ids)).commit()
            check(here[0])
            table = stock_table(here[0].config, "segments")
            table.manage_snapshots().set_current_snapshot(snapshot_id=now).commit()

    def change_what_is_written_down() -> None:
        path = Path(here[0].segments().location().removeprefix("file://")) / RANGES_NAME
        if path.exists():
            older.append(path.read_bytes())
            path.write_bytes(random.choice([*older, older[-1][:-40], b"[]", b""]))

    def copy_and_promote() -> None:
        to = here[0].config.local(tmp_path / f"copy-{len(list(tmp_path.iterdir()))}")
        copy_lake(here[0], to)
        check(open_lake(to))
        promote(open_lake(to), "anna", "the original burnt")
        here[0] = open_lake(to)

    def build_again() -> None:
        rebuild(here[0].config, {})
        here[0] = open_lake(here[0].config)

    ours = [*[archive] * 6, *[maintain] * 4, renew, renew, forget, copy_and_promote, build_again]
    for _ in range(rounds("STORAGE_ENGINE_MANIFEST_ACTS", 10, 20)):
        random.choice([*ours, rewrite, roll_back_and_forth, change_what_is_written_down])()
        check(here[0])
