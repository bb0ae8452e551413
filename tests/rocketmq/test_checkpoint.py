from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_engine.exceptions import CorruptFileError
from storage_engine.rocketmq.checkpoint import Checkpoint, read_checkpoint


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


@pytest.mark.parametrize("size", [0, 39, 4095, 4097])
def test_another_size_is_an_error(tmp_path: Path, size: int) -> None:
    (tmp_path / "checkpoint").write_bytes(bytes(size))
    with pytest.raises(CorruptFileError, match=f"checkpoint: expected 4096 bytes, found {size}"):
        read_checkpoint(tmp_path / "checkpoint")
