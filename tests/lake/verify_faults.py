"""Faults that can be put into a lake, and the small lake that they are put into."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pyarrow as pa

from storage_engine.lake.archive.archive import archive_segment
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.placed_table import data_file_of, relative_name
from storage_engine.lake.coverage.spans import local_spans
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.file.staging import publish
from storage_engine.lake.soundness.chain import row_hash
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.verify.verify import StoreVerification, VerifyLevel, verify
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.store import Lineages
from tests.lakes import path_of

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
        spans = local_spans(self.snapshot, receipts(self.lake, STORE), Lineages(0))
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


def flip_a_bit_in_a_page(world: World) -> None:
    flip(world.file(0), world.file(0).stat().st_size // 2)


def flip_a_bit_in_the_footer(world: World) -> None:
    flip(world.file(0), world.file(0).stat().st_size - 200)


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


def edit_the_last_receipts_root_and_hash(world: World) -> None:
    _rewrite_receipt(world, 1, rehash=True, root="ab" * 32)


def edit_the_last_receipts_streams_and_hash(world: World) -> None:
    streams = str(world.receipt(1).streams)
    _rewrite_receipt(world, 1, rehash=True, streams=streams.replace('"leaves":', '"leaves":1', 1))


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
    flip(world.segments[1], 5000)


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


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
    edit_the_last_receipts_root_and_hash: (BYTES, "proven: expected the root abababab"),
    edit_the_last_receipts_streams_and_hash: (BYTES, "proven: expected the streams ["),
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
