"""Faults that a store, a lake and their receipts can have, each with the rules that it breaks."""

from __future__ import annotations

import os
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from storage_engine.lake.catalog.catalog import open_lake
from tests.quality.cases import RELEASED, SEGMENT, Case


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def dig_a_hole(case: Case) -> None:
    case.segment(5).unlink()
    case.segment(6).unlink()


def lose_a_segment(case: Case) -> None:
    """A hole that the lake doesn't fill: the receipt's data file is gone too."""
    case.segment(5).unlink()
    case.data_file(5).unlink()


def misname_a_segment(case: Case) -> None:
    case.segment(4).rename(case.segment(4).with_name(f"{3 * SEGMENT:020d}"))


def cut_a_segment(case: Case) -> None:
    os.truncate(case.segment(5), SEGMENT // 2)


def delete_a_data_file(case: Case) -> None:
    case.data_file(1).unlink()


def cut_a_data_file(case: Case) -> None:
    os.truncate(case.data_file(1), case.data_file(1).stat().st_size - 100)


def flip_a_bit_in_a_data_file(case: Case) -> None:
    flip(case.data_file(1), case.data_file(1).stat().st_size // 2)


def remove_a_row_from_a_data_file(case: Case) -> None:
    path = case.data_file(1)
    rows = pq.ParquetFile(path).read()
    pq.write_table(rows.slice(1), path)


def repeat_a_row_in_a_data_file(case: Case) -> None:
    path = case.data_file(1)
    rows = pq.ParquetFile(path).read()
    pq.write_table(pa.concat_tables([rows, rows.slice(7, 1)]), path)


def delete_rows_through_the_table(case: Case) -> None:
    table = open_lake(case.store.lake).messages()
    table.delete(f"segment_base_offset = {SEGMENT} and physical_offset < {SEGMENT + 3000}")


def drop_a_data_file_from_the_table(case: Case) -> None:
    open_lake(case.store.lake).messages().delete(f"segment_base_offset = {SEGMENT}")


def edit_a_receipt(case: Case) -> None:
    table = open_lake(case.store.lake).segments()
    rows = table.scan().to_arrow()
    edited = rows.set_column(
        rows.schema.get_field_index("message_count"),
        "message_count",
        [
            [
                count + (base == SEGMENT)
                for count, base in zip(
                    rows["message_count"].to_pylist(), rows["base_offset"].to_pylist(), strict=True
                )
            ]
        ],
    )
    table.overwrite(edited.cast(table.schema().as_arrow()))


def remove_a_receipt(case: Case) -> None:
    open_lake(case.store.lake).segments().delete(f"base_offset = {SEGMENT}")


def change_an_archived_segment(case: Case) -> None:
    flip(case.segment(5), 5000)


def point_an_entry_below_the_log(case: Case) -> None:
    """The entry behind the first live one of a queue points at what was deleted."""
    queue = case.root / "consumequeue" / "orders" / "3"
    first = min(queue.iterdir())
    data = bytearray(first.read_bytes())
    for at in range(0, len(data), 20):
        (offset,) = struct.unpack_from(">q", data, at)
        if offset >= RELEASED * SEGMENT:
            struct.pack_into(">q", data, at + 20, 12345)
            break
    first.write_bytes(data)


def point_an_entry_at_another_message(case: Case) -> None:
    queue = case.root / "consumequeue" / "orders" / "3"
    first = min(queue.iterdir())
    data = bytearray(first.read_bytes())
    for at in range(0, len(data), 20):
        (offset,) = struct.unpack_from(">q", data, at)
        if offset >= RELEASED * SEGMENT:
            data[at : at + 12] = data[at + 20 : at + 32]
            break
    first.write_bytes(data)


def point_an_entry_behind_the_log(case: Case) -> None:
    queue = case.root / "consumequeue" / "orders" / "3"
    last = max(queue.iterdir())
    data = bytearray(last.read_bytes())
    used = [at for at in range(0, len(data), 20) if struct.unpack_from(">qi", data, at)[1] > 0]
    struct.pack_into(">q", data, used[-1], 1 << 40)
    last.write_bytes(data)


def misname_a_queue_file(case: Case) -> None:
    queue = case.root / "consumequeue" / "orders" / "3"
    last = max(queue.iterdir())
    last.rename(queue / f"{int(last.name) + 6000:020d}")
    shutil.copy(queue / f"{int(last.name) + 6000:020d}", queue / f"{int(last.name) - 6000:020d}")


def raise_the_checkpoint(case: Case) -> None:
    with (case.root / "checkpoint").open("r+b") as file:
        file.write(struct.pack(">q", int(time.time() * 1000) * 2))


def point_an_index_file_behind_the_log(case: Case) -> None:
    with max((case.root / "index").iterdir()).open("r+b") as file:
        file.seek(24)
        file.write(struct.pack(">q", 1 << 40))


FAULTS: list[tuple[Callable[[Case], None], set[str]]] = [
    (dig_a_hole, {"ExpectSegmentsToBeBackToBack"}),
    (
        lose_a_segment,
        {
            "ExpectSegmentsToBeBackToBack",
            "ExpectStoreAndLakeToFormOneInterval",
            "ExpectNoLostRanges",
            "ExpectDataFilesToMatchReceipts",
        },
    ),
    (misname_a_segment, {"ExpectSegmentNamesToBeOffsets", "ExpectSegmentsToBeBackToBack"}),
    (cut_a_segment, {"ExpectSegmentsToHaveTheConfiguredSize", "ExpectSegmentsToBeBackToBack"}),
    (
        delete_a_data_file,
        {"ExpectDataFilesToMatchReceipts", "ExpectNoLostRanges", "ExpectRowsToCoverSegments"},
    ),
    (cut_a_data_file, {"ExpectDataFilesToMatchReceipts", "ExpectNoLostRanges"}),
    (
        flip_a_bit_in_a_data_file,
        {"ExpectDataFilesToMatchReceipts", "ExpectReceiptsToBeSound", "ExpectNoLostRanges"},
    ),
    (
        remove_a_row_from_a_data_file,
        {"ExpectRowsToCoverSegments", "ExpectDataFilesToMatchReceipts", "ExpectNoLostRanges"},
    ),
    (
        repeat_a_row_in_a_data_file,
        {"ExpectRowsToBeUnique", "ExpectDataFilesToMatchReceipts", "ExpectNoLostRanges"},
    ),
    (
        delete_rows_through_the_table,
        {"ExpectRowsToCoverSegments", "ExpectDataFilesToBeInTheTableOnce", "ExpectNoLostRanges"},
    ),
    (
        drop_a_data_file_from_the_table,
        {"ExpectDataFilesToBeInTheTableOnce", "ExpectReceiptsToBeSound", "ExpectNoLostRanges"},
    ),
    (edit_a_receipt, {"ExpectReceiptsToFormAChain", "ExpectReceiptsToBeSound", "ExpectNoLostRanges"}),
    (remove_a_receipt, {"ExpectReceiptsToFormAChain", "ExpectReceiptsToBeSound", "ExpectNoLostRanges"}),
    (change_an_archived_segment, {"ExpectOverlapsToHoldTheSameBytes"}),
    (point_an_entry_below_the_log, {"ExpectFirstLiveEntryAtOrAboveMinOffset"}),
    (point_an_entry_at_another_message, {"ExpectFirstLiveEntryToNameItsMessage"}),
    (point_an_entry_behind_the_log, {"ExpectEntriesToPointIntoTheLog"}),
    (misname_a_queue_file, {"ExpectOffsetsToBeContiguous"}),
    (raise_the_checkpoint, {"ExpectCheckpointInRange"}),
    (point_an_index_file_behind_the_log, {"ExpectEntriesToPointIntoTheLog"}),
]
