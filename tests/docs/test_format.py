"""The program of docs/format.md finds what a lake claims, and nothing of this package helps it."""

from __future__ import annotations

import ast
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.soundness.receipts import list_stores, receipts
from storage_engine.model.proof.receipt import Receipt
from tests.docs.code_blocks import ROOT, blocks_under
from tests.fixture_stores import unpack
from tests.kafka_fixture import unpack as unpack_kafka
from tests.lake.gc.test_thinning import every_receipt, thin
from tests.lakes import path_of
from tests.rounds import again_but
from tests.services.command_line import run_command

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "format.md"
MOST_LINES = 60
"""Of the program, without empty ones."""


@pytest.fixture(scope="module")
def checker() -> dict[str, Any]:
    """The names of the page's program."""
    text = blocks_under(PAGE, "A program that checks it")["python pyarrow"]
    assert len([line for line in text.splitlines() if line.strip()]) <= MOST_LINES
    imported = {
        name.name.split(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert imported == {"hashlib", "ipaddress", "json", "struct", "pyarrow"}
    names: dict[str, Any] = {}
    exec(compile(text, str(PAGE), "exec"), names)
    return names


def archived(lake_dir: Path, *words: object) -> tuple[Lake, tuple[Receipt, ...]]:
    for command in (("init-lake", *words[1:]), ("archive", *words)):
        outcome = run_command(*command, "--lake", lake_dir)
        assert outcome.exit_code == 0, outcome
    lake = open_lake(LakeConfig.local(lake_dir))
    (store,) = list_stores(lake)
    return lake, receipts(lake, store.store_id)


def rows_of(lake: Lake) -> dict[str, dict[str, Any]]:
    """Each row of ``segments``, as any engine reads it."""
    return {row["row_hash"]: row for row in lake.segments().scan().to_arrow().to_pylist()}


@pytest.mark.parametrize("store", again_but(["edge-frames", "clean-stop"], "edge-frames"))
def test_a_data_file_and_a_receipt_give_root_and_hash(
    checker: dict[str, Any], store: str, tmp_path: Path
) -> None:
    lake, known = archived(tmp_path / "lake", unpack(store, tmp_path / "store"))
    rows = rows_of(lake)
    assert len(known) >= 2
    for receipt in known:
        row = rows[receipt.row_hash]
        assert checker["root"](path_of(lake, receipt), row) == row["root"] != ""
        assert checker["row_hash"](row) == row["row_hash"]
        assert checker["row_hash"]({**row, "message_count": row["message_count"] + 1}) != row["row_hash"]
        other = dataclasses.asdict(dataclasses.replace(receipt, base_offset=receipt.base_offset + 1))
        assert checker["root"](path_of(lake, receipt), other) != row["root"]


def test_what_stays_of_a_segment_reaches_its_root(checker: dict[str, Any], tmp_path: Path) -> None:
    lake, (first, *_) = archived(tmp_path / "lake", unpack("clean-stop", tmp_path / "store"))
    thin(lake, [first], "orders")
    partial = every_receipt(lake, first.store_id)[0]
    row = rows_of(lake)[partial.row_hash]
    assert (row["state"], row["root"]) == ("partial", first.root)
    assert checker["root"](path_of(lake, partial), row) == row["root"]
    assert checker["row_hash"](row) == row["row_hash"]
    # Another root for what is gone, or rows of it that are there still, are found.
    streams = row["streams"].replace(json.loads(row["streams"])[-1]["root"], "00" * 32)
    assert checker["root"](path_of(lake, partial), {**row, "streams": streams}) != row["root"]
    with pytest.raises(AssertionError):
        checker["root"](path_of(lake, first), row)


def test_segments_of_kafka_have_the_same_tree(checker: dict[str, Any], tmp_path: Path) -> None:
    root = unpack_kafka(tmp_path)
    lake, known = archived(tmp_path / "lake", root / "server.properties", "--broker-type", "kafka")
    rows = rows_of(lake)
    assert len(known) >= 2
    for receipt in known:
        data = Path(receipt.source_path).read_bytes()
        row = rows[receipt.row_hash]

        def bytes_of(of: dict[str, Any], data: bytes = data) -> bytes:
            return data[of["physical_offset"] :][: of["size"]]

        assert checker["root"](path_of(lake, receipt), row, bytes_of) == row["root"]
        assert row["streams"] is None
