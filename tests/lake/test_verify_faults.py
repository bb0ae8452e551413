"""Every fault that is put into a lake for real is found, at the level that has to find it and not before.

The table in docs/lake.md says the same for people.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.placed_table import careful_avro
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.file.table_entries import list_entries
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.verify.reproof import reprove
from storage_engine.lake.verify.verify import VerifyLevel, verify
from storage_engine.model.report.validation import Status
from tests.lake.verify_faults import (
    BYTES,
    FAULTS,
    FILES,
    ON_DISK,
    RECEIPTS,
    STORE,
    World,
    add_a_data_file_without_a_receipt,
    append_rows_of_an_unknown_store,
    flip,
    flip_a_bit_in_a_page,
)
from tests.rounds import ALL

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, sample_segments: dict[str, bytes]) -> tuple[Path, Path]:
    """A directory with store and lake, and a copy of it to go back to."""
    base = tmp_path_factory.mktemp("world")
    (base / "world" / "store" / "commitlog").mkdir(parents=True)
    for name, content in sample_segments.items():
        (base / "world" / "store" / "commitlog" / name).write_bytes(content)
    return base / "world", base / "pristine"


@pytest.fixture
def world(
    built: tuple[Path, Path], make_jobs, snapshot_of, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    # Nobody archives here meanwhile.
    monkeypatch.setattr("storage_engine.lake.verify.verify._COMMIT_SECONDS", 0.0)
    directory, pristine = built
    paths = sorted((directory / "store" / "commitlog").iterdir())
    config = LakeConfig.local(directory / "lake")
    if not pristine.exists():
        made = make_lake(config)
        archive_all(made, make_jobs(made, *paths[:2]))
        archive_all(made, make_jobs(made, paths[0], store_id="store-2"))
        shutil.copytree(directory, pristine)
    yield World(open_lake(config), paths[:2], paths[2], make_jobs, snapshot_of(paths[:2]))
    shutil.rmtree(directory)
    shutil.copytree(pristine, directory)


@pytest.mark.parametrize("inject", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found_from_its_level_on_and_not_before(
    inject: Callable[[World], None], world: World
) -> None:
    lowest, expected = FAULTS[inject]
    levels = list(VerifyLevel)
    at = levels.index(lowest)
    inject(world)
    for level in levels if ALL else levels[max(at - 1, 0) : at + 1]:
        if inject is append_rows_of_an_unknown_store and level is ON_DISK:
            # There is no such store to lay over the lake.
            continue
        found = world.verify(level)
        told = [finding.detail for result in found for finding in result.findings]
        told += [row.detail for result in found for row in result.ranges if row.status is Status.FAILURE]
        failed = any(result.overall is Status.FAILURE for result in found)
        assert failed == level.includes(lowest), (level, told)
        assert any(expected in text for text in told) == level.includes(lowest), (level, told)
        if level is FILES and lowest is FILES:
            # One broken file does not keep the others from being looked at.
            assert sum(result.checked_count for result in found) == 3


def test_a_finding_names_the_segment_and_says_what_to_do(world: World) -> None:
    flip_a_bit_in_a_page(world)
    (finding,) = world.verify(FILES)[0].findings
    assert finding.subject == f"commitlog/{0:020d} (lineage 0)"
    assert "run storage-engine archive again" in finding.advice
    assert "second lake" in finding.advice


@pytest.mark.parametrize("change", ["keys as they were", "another key", "no key"])
def test_rows_that_another_engine_rewrote_reach_the_root_by_their_keys(world: World, change: str) -> None:
    table = world.lake.messages()
    rows = table.scan().to_arrow()
    keys = rows["leaf_key"].to_pylist()
    at = rows["store_id"].to_pylist().index(STORE)
    if change != "keys as they were":
        keys[at] = None if change == "no key" else bytes(16)
    place = rows.schema.get_field_index("leaf_key")
    table.overwrite(
        rows.set_column(place, rows.schema.field(place), pa.array(keys, rows.schema.field(place).type))
    )
    before = receipts(world.lake, STORE)
    findings = [finding.detail for finding in world.verify(BYTES)[0].findings]
    renewed = reprove(world.lake, STORE, before)
    if change == "keys as they were":
        assert not any("tree" in text for text in findings)
        assert [row.root for row in renewed] == [row.root for row in before]
        assert {(row.proof_version, row.root is None) for row in renewed} == {(3, False)}
        assert world.verify(BYTES)[0].overall is Status.OK
        return
    (told,) = [text for text in findings if "the tree over its rows is not the one that was proven" in text]
    assert ("found neither in the row" if change == "no key" else "expected the root") in told
    # The other segment's rows are as they were; of this one no new root is made.
    assert len(renewed) == len(before) - 1
    assert world.verify(BYTES)[0].overall is Status.FAILURE


@pytest.mark.again
def test_archiving_again_adds_the_receipt_that_a_data_file_lacks(world: World) -> None:
    add_a_data_file_without_a_receipt(world)
    archive_all(world.lake, world.make_jobs(world.lake, *world.segments, world.spare))
    assert not [finding for result in world.verify(BYTES) for finding in result.findings]


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        pytest.param("messages", "metadata", marks=pytest.mark.again),
        ("messages", "manifest list"),
        pytest.param("messages", "manifest", marks=pytest.mark.again),
        ("segments", "metadata"),
        ("segments", "manifest"),
        ("segments", "receipts"),
    ],
)
@careful_avro()
def test_a_bit_flipped_in_metadata_is_an_error_or_a_finding_or_changes_nothing(
    table: str, kind: str, world: World
) -> None:
    """Nothing else: neither another exception, nor a table that answers otherwise and is called sound."""
    sound = _answers(world.lake)
    chance = random.Random(f"{table} {kind}")
    path = world.metadata_file(table, kind)
    before = path.read_bytes()
    outcomes = set()
    for _ in range(10):
        position = chance.randrange(len(before))
        flip(path, position, chance.randrange(8))
        try:
            failed = any(result.overall is Status.FAILURE for result in verify(world.lake, FILES))
        except LakeUnavailableError:
            failed = True
        if not failed:
            assert _answers(world.lake) == sound, f"bit flipped at {position} of {path}"
        outcomes.add(failed)
        path.write_bytes(before)
    assert True in outcomes
    assert not any(result.findings for result in verify(world.lake, FILES))


def test_a_file_that_another_engine_wrote_is_looked_at_however_damaged_it_is(world: World) -> None:
    """Nobody knows its hash, so PyArrow has to read it: whatever it raises becomes a finding."""
    table = world.lake.messages()
    table.overwrite(table.scan().to_arrow())
    chance = random.Random(7)
    files = [task.file.file_path for task in world.lake.messages().scan().plan_files()]
    path = next(p for p in map(local_path, files) if p is not None and "store_id=store-1" in str(p))
    before = path.read_bytes()
    for damaged_tail in (400, 3000, len(before)):
        damaged = bytearray(before)
        for _ in range(20):
            damaged[-1 - chance.randrange(damaged_tail)] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        first, second = world.verify(BYTES)
        assert (first.overall, second.overall) == (Status.FAILURE, Status.WARNING)


def _answers(lake: Lake) -> tuple[object, ...]:
    """What the tables say: every receipt, and every data file with what queries go by."""
    entries = [file.entry for of_store in list_entries(lake.messages(), None).values() for file in of_store]
    files = [
        (
            f.file_path,
            f.record_count,
            f.file_size_in_bytes,
            f.lower_bounds,
            f.upper_bounds,
            f.null_value_counts,
        )
        for f in entries
    ]
    of_stores = [receipts(lake, store_id) for store_id in (STORE, "store-2")]
    return (*sorted(files, key=lambda file: file[0]), *of_stores, lake.messages().schema())


@pytest.mark.parametrize("kind", ["metadata", "manifest list", "manifest"])
def test_metadata_that_is_cut_short_or_gone_is_an_unreadable_lake_and_no_finding(
    kind: str, world: World
) -> None:
    path = world.metadata_file("messages", kind)
    path.write_bytes(path.read_bytes()[:-60])
    with pytest.raises(LakeUnavailableError):
        verify(world.lake, RECEIPTS)
    path.unlink()
    with pytest.raises(LakeUnavailableError):
        verify(world.lake, RECEIPTS)
