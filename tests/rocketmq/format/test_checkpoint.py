from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from storage_engine.rocketmq.format.checkpoint import (
    Checkpoint,
    read_checkpoint,
    read_known_values,
)


@pytest.mark.parametrize("name", ["clean-stop", "kill9", "cqext-batchcq", "multipath", "edge-frames"])
def test_every_value_equals_what_the_broker_reads(
    name: str, store_copy: Callable[[str], Path], ground_truth: Callable[[str, str], Any]
) -> None:
    truth = ground_truth(name, "checkpoint")
    assert read_checkpoint(store_copy(name) / "checkpoint") == Checkpoint(
        physic_msg_timestamp_ms=truth["physicMsgTimestamp"],
        logics_msg_timestamp_ms=truth["logicsMsgTimestamp"],
        index_msg_timestamp_ms=truth["indexMsgTimestamp"],
        master_flushed_offset=truth["masterFlushedOffset"],
        confirm_phy_offset=truth["confirmPhyOffset"],
    )


def test_a_store_may_have_none(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path / "checkpoint") is None


@pytest.mark.parametrize(
    ("size", "values"),
    [
        (0, (0, 0, 0, 0, 0)),
        (12, (0x0102030405060708, 0x090A0B0C00000000, 0, 0, 0)),
        (
            39,
            (
                0x0102030405060708,
                0x090A0B0C0D0E0F10,
                0x1112131415161718,
                0x191A1B1C1D1E1F20,
                0x2122232425262700,
            ),
        ),
        (
            5000,
            (
                0x0102030405060708,
                0x090A0B0C0D0E0F10,
                0x1112131415161718,
                0x191A1B1C1D1E1F20,
                0x2122232425262728,
            ),
        ),
    ],
)
def test_a_file_of_another_size_is_read_as_the_broker_maps_it(
    tmp_path: Path, size: int, values: tuple[int, ...]
) -> None:
    (tmp_path / "checkpoint").write_bytes(bytes(range(1, 41)).ljust(5000, b"\xff")[:size])
    assert read_checkpoint(tmp_path / "checkpoint") == Checkpoint(*values)
    known = list(asdict(Checkpoint(*values)).items())[: size // 8]
    assert read_known_values(tmp_path / "checkpoint") == dict(known)
