"""A new lineage is begun only where other bytes lie under known offsets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.retention.decisions import adopt
from storage_engine.retention.store.managed_store import ManagedStore
from tests.retention.stamped_stores import plan_and_archive

pytestmark = pytest.mark.slow
Make = Callable[..., ManagedStore]
MIB = 1 << 20


def test_adopting_needs_a_segment_that_contradicts_its_receipt(managed: Make) -> None:
    store = managed()
    plan_and_archive(store, "one", 2)
    with pytest.raises(BadInputError, match="there is nothing to adopt"):
        adopt(store, "ann", "why not")
    second = Path(store.root, "commitlog", f"{MIB:020d}")
    content = bytearray(second.read_bytes())
    content[-1] ^= 1
    second.write_bytes(content)
    assert adopt(store, "ann", "the broker wrote it again").lineage == 2


def test_adopting_sees_a_data_file_whose_receipt_a_kill_prevented(
    managed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = managed()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("storage_engine.lake.archive.commit.prepare_receipts", killed)
        with pytest.raises(KeyboardInterrupt):
            plan_and_archive(store, "one")
    with pytest.raises(BadInputError, match="there is nothing to adopt"):
        adopt(store, "ann", "nothing was written again yet")
    first = Path(store.root, "commitlog", f"{0:020d}")
    content = bytearray(first.read_bytes())
    content[-1] ^= 1
    first.write_bytes(content)
    assert adopt(store, "ann", "the broker wrote it again").lineage == 2
