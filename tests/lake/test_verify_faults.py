"""Every fault that is put into a lake for real is found, at the level that has to find it and not before.

The table in docs/lake.md says the same for people.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest

from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake import verify_metadata
from storage_engine.lake.archive import archive_all, archive_segment
from storage_engine.lake.careful_avro import careful_avro
from storage_engine.lake.catalog import Lake, open_lake
from storage_engine.lake.chain import row_hash
from storage_engine.lake.config import LakeConfig
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.local_spans import local_spans
from storage_engine.lake.making import make_lake
from storage_engine.lake.names import data_file_of, relative_name
from storage_engine.lake.receipts import receipts
from storage_engine.lake.staging import publish
from storage_engine.lake.table_entries import list_entries
from storage_engine.lake.verify import StoreVerification, VerifyLevel, verify
from storage_engine.model.receipt import Receipt
from storage_engine.model.validation import Status
from tests.lakes import path_of
from tests.rounds import ALL

pytestmark = pytest.mark.slow

MIB = 1 << 20
STORE = "store-1"


@dataclass(frozen=True)
class World:
    """Two stores with the same first segment, archived; ``spare`` is a segment that is not.

    :param snapshot_of: of the files as they were when they were archived.
    """

    lake: Lake
    segments: list[Path]
    spare: Path
    make_jobs: Callable[..., tuple]
    snapshot: object

    def receipt(self, number: int, store_id: str = STORE) -> Receipt:
        return receipts(self.lake, store_id)[number]

    def file(self, number: int, store_id: str = STORE) -> Path:
        return path_of(self.lake, self.receipt(number, store_id))

    def verify(self, level: VerifyLevel) -> list[StoreVerification]:
        if level is not VerifyLevel.STORE:
            return list(verify(self.lake, level))
        spans = local_spans(self.snapshot, receipts(self.lake, STORE))
        return list(verify(self.lake, level, store_id=STORE, local=spans))

    def metadata_file(self, table: str, kind: str) -> Path:
        """One that the table's present state rests on."""
        loaded = getattr(self.lake, table)()
        snapshot = loaded.current_snapshot()
        location = {
            "metadata": loaded.metadata_location,
            "manifest list": snapshot.manifest_list,
            "manifest": snapshot.manifests(loaded.io)[0].manifest_path,
            "receipts": next(iter(loaded.scan().plan_files())).file.file_path,
        }[kind]
        path = local_path(location)
        assert path is not None
        return path


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
    monkeypatch.setattr(verify_metadata, "_COMMIT_SECONDS", 0.0)
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


def _flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def flip_a_bit_in_a_page(world: World) -> None:
    _flip(world.file(0), world.file(0).stat().st_size // 2)


def flip_a_bit_in_the_footer(world: World) -> None:
    _flip(world.file(0), world.file(0).stat().st_size - 200)


def truncate_a_data_file(world: World) -> None:
    path = world.file(0)
    path.write_bytes(path.read_bytes()[:-100])


def delete_a_data_file(world: World) -> None:
    world.file(0).unlink()


def _swap(first: Path, second: Path) -> None:
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)


def swap_two_data_files(world: World) -> None:
    assert world.file(0).stat().st_size != world.file(1).stat().st_size
    _swap(world.file(0), world.file(1))


def swap_two_data_files_of_one_length(world: World) -> None:
    assert world.file(0).stat().st_size == world.file(0, "store-2").stat().st_size
    _swap(world.file(0), world.file(0, "store-2"))


def commit_a_data_file_twice(world: World) -> None:
    stale = world.lake.messages()
    stale.add_files([data_file_of(stale, world.receipt(0))], check_duplicate_files=False)


def delete_some_rows(world: World) -> None:
    world.lake.messages().delete("physical_offset = 0 and store_id = 'store-1'")


def delete_a_segments_rows(world: World) -> None:
    world.lake.messages().delete("segment_base_offset = 1048576")


def overwrite_with_one_row_less(world: World) -> None:
    table = world.lake.messages()
    rows = table.scan().to_arrow().sort_by("store_id")
    table.overwrite(rows.slice(1))


def overwrite_with_one_row_twice(world: World) -> None:
    table = world.lake.messages()
    rows = table.scan().to_arrow().sort_by("store_id")
    table.overwrite(pa.concat_tables([rows.slice(0, 1), rows.slice(0, 1), rows.slice(2)]))


def append_a_segments_rows_again(world: World) -> None:
    table = world.lake.messages()
    table.append(table.scan(row_filter="store_id = 'store-1' and segment_base_offset = 0").to_arrow())


def append_rows_of_an_unknown_store(world: World) -> None:
    table = world.lake.messages()
    rows = table.scan(row_filter="store_id = 'store-2'").to_arrow()
    nobody = pa.array(["store-3"] * len(rows), rows.schema.field("store_id").type)
    table.append(rows.set_column(0, rows.schema.field("store_id"), nobody))


def copy_a_data_file_and_add_the_copy(world: World) -> None:
    copy = world.file(0).with_name("copy.parquet")
    shutil.copy(world.file(0), copy)
    world.lake.messages().add_files([f"file://{copy}"])


def _rewrite_receipt(world: World, number: int, *, rehash: bool, **changed: object) -> None:
    table = world.lake.segments()
    old = world.receipt(number)
    new = replace(old, **changed)
    if rehash:
        new = replace(new, row_hash=row_hash(asdict(new)))
    rows = [asdict(new if row == old else row) for row in receipts(world.lake, STORE)]
    rows += [asdict(row) for row in receipts(world.lake, "store-2")]
    table.overwrite(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))


def edit_a_receipt(world: World) -> None:
    _rewrite_receipt(world, 0, rehash=False, message_count=1)


def edit_a_receipt_and_its_hash(world: World) -> None:
    _rewrite_receipt(world, 0, rehash=True, message_count=1)


def edit_the_last_receipts_row_count_and_hash(world: World) -> None:
    _rewrite_receipt(world, 1, rehash=True, row_count=1)


def edit_the_last_receipts_file_hash_and_hash(world: World) -> None:
    _rewrite_receipt(world, 1, rehash=True, data_file_sha256="ab" * 32)


def edit_the_last_receipts_segment_hash_and_hash(world: World) -> None:
    _rewrite_receipt(world, 1, rehash=True, sha256="ab" * 32)


def remove_the_first_receipt(world: World) -> None:
    world.lake.segments().delete("store_id = 'store-1' and base_offset = 0")


def remove_the_last_receipt(world: World) -> None:
    world.lake.segments().delete("store_id = 'store-1' and base_offset = 1048576")


def remove_all_receipts_of_a_store(world: World) -> None:
    world.lake.segments().delete("store_id = 'store-1'")


def add_a_receipt_of_a_file_that_is_not_in_the_table(world: World) -> None:
    (job,) = world.make_jobs(world.lake, world.spare)
    proven = archive_segment(job)
    publish([proven])
    last = world.receipt(1)
    unlinked = proven.receipt(relative_name(world.lake.messages(), proven.data_file))
    receipt = replace(unlinked, sequence=last.sequence + 1, previous_hash=last.row_hash)
    receipt = replace(receipt, row_hash=row_hash(asdict(receipt)))
    table = world.lake.segments()
    table.append(pa.Table.from_pylist([asdict(receipt)], schema=table.schema().as_arrow()))


def add_a_data_file_without_a_receipt(world: World) -> None:
    (job,) = world.make_jobs(world.lake, world.spare)
    proven = archive_segment(job)
    publish([proven])
    world.lake.messages().add_files([proven.data_file])


def rot_a_file_of_the_store(world: World) -> None:
    """As a disk does: device, inode, size and times stay; the snapshot was taken before."""
    _flip(world.segments[1], 5000)


RECEIPTS, FILES, BYTES, ON_DISK = VerifyLevel
FAULTS = {
    truncate_a_data_file: (RECEIPTS, "bytes, expected"),
    delete_a_data_file: (RECEIPTS, "is missing"),
    swap_two_data_files: (RECEIPTS, "bytes, expected"),
    commit_a_data_file_twice: (RECEIPTS, "in the table once, found it 2 times"),
    delete_some_rows: (RECEIPTS, "not in the table as it was written"),
    delete_a_segments_rows: (RECEIPTS, "not in the table as it was written"),
    overwrite_with_one_row_less: (RECEIPTS, "not in the table as it was written"),
    overwrite_with_one_row_twice: (RECEIPTS, "not in the table as it was written"),
    append_a_segments_rows_again: (RECEIPTS, "are in the table twice"),
    append_rows_of_an_unknown_store: (RECEIPTS, "were never archived"),
    copy_a_data_file_and_add_the_copy: (RECEIPTS, "are in the table twice"),
    edit_a_receipt: (RECEIPTS, "was changed after it was written"),
    edit_a_receipt_and_its_hash: (RECEIPTS, "was removed or replaced"),
    edit_the_last_receipts_row_count_and_hash: (RECEIPTS, "expected rows 1"),
    edit_the_last_receipts_file_hash_and_hash: (FILES, "expected abababab"),
    edit_the_last_receipts_segment_hash_and_hash: (BYTES, "its rows have SHA-256"),
    remove_the_first_receipt: (RECEIPTS, "was removed or replaced"),
    remove_the_last_receipt: (RECEIPTS, "expected a receipt that names this data file"),
    remove_all_receipts_of_a_store: (RECEIPTS, "expected a receipt that names this data file"),
    add_a_receipt_of_a_file_that_is_not_in_the_table: (RECEIPTS, "not in the table as it was written"),
    add_a_data_file_without_a_receipt: (RECEIPTS, "expected a receipt that names this data file"),
    flip_a_bit_in_a_page: (FILES, "has SHA-256"),
    flip_a_bit_in_the_footer: (FILES, "has SHA-256"),
    swap_two_data_files_of_one_length: (FILES, "has SHA-256"),
    rot_a_file_of_the_store: (ON_DISK, "different from byte 1053576 on"),
}


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
        _flip(path, position, chance.randrange(8))
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
    for damaged_tail in (200, 3000, len(before)):
        damaged = bytearray(before)
        for _ in range(20):
            damaged[-1 - chance.randrange(damaged_tail)] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        first, second = world.verify(BYTES)
        assert (first.overall, second.overall) == (Status.FAILURE, Status.WARNING)


def _answers(lake: Lake) -> tuple[object, ...]:
    """What the tables say: every receipt, and every data file with what queries go by."""
    entries = [entry.file for of_store in list_entries(lake.messages(), None).values() for entry in of_store]
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
