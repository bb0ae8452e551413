from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_engine.arrow.name_columns import POSITIONS_SCHEMA
from storage_engine.exceptions import CorruptFileError
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.config_files import FastjsonError
from storage_engine.rocketmq.format.layout import StoreLayout, resolve_layout
from storage_engine.rocketmq.lag import consumer_offsets as module

pytestmark = pytest.mark.slow


class Offset(NamedTuple):
    topic: str
    queue_id: int
    group: str
    offset: int


def layout_of(root: Path) -> StoreLayout:
    return resolve_layout(load_broker_config(None, root=root))


def consumer_offsets(layout: StoreLayout) -> list[Offset]:
    return [Offset(*row.values()) for row in module.consumer_offsets(layout).to_pylist()]


@pytest.fixture
def empty(tmp_path: Path) -> StoreLayout:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "config").mkdir()
    return layout_of(tmp_path)


@pytest.mark.parametrize(
    ("name", "orders"),
    [
        ("clean-stop", [402, 397, 402, 401, 402, 403, 401, 402]),  # in lmqConsumerOffset.json
        ("cqext-batchcq", [144, 142, 142, 144, 142, 144, 145, 142]),  # in consumerOffset.json
    ],
)
def test_consumer_offsets_come_as_a_flat_table(
    name: str, orders: list[int], store_copy: Callable[[str], Path]
) -> None:
    table = consumer_offsets(layout_of(store_copy(name)))
    assert [row for row in table if row.group == "cg_orders"] == [
        Offset("orders", queue_id, "cg_orders", offset) for queue_id, offset in enumerate(orders)
    ]
    assert ("RMQ_SYS_TRANS_HALF_TOPIC", 0, "CID_RMQ_SYS_TRANS", 72) in table
    assert table == sorted(table)


def test_a_light_message_queue_has_one_queue(empty: StoreLayout) -> None:
    (empty.config / "lmqConsumerOffset.json").write_text('{"lmqOffsetTable":{"%LMQ%x@%LMQ%x":7}}')
    assert consumer_offsets(empty) == [Offset("%LMQ%x", 0, "%LMQ%x", 7)]


def test_of_two_offsets_the_lower_counts(empty: StoreLayout) -> None:
    (empty.config / "lmqConsumerOffset.json").write_text('{"offsetTable":{"t@g":{0:7,1:1}}}')
    (empty.config / "consumerOffset.json").write_text('{"offsetTable":{"t@g":{0:5,1:9}}}')
    assert consumer_offsets(empty) == [Offset("t", 0, "g", 5), Offset("t", 1, "g", 1)]


@pytest.mark.parametrize("content", [b"", b'{"offsetTable":{"t@g":{0:', b"\xff\xfe"])
def test_a_broken_file_is_replaced_by_its_backup_as_the_broker_does(
    empty: StoreLayout, content: bytes
) -> None:
    (empty.config / "consumerOffset.json").write_bytes(content)
    (empty.config / "consumerOffset.json.bak").write_text('{"offsetTable":{"t@g":{0:5}}}')
    assert consumer_offsets(empty) == [Offset("t", 0, "g", 5)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("consumerOffset.json", '{"offsetTable":{"t@g":{0:', "consumerOffset.json: at character 25"),
        ("consumerOffset.json", "[]", "expected an object"),
        ("consumerOffset.json", '{"offsetTable":{"t":{0:1}}}', "'t' is not topic@group"),
        ("consumerOffset.json", '{"offsetTable":{"t@g":5}}', "offsets by topic@group"),
        ("consumerOffset.json", '{"offsetTable":{"t@g":{"x":5}}}', "offsets by topic@group"),
        ("lmqConsumerOffset.json", '{"lmqOffsetTable":[]}', "lmqConsumerOffset.json: expected offsets"),
    ],
)
def test_a_file_that_can_not_be_read_is_an_error_with_its_name(
    empty: StoreLayout, name: str, content: str, message: str
) -> None:
    (empty.config / name).write_text(content)
    with pytest.raises(CorruptFileError, match=message):
        consumer_offsets(empty)


NAMES = st.text("abAB01_-%|", min_size=1, max_size=6)
PAIRS = st.builds("{}@{}".format, NAMES, NAMES)
NUMBERS = st.integers(-1, 10**17)
BLANKS = st.sampled_from(["", " ", "\n\t\t", "\r\n"])


@st.composite
def written_offsets(draw: st.DrawFn) -> bytes:
    """What a broker may have written, pretty-printed or not."""
    blank, quote = draw(BLANKS), draw(st.sampled_from(["", '"']))

    def members(items: Iterable[tuple[str, str]]) -> str:
        return "{" + ",".join(f"{blank}{name}{blank}:{blank}{value}" for name, value in items) + blank + "}"

    queues = st.dictionaries(st.integers(0, 2**31 - 1), NUMBERS, max_size=3)
    committed = {
        f'"{pair}"': members((f"{quote}{queue}{quote}", str(offset)) for queue, offset in found.items())
        for pair, found in draw(st.dictionaries(PAIRS, queues, max_size=4)).items()
    }
    light = {
        f'"{pair}"': str(offset) for pair, offset in draw(st.dictionaries(PAIRS, NUMBERS, max_size=3)).items()
    }
    tables = {
        '"dataVersion"': '{"counter":1,"timestamp":1795180486744}',
        '"groupTopicMap"': '{"g":["t",' + blank + '"u"],"h":[]}',
        '"lmqOffsetTable"': members(light.items()),
        '"offsetTable"': members(committed.items()),
    }
    names = draw(st.permutations(list(tables)))
    return members((name, tables[name]) for name in names[draw(st.integers(0, 3)) :]).encode()


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


@settings(deadline=None)
@given(written_offsets())
def test_compiled_code_reads_what_the_general_parser_reads(text: bytes) -> None:
    found = module.parse_large(text)
    assert found is not None
    assert found.schema == POSITIONS_SCHEMA
    assert rows(found) == rows(module.parse_any(text))


@settings(deadline=None)
@given(written_offsets(), st.data())
def test_compiled_code_takes_nothing_that_the_general_parser_refuses(
    text: bytes, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(text) - 1))
    inserted = data.draw(
        st.sampled_from([b"", b"\0", b"\\", b'"', b",", b"@", b"}", b"1", b".", b"\xff", b"-"])
    )
    mutated = text[:at] + inserted + text[at + data.draw(st.integers(0, 2)) :]
    try:
        found = module.parse_large(mutated)
    except FastjsonError:
        with pytest.raises((FastjsonError, UnicodeDecodeError)):
            module.parse_any(mutated)
        return
    if found is not None:
        expected = rows(module.parse_any(mutated))
        assert sorted(set(rows(found))) == expected or len(rows(found)) > len(expected)


@settings(deadline=None)
@given(written_offsets(), st.data())
def test_text_that_was_not_written_to_its_end_is_never_taken(text: bytes, data: st.DataObject) -> None:
    torn = text[: data.draw(st.integers(1, len(text) - 1))]
    for lost in (b"", bytes(len(text) - len(torn))):
        with pytest.raises(FastjsonError):
            module.parse_large(torn + lost)


def test_large_file_that_is_torn_is_replaced_by_its_backup(
    empty: StoreLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGE_BYTES", 0)
    path = empty.config / "consumerOffset.json"
    path.write_text('{"offsetTable":{"t@g":{0:50,1:7},"u@g":{0:1')
    path.with_name(path.name + ".bak").write_text('{"offsetTable":{"t@g":{0:5,1:7}}}')
    assert consumer_offsets(empty) == [Offset("t", 0, "g", 5), Offset("t", 1, "g", 7)]
    path.with_name(path.name + ".bak").write_bytes(b'{"offsetTable":{"t@g":{0:5' + bytes(100))
    with pytest.raises(
        CorruptFileError, match=r"consumerOffset\.json: at character 43: .*\.bak: at character 26"
    ):
        consumer_offsets(empty)


def test_of_two_entries_of_one_name_the_later_counts_as_in_the_broker() -> None:
    assert module.parse_large(b'{"offsetTable":{"t@g":{0:5},"t@g":{0:7}}}') is None
    assert module.parse_large(b'{"offsetTable":{"t@g":{0:5}},"offsetTable":{"t@g":{0:7}}}') is None
