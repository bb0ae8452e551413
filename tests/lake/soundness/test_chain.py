"""A chain is checked from the rows that are known on, and whole where a deletion rests on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.exceptions import ReceiptError
from storage_engine.lake.archive.archive import SegmentJob, archive_all
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.soundness import chain
from storage_engine.lake.soundness.chain import check_links, check_links_on, forget_links, row_hash
from storage_engine.lake.soundness.receipts import receipt_history
from storage_engine.model.proof.receipt import ChainHead, Receipt

MakeJobs = Callable[..., tuple[SegmentJob, ...]]


@pytest.fixture(autouse=True)
def another_process() -> Iterator[None]:
    forget_links()
    yield
    forget_links()


@pytest.fixture
def rows(lake: Lake, segments: list[Path], make_jobs: MakeJobs) -> tuple[ChainHead, ...]:
    """Each receipt is of a commit and in a file of its own."""
    for path in segments[:3]:
        archive_all(lake, make_jobs(lake, path))
    found = tuple(ChainHead(row.sequence, row.row_hash) for row in receipt_history(lake, "store-1"))
    assert len(found) == 3
    forget_links()
    return found


def _without(lake: Lake, sequence: int) -> None:
    table = lake.segments()
    left = [row for row in table.scan().to_arrow().to_pylist() if row["sequence"] != sequence]
    table.overwrite(pa.Table.from_pylist(left, schema=table.schema().as_arrow()))


def test_from_a_known_row_on_no_older_one_is_read(lake: Lake, rows: tuple[ChainHead, ...]) -> None:
    _without(lake, 0)
    assert check_links(lake.segments(), "store-1", rows[1:2]) == rows[2]
    with pytest.raises(ReceiptError, match="row number 0 is missing"):
        check_links(lake.segments(), "store-1", rows[1:2], whole=True)
    with pytest.raises(ReceiptError, match="row number 0 is missing"):
        check_links(lake.segments(), "store-1")
    with pytest.raises(ReceiptError, match="row number 0 is missing"):
        check_links(lake.segments(), "store-1", rows)


@pytest.mark.parametrize("gone", [1, 2])
def test_what_comes_behind_a_known_row_is_followed(
    gone: int, lake: Lake, rows: tuple[ChainHead, ...]
) -> None:
    _without(lake, gone)
    with pytest.raises(ReceiptError):
        check_links(lake.segments(), "store-1", (rows[1], rows[2]))


def test_a_known_row_that_is_another_is_told_by_the_whole_chain(
    lake: Lake, rows: tuple[ChainHead, ...]
) -> None:
    with pytest.raises(ReceiptError, match="expected row number 1 with the hash"):
        check_links(lake.segments(), "store-1", (ChainHead(1, "f" * 64),))


def test_a_commit_goes_on_from_where_its_process_came_to(
    lake: Lake, rows: tuple[ChainHead, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    links = chain._links
    monkeypatch.setattr(chain, "_links", lambda *given: (read.append(given[2]), links(*given))[1])
    assert check_links_on(lake.segments(), "store-1") == rows[2]
    assert check_links_on(lake.segments(), "store-1") == rows[2]
    assert read == [0, 2]
    forget_links()
    assert check_links_on(lake.segments(), "store-1") == rows[2]
    assert read == [0, 2, 0]


def test_of_a_table_that_was_rolled_back_the_whole_chain_tells(
    lake: Lake, rows: tuple[ChainHead, ...]
) -> None:
    assert check_links_on(lake.segments(), "store-1") == rows[2]
    lake.segments().delete("sequence = 2")
    assert check_links_on(lake.segments(), "store-1") == rows[1]


_TEXTS = st.text() | st.text('"\\/\n\x7f\u2028é\U0001f600') | st.none()


@given(st.data())
def test_a_receipt_is_hashed_as_its_fields_are(data: st.DataObject) -> None:
    drawn = {
        field.name: data.draw(st.integers() if field.type == "int" else st.integers() | _TEXTS)
        for field in fields(Receipt)
    }
    receipt = Receipt(**drawn)
    assert chain.hash_of(receipt) == row_hash(asdict(receipt))


def test_an_empty_table_has_an_empty_chain(lake: Lake) -> None:
    assert check_links_on(lake.segments(), "store-1").sequence == -1
    assert check_links_on(lake.segments(), "store-1").sequence == -1
