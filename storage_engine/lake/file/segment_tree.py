"""The hash tree of a segment's rows, from its leaves to its root; docs/format.md specifies it.

Each row with bytes is a leaf in the tree of its stream, which is its topic. The root covers all streams.
Leaves are salted, so that a row's bytes can't be guessed from its leaf. Only the rows have the salts' keys.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from struct import pack
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.arrow.memory import address_of
from storage_engine.arrow.name_columns import one_array
from storage_engine.commands import Command
from storage_engine.exceptions import ProofError
from storage_engine.lake.catalog.tables import LEAF_KEY, LEAF_SALT
from storage_engine.lake.file.sha256_kernels import DIGEST_BYTES, sha256_engine
from storage_engine.lake.file.tree_kernels import LEVELS, NODE, SALT_BYTES, TREE_SCRATCH_BYTES, push_leaves
from storage_engine.model.broker.codec import Columns

RUN_LEAVES = 4096
"""Maximum number of a stream's leaves that share a key."""

NOTHING_GONE: Mapping[str, Mapping[str, Any]] = MappingProxyType({})

_TOGETHER = 1 << 15
"""Maximum number of leaves that are added in one call. Their hashes fit into the processor's cache."""

_STREAM, _ROOT = b"\x03", b"\x04"
_FORMAT = b"storage-engine/3"
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class Tree:
    """A receipt's record of its segment's tree.

    :param root: the root's hash, in hex.
    :param streams: JSON list of the streams, sorted by name; None if the segment has at most one.
    """

    root: str
    streams: str | None


def tree_columns(columns: Columns) -> tuple[str, ...]:
    """Return the columns that a tree needs, apart from those that the bytes are made of."""
    times = () if columns.stored_at is None else (columns.stored_at,)
    return (*columns.streams[:1], *times, "kind", LEAF_KEY, LEAF_SALT)


class SegmentTree:
    """Builder of a segment's tree, while the segment's rows are turned back into its bytes."""

    def __init__(self, columns: Columns, name: str) -> None:
        self._topic = columns.streams[0] if columns.streams else None
        self._stored_at = columns.stored_at
        self._name = name
        self._numbers: dict[str, int] = {}
        self._subtrees = np.empty((0, LEVELS, DIGEST_BYTES), np.uint8)
        self._counts = self._sizes = np.empty(0, np.int64)
        self._first_us = self._last_us = np.empty(0, np.int64)
        self._scratch = np.empty(TREE_SCRATCH_BYTES, np.uint8)
        # Two threads may each make an engine, and only one is cached. A reference keeps the other alive.
        self._engine = sha256_engine()
        self._fault = ""
        self._drop_rows()

    def _drop_rows(self) -> None:
        self._secrets = b""
        self._streams: list[npt.NDArray[np.int32]] = []
        self._places: list[npt.NDArray[np.int64]] = []
        self._are_salts: list[npt.NDArray[np.uint8]] = []

    def add(self, rows: pa.Table) -> None:
        """Take rows with the columns of :func:`tree_columns`. The next :meth:`push` adds their leaves.

        If no tree can be made of them, :meth:`tree` raises the error.
        """
        if LEAF_KEY not in rows.column_names:
            self._fault = self._fault or f"expected a column {LEAF_KEY}, found none"
        if self._fault or not rows.num_rows:
            return
        ends, names = _runs_of(rows, self._topic)
        numbers = np.array([self._number_of(name) for name in names], np.int32)
        streams = np.repeat(numbers, np.diff(ends, prepend=0))
        self._streams.append(streams)
        self._add_times(rows, streams, ends, numbers)
        places, secret = self._secrets_of(rows[LEAF_KEY])
        places = np.where(places < 0, -1, places + len(self._secrets) // SALT_BYTES)
        self._secrets += secret
        are_salts = np.zeros(rows.num_rows, np.uint8)
        if LEAF_SALT in rows.column_names and rows[LEAF_SALT].null_count < rows.num_rows:
            own, secret = self._secrets_of(rows[LEAF_SALT])
            places = np.where(own < 0, places, own + len(self._secrets) // SALT_BYTES)
            self._secrets += secret
            are_salts = (own >= 0).astype(np.uint8)
        self._places.append(places)
        self._are_salts.append(are_salts)

    def push(
        self,
        order: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        data: memoryview,
        first_position: int,
    ) -> None:
        """Add leaves for the rows of :meth:`add` since the last call.

        :param order: indexes of the rows that have bytes, sorted by position. The rows are within ``data``
            and don't overlap.
        :param positions: positions of all these rows, also of those without bytes.
        :param first_position: position of the first byte of ``data``.
        """
        if self._fault or not len(order):
            return
        places = np.concatenate(self._places)
        if (missing := places[order] < 0).any():
            self._fault = (
                "expected leaf_key or leaf_salt in each row with bytes, found neither in the row at physical "
                f"offset {int(positions[order[np.argmax(missing)]])}"
            )
            return
        memory, secret = np.frombuffer(data, np.uint8), np.frombuffer(self._secrets, np.uint8)
        every_stream, are_salts = np.concatenate(self._streams), np.concatenate(self._are_salts)
        for first in range(0, len(order), _TOGETHER):
            rows = order[first : first + _TOGETHER]
            streams, row_sizes = every_stream[rows], sizes[rows]
            lengths = np.bincount(streams, minlength=len(self._counts))
            # A stream's hashes are adjacent, after one free slot. Short numbers sort faster.
            short = streams.astype(np.uint16) if len(lengths) <= 1 << 16 else streams
            slots = np.empty(len(rows), np.int64)
            slots[np.argsort(short, kind="stable")] = np.arange(len(rows))
            slots += streams + 1
            hashes = np.empty((len(rows) + len(lengths), DIGEST_BYTES), np.uint8)
            push_leaves(
                address_of(self._engine),
                address_of(self._scratch),
                address_of(memory),
                first_position,
                rows,
                slots,
                lengths,
                positions,
                sizes,
                address_of(secret),
                places,
                are_salts,
                address_of(hashes),
                address_of(self._subtrees),
                self._counts,
            )
            np.add.at(self._sizes, streams, row_sizes)
        self._drop_rows()

    def tree(
        self,
        base_offset: int,
        size_bytes: int,
        sha256: str,
        gone: Mapping[str, Mapping[str, Any]] = NOTHING_GONE,
    ) -> Tree:
        """Return the tree over all leaves that were added.

        :param sha256: hash of the segment's file, in hex.
        :param gone: a receipt's facts of the streams whose rows were removed, by name. Their recorded roots
            are used.
        :raises ProofError: the rows lack columns that a tree needs, or a removed stream has rows.
        """
        kept = self.streams()
        if odd := kept.keys() & gone.keys():
            raise ProofError(
                f"{self._name}: expected no row of topic {min(odd)}, whose rows were removed, found some."
            )
        every_stream = {**kept, **gone}
        streams = [dict(every_stream[name]) for name in sorted(every_stream)]
        root = hashlib.sha256(
            _ROOT
            + _FORMAT
            + pack(">QQ", base_offset, size_bytes)
            + bytes.fromhex(sha256)
            + pack(">I", len(streams))
        )
        for stream in streams:
            root.update(bytes.fromhex(stream["root"]))
        text = json.dumps(streams, separators=(",", ":")) if len(streams) > 1 else None
        return Tree(root.hexdigest(), text)

    def streams(self) -> dict[str, Mapping[str, Any]]:
        """Return the streams of all added leaves, by name, in the form of a receipt.

        :raises ProofError: the rows lack columns or keys that a tree needs.
        """
        if self._fault:
            raise ProofError(f"{self._name}: {self._fault}. The root of its rows can't be computed.")
        return {
            name: self._stream(name, number) for name, number in self._numbers.items() if self._counts[number]
        }

    def _stream(self, name: str, number: int) -> dict[str, Any]:
        leaves, size_bytes = int(self._counts[number]), int(self._sizes[number])
        levels = [level for level in range(LEVELS) if leaves >> level & 1]
        top = b""
        for level in levels:
            nodes = self._subtrees[number, level].tobytes()
            top = hashlib.sha256(bytes([NODE]) + nodes + top).digest() if top else nodes
        text = name.encode()
        head = _STREAM + pack(">I", len(text)) + text + pack(">QQ", leaves, size_bytes)
        first, last = int(self._first_us[number]), int(self._last_us[number])
        return {
            "name": name,
            "leaves": leaves,
            "bytes": size_bytes,
            "first_ms": None if first == _INT64.max else first // 1000,
            "last_ms": None if last == _INT64.min else last // 1000,
            "root": hashlib.sha256(head + top).hexdigest(),
            "gone": None,
        }

    def _number_of(self, name: str) -> int:
        number = self._numbers.setdefault(name, len(self._numbers))
        if number == len(self._counts):
            more = max(8, number)
            self._subtrees = np.concatenate(
                [self._subtrees, np.empty((more, LEVELS, DIGEST_BYTES), np.uint8)]
            )
            self._counts = np.append(self._counts, np.zeros(more, np.int64))
            self._sizes = np.append(self._sizes, np.zeros(more, np.int64))
            self._first_us = np.append(self._first_us, np.full(more, _INT64.max))
            self._last_us = np.append(self._last_us, np.full(more, _INT64.min))
        return number

    def _add_times(
        self,
        rows: pa.Table,
        streams: npt.NDArray[np.int32],
        ends: npt.NDArray[np.int64],
        numbers: npt.NDArray[np.int32],
    ) -> None:
        """Widen the streams' time spans by the times at which messages were stored.

        :param streams: for each row, the number of its stream.
        :param ends: index after each run of rows of one stream.
        :param numbers: for each run, the number of its stream.
        """
        if self._stored_at is None:
            return
        times: Any = rows[self._stored_at]
        micros = times.cast(pa.timestamp("us", tz=times.type.tz)).cast(pa.int64())
        is_message: Any = pc.equal(rows["kind"], pa.scalar("message"))
        if times.null_count == 0 and pc.all(is_message).as_py():
            begins, stored_us = np.append(0, ends[:-1]), micros.to_numpy()
            np.minimum.at(self._first_us, numbers, np.minimum.reduceat(stored_us, begins))
            np.maximum.at(self._last_us, numbers, np.maximum.reduceat(stored_us, begins))
            return
        counts: npt.NDArray[np.bool_] = is_message.to_numpy() & times.is_valid().to_numpy()
        stored_us = micros.filter(pa.array(counts)).to_numpy()
        np.minimum.at(self._first_us, streams[counts], stored_us)
        np.maximum.at(self._last_us, streams[counts], stored_us)

    def _secrets_of(self, column: pa.ChunkedArray[Any]) -> tuple[npt.NDArray[np.int64], bytes]:
        """Return each row's index into the distinct keys or salts, or -1 without one, and their bytes."""
        coded = one_array(column)
        indices: Any = coded.indices
        codes: npt.NDArray[np.int64] = pc.fill_null(indices, -1).to_numpy().astype(np.int64)
        values: Any = coded.dictionary
        lengths = set(pc.unique(pc.binary_length(values)).to_pylist()) - {SALT_BYTES}
        if lengths:
            self._fault = f"expected keys and salts of {SALT_BYTES} bytes, found one of {max(lengths)}"
            return codes, bytes(SALT_BYTES * len(values))
        return codes, b"".join(values.to_pylist())


def tree_of_file(parquet: Any, columns: Columns, name: str, *, trees: bool) -> SegmentTree | None:
    """Return the builder of a data file's tree, or None if the file was written before its lake had trees.

    :param parquet: the file, or a segment's part of it.
    :raises ProofError: the file has leaf keys, but the lake is of an older version. A program that rewrites
        the rows would lose the keys, because the lake's table of rows has no column for them.
    """
    if LEAF_KEY not in parquet.schema_arrow.names:
        return None
    if not trees:
        raise ProofError(
            f"{name}: expected a data file of a lake of a version below 3, found one with {LEAF_KEY}: the "
            "lake went back to an older version since the file was written. Nothing was committed. Run ",
            Command("lake upgrade"),
            ", and then this again.",
        )
    return SegmentTree(columns, name)


def new_leaf_keys(rows: pa.Table, columns: Columns) -> pa.Array[Any]:
    """Return new leaf keys for a row group. A run of a stream has one for each :data:`RUN_LEAVES` leaves."""
    count = rows.num_rows
    are_leaves = rows["size"].to_numpy() > 0
    ends, _ = _runs_of(rows, columns.streams[0] if columns.streams else None)
    # Rows without bytes are no leaves, and get no key.
    leaves = np.diff(np.cumsum(are_leaves)[ends - 1], prepend=0)
    keyed = -(-leaves // RUN_LEAVES)
    lengths = np.full(int(keyed.sum()), RUN_LEAVES)
    lasts = np.cumsum(keyed)[keyed > 0] - 1
    lengths[lasts] = (leaves - RUN_LEAVES * (keyed - 1))[keyed > 0]
    keys = np.zeros(count, np.int32)
    keys[are_leaves] = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    salts = secrets.token_bytes(SALT_BYTES * len(lengths))
    dictionary = pa.array(
        [salts[at : at + SALT_BYTES] for at in range(0, len(salts), SALT_BYTES)], pa.binary()
    )
    indices: Any = pa.array(keys, mask=None if are_leaves.all() else ~are_leaves)
    return pa.DictionaryArray.from_arrays(indices, dictionary)


def _runs_of(rows: pa.Table, topic: str | None) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return the end and stream of each run of one stream's rows. Without a topic, all rows are one run."""
    if topic is None:
        return np.array([rows.num_rows], np.int64), [""]
    column: Any = rows[topic]
    run_end_encode: Any = getattr(pc, "run_end_encode")  # noqa: B009 (pyarrow-stubs lack it)
    coded: Any = one_array(column) if pa.types.is_dictionary(column.type) else None
    encoded = run_end_encode(
        column.combine_chunks() if coded is None else coded.indices, run_end_type=pa.int64()
    )
    names = encoded.values if coded is None else coded.dictionary.take(encoded.values)
    return encoded.run_ends.to_numpy(), [name or "" for name in names.to_pylist()]
