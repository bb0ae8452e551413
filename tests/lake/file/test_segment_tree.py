"""The compiled tree is the one of the definition, whatever the rows are and however they come."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from contextlib import ExitStack
from io import FileIO
from itertools import accumulate
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage_engine.exceptions import ProofError
from storage_engine.lake.archive.archive import SegmentJob
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.tables import TREE_COLUMNS
from storage_engine.lake.file import segment_tree, sha256_kernels
from storage_engine.lake.file.data_file import segment_bytes, write_data_file
from storage_engine.lake.file.segment_tree import SegmentTree, Tree, new_leaf_keys, tree_of_file
from storage_engine.model.broker.codec import Columns
from storage_engine.native import HAS_SHA256
from storage_engine.rocketmq.codec.codec import CODEC
from tests.lake.reference_tree import Row, leaf_of, root_of, stream_of

MakeJobs = Callable[..., tuple[SegmentJob, ...]]

COLUMNS = Columns(stored_at="stored_at", streams=("topic", "queue_id"))
BASE = 1 << 33


def table_of(rows: list[Row], *, base: int = BASE) -> pa.Table:
    """Rows as a data file has them; the topic of stream "" is null, and messages are a millisecond apart."""
    return pa.table(
        {
            "physical_offset": pa.array([base + row.position for row in rows], pa.int64()),
            "size": pa.array([len(row.data) for row in rows], pa.int32()),
            "kind": pa.array(["message"] * len(rows), pa.string()),
            "topic": pa.array([row.stream or None for row in rows], pa.string()),
            "stored_at": pa.array([1000 * row.position + 999 for row in rows], pa.timestamp("us", tz="UTC")),
            "leaf_key": pa.array([row.key for row in rows], pa.binary()),
            "leaf_salt": pa.array([row.salt for row in rows], pa.binary()),
        }
    )


def moved(rows: list[Row], by: int) -> list[Row]:
    return [Row(row.stream, row.position + by, row.data, row.key, row.salt) for row in rows]


def tree_of(rows: list[Row], cuts: list[int] | None = None, *, shuffled: int | None = None) -> Tree:
    """The compiled tree of rows that tile [0, …).

    :param cuts: places among the rows by position at which the next window begins.
    :param shuffled: seed by which the rows of each window are.
    """
    made = SegmentTree(COLUMNS, "file")
    data = b"".join(row.data for row in rows)
    for first, last in zip([0, *(cuts or [])], [*(cuts or []), len(rows)], strict=True):
        window = rows[first:last]
        if not window:
            continue
        if shuffled is not None:
            Random(shuffled).shuffle(window)
        half = len(window) // 2
        groups = [table_of(part) for part in (window[:half], window[half:]) if part]
        for group in groups:
            made.add(group)
        table = pa.concat_tables(groups)
        starts = table["physical_offset"].to_numpy()
        sizes = table["size"].to_numpy().astype(np.int64)
        owning = np.flatnonzero(sizes > 0)
        order = owning[np.argsort(starts[owning], kind="stable")]
        begin = window and min(row.position for row in window)
        end = max(row.position + len(row.data) for row in window)
        made.push(order, starts, sizes, memoryview(bytearray(data[begin:end])), BASE + begin)
    return made.tree(BASE, len(data), hashlib.sha256(data).hexdigest())


def expected(rows: list[Row]) -> str:
    data = b"".join(row.data for row in rows)
    return root_of(moved(rows, BASE), BASE, hashlib.sha256(data).digest()).hex()


def tiled(streams: list[str], sizes: list[int], random: Random) -> list[Row]:
    starts = [0, *accumulate(sizes)]
    keys = {name: random.randbytes(16) for name in streams}
    return [
        Row(name, at, random.randbytes(size), keys[name])
        if random.random() < 0.8
        else Row(name, at, random.randbytes(size), None, random.randbytes(16))
        for name, size, at in zip(streams, sizes, starts, strict=False)
    ]


NAMES = st.sampled_from(["", "orders", "payments", "ä", "\U0001f600", "\uffee", "%RETRY%g"])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(NAMES, st.integers(1, 200)), min_size=1, max_size=40),
    st.integers(0, 2**32),
    st.lists(st.integers(0, 40), max_size=3),
)
@example([("orders", 1)], 0, [])
@example([("orders", 65), ("", 1)], 0, [1])
def test_any_rows_have_the_root_of_the_definition(
    shape: list[tuple[str, int]], seed: int, cuts: list[int]
) -> None:
    rows = tiled([name for name, _ in shape], [size for _, size in shape], Random(seed))
    places = sorted({cut for cut in cuts if 0 < cut < len(rows)})
    tree = tree_of(list(rows), places, shuffled=seed)
    assert tree.root == expected(rows)
    names = sorted({row.stream for row in rows}, key=str.encode)
    if len(names) == 1:
        assert tree.streams is None
        return
    assert tree.streams is not None
    said = json.loads(tree.streams)
    assert [stream["name"] for stream in said] == names
    for stream in said:
        own = [row for row in rows if row.stream == stream["name"]]
        assert stream == {
            "name": stream["name"],
            "leaves": len(own),
            "bytes": sum(len(row.data) for row in own),
            "first_ms": min(row.position for row in own),
            "last_ms": max(row.position for row in own),
            "root": stream_of(stream["name"], moved(rows, BASE)).hex(),
            "gone": None,
        }
        assert list(stream) == ["name", "leaves", "bytes", "first_ms", "last_ms", "root", "gone"]


@pytest.mark.parametrize(
    "leaves", sorted({count for power in range(12) for count in (2**power - 1, 2**power, 2**power + 1)} - {0})
)
def test_trees_of_every_shape_are_split_at_the_largest_power_of_two(leaves: int) -> None:
    rows = tiled(["t"] * leaves, [1] * leaves, Random(leaves))
    assert tree_of(list(rows), [leaves // 3] if leaves > 2 else []).root == expected(rows)


def test_rows_without_bytes_are_no_leaves() -> None:
    rows = [Row("t", 0, b"batch", bytes(16)), Row("t", 5, b"next", bytes(16))]
    empty = Row("t", 0, b"", None)
    assert tree_of([rows[0], empty, empty, rows[1]]).root == tree_of(rows).root == expected(rows)


def test_the_fixed_vector_never_changes() -> None:
    """What a lake of version 3 has in it for ever."""
    key = bytes(range(16))
    rows = [
        Row("b", 0, b"first", key),
        Row("a", 5, b"second", key),
        Row("", 11, b"\x00", None, bytes(16)),
        Row("b", 12, bytes(100), key),
    ]
    leaf = "69df61ff8e2ed1ff0b99023d316d13b08322bb6a263e89b900b0017de43e0f70"
    assert leaf_of(rows[0]).hex() == leaf
    tree = tree_of(rows)
    assert tree.root == expected(rows) == "0dacf935eae82d7cd939f062661dc6e787c42f2cc3faf555df903d80c8e6dcf3"


@pytest.mark.parametrize("change", ["key", "salt", "stream", "bytes", "offset", "sha256", "base"])
def test_whatever_changes_the_root_is_another(change: str) -> None:
    key, other = bytes(16), bytes(15) + b"\1"
    rows = [Row("t", 0, b"abc", key), Row("u", 3, b"de", None, key)]
    digest = hashlib.sha256(b"abcde").digest()
    changed = {
        "key": [Row("t", 0, b"abc", other), rows[1]],
        "salt": [rows[0], Row("u", 3, b"de", None, other)],
        "stream": [rows[0], Row("v", 3, b"de", None, key)],
        "bytes": [Row("t", 0, b"abd", key), rows[1]],
        "offset": [Row("t", 0, b"abcd", key), Row("u", 4, b"e", None, key)],
    }
    before = root_of(rows, 0, digest)
    after = root_of(
        changed.get(change, rows),
        1 if change == "base" else 0,
        bytes(32) if change == "sha256" else digest,
    )
    assert before != after
    if change in changed:
        assert tree_of(changed[change]).root != tree_of(rows).root


@pytest.mark.parametrize(
    ("key", "reason"),
    [(None, "expected leaf_key or leaf_salt in each row with bytes"), (b"short", "found one of 5")],
)
def test_a_row_without_a_key_has_no_root(key: bytes | None, reason: str) -> None:
    rows = [Row("t", 0, b"abc", bytes(16)), Row("t", 3, b"de", key)]
    with pytest.raises(ProofError, match=reason):
        tree_of(rows)


def engines() -> dict[str, np.ndarray]:
    """Every way to hash that this machine has."""
    own, functions = sha256_kernels.own_engine().tolist(), sha256_kernels._openssl_functions()
    lanes = sha256_kernels._lanes() if HAS_SHA256 else [0, 0]
    assert functions, "OpenSSL's functions were not found"
    ways = {
        "own kernel": own,
        "OpenSSL": [*functions, *own[4:]],
        "own kernel and processor": [*own[:6], *lanes],
        "OpenSSL and processor": [*functions, *own[4:6], *lanes],
    }
    return {name: np.array(way, np.int64) for name, way in ways.items()}


@pytest.mark.parametrize(
    "way", ["own kernel", "OpenSSL", "own kernel and processor", "OpenSSL and processor"]
)
def test_every_way_to_hash_gives_the_same_roots(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    engine = engines()[way]
    assert sha256_kernels.is_right(engine)
    monkeypatch.setattr(segment_tree, "sha256_engine", lambda: engine)
    monkeypatch.setattr(segment_tree, "_TOGETHER", 61)
    chance = Random(1)
    sizes = [*range(1, 140), 4096, 1, 5000, 34, 35, 36]
    rows = tiled([chance.choice("abc") for _ in sizes], sizes, chance)
    assert tree_of(list(rows), [7, 50]).root == expected(rows)


@pytest.mark.parametrize("way", ["OpenSSL", "OpenSSL and processor"])
@pytest.mark.parametrize("files", [1, 2, 3, 4])
def test_files_are_hashed_side_by_side_as_each_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str, files: int
) -> None:
    engine, part = engines()[way], sha256_kernels._PART_BYTES
    monkeypatch.setattr(sha256_kernels, "sha256_engine", lambda: engine)
    chance = Random(files)
    for size in (0, 55, 56, part - 1, part, 2 * part + 64, 3 * part):
        sizes = [size, *(max(0, size + chance.choice([0, 0, -1, 63, part])) for _ in range(files - 1))]
        contents = [chance.randbytes(it) for it in sizes]
        with ExitStack() as opened:
            paths = [tmp_path / str(number) for number in range(files)]
            for path, content in zip(paths, contents, strict=True):
                path.write_bytes(content)
            found = sha256_kernels.sha256_of_files([opened.enter_context(FileIO(path)) for path in paths])
        assert found == [hashlib.sha256(content).hexdigest() for content in contents]


@pytest.mark.parametrize(
    ("way", "place"),
    [
        ("OpenSSL", 1),
        ("OpenSSL", 3),
        ("own kernel", 4),
        ("own kernel", 5),
        ("OpenSSL and processor", 6),
        ("OpenSSL and processor", 7),
    ],
)
def test_an_engine_that_hashes_otherwise_is_found_out(way: str, place: int) -> None:
    """A function is another one, or what it begins with is wrong."""
    if place > 5 and not HAS_SHA256:
        pytest.skip("this processor has no instructions for it")
    engine, wrong = engines()[way], np.ones(128, np.int64)
    engine[place] = engine[0] if place < 4 else wrong.ctypes.data
    assert not sha256_kernels.is_right(engine)


def test_a_function_that_hashes_otherwise_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    init, _, final, transform = sha256_kernels._openssl_functions()
    monkeypatch.setattr(sha256_kernels, "_openssl_functions", lambda: [init, init, final, transform])
    assert sha256_kernels.sha256_engine.__wrapped__()[:4].tolist() == [0, 0, 0, 0]


def test_where_no_function_hashes_right_there_is_no_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sha256_kernels, "_constants", lambda: (np.zeros(8, np.uint32), np.zeros(64, np.int64))
    )
    monkeypatch.setattr(sha256_kernels, "_openssl_functions", list)
    monkeypatch.setattr(sha256_kernels, "own_engine", sha256_kernels.own_engine.__wrapped__)
    with pytest.raises(ProofError, match="expected the hashes of Python's hashlib"):
        sha256_kernels.sha256_engine.__wrapped__()


@pytest.mark.parametrize("clustered", [True, False])
def test_a_key_is_shared_by_at_most_4096_leaves_of_one_stream(clustered: bool) -> None:
    topics = ["a"] * 9000 + [None] * 5000 + ["b"]
    sizes = [0 if at % 1000 == 7 else 1 for at in range(len(topics))]
    rows = pa.table({"topic": pa.array(topics, pa.string()), "size": pa.array(sizes, pa.int32())})
    if not clustered:
        rows = rows.take(pa.array(np.random.default_rng(1).permutation(len(topics))))
    column = new_leaf_keys(rows, COLUMNS)
    assert column.type.value_type == TREE_COLUMNS.field("leaf_key").type
    keys = column.to_pylist()
    runs: dict[bytes, list[str | None]] = {}
    for key, topic, size in zip(keys, rows["topic"].to_pylist(), rows["size"].to_pylist(), strict=True):
        assert (key is None) == (size == 0)
        if key is not None:
            assert len(key) == 16
            runs.setdefault(key, []).append(topic)
    assert all(len(set(run)) == 1 and len(run) <= 4096 for run in runs.values())
    if clustered:
        assert len(runs) == 3 + 2 + 1
    again = new_leaf_keys(rows, COLUMNS).dictionary.to_pylist()
    assert not set(again) & set(runs)


def test_a_data_file_alone_gives_the_root_and_its_footer_tells_no_key(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    (job,) = make_jobs(lake, segments[1])
    data = segments[1].read_bytes()
    sink = io.BytesIO()
    write_data_file(job, CODEC, memoryview(data), sink)
    with pq.ParquetFile(io.BytesIO(sink.getvalue()), read_dictionary=["leaf_key"]) as parquet:
        made = tree_of_file(parquet, CODEC.columns, "x", trees=True)
        assert made is not None
        for _ in segment_bytes(parquet, CODEC, 1 << 20, len(data), "x", tree=made):
            pass
        rows = parquet.read(["physical_offset", "size", "topic", "leaf_key"]).to_pylist()
        # What no row has is no column of the file.
        assert set(TREE_COLUMNS.names) & set(parquet.schema_arrow.names) == {"leaf_key"}
        place = parquet.metadata.schema.names.index("leaf_key")
        assert all(
            parquet.metadata.row_group(group).column(place).statistics is None
            for group in range(parquet.num_row_groups)
        )
    keys = {row["leaf_key"] for row in rows}
    # Nor does a key stand twice in the file: pages of a dictionary have it once.
    assert all(sink.getvalue().count(key) <= 1 for key in keys)
    found = [
        Row(
            row["topic"] or "",
            row["physical_offset"],
            data[row["physical_offset"] - (1 << 20) :][: row["size"]],
            row["leaf_key"],
        )
        for row in rows
    ]
    digest = hashlib.sha256(data).digest()
    tree = made.tree(1 << 20, len(data), digest.hex())
    assert tree.root == root_of(found, 1 << 20, digest).hex()
    assert tree.streams is not None
    assert [stream["name"] for stream in json.loads(tree.streams)] == sorted({row.stream for row in found})
