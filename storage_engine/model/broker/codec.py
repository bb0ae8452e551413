"""The part of a broker that a Spark task needs: pure, picklable, bytes ↔ Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from storage_engine.model.proof.receipt import Receipt


LoadBytes = Callable[[int, int], None]
"""Makes a segment's bytes readable from one position to another. Earlier bytes become unreadable."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A run of bytes in a segment that is not a valid frame, and the fault.

    :param offset: position of the first of these bytes.
    :param as_written: a checksum over these bytes is right, so each replica has the same bytes. They are
        archived as they are, and no person has to agree.
    """

    offset: int
    size_bytes: int
    expected: str
    found: str
    as_written: bool = False


@dataclass(frozen=True, slots=True)
class Columns:
    """Purposes of a codec's columns. Each purpose may be empty.

    :param stored_at: the column with the time when the broker stored the message, a timestamp of any unit;
        None if no column has it.
    :param streams: columns that name a message's stream, such as topic and queue. Bytes are counted for each
        value of the first column.
    :param bounds: columns by which people select. Their minima and maxima are in files and in manifests.
    :param file_bounds: columns whose minima and maxima only the files have.
    :param dictionary: columns that may have few distinct values; nested columns as Parquet paths.
    :param delta: columns of numbers that grow slowly.
    :param export: columns in the export of a message, in this order; none: messages aren't exported.
    :param keys: columns whose whole value, a text or binary, is one key of the message.
    :param key_lists: columns of texts that have several keys, with blanks between them.
    :param topic_id_of: returns the topic's id in a log's identity (``Receipt.log_id``); None without ids.
    :param offset: the column with a message's offset in its stream; None if there is no such column.
    :param steps: returns for each row by how much the message advances its stream's offset: 0 if the message
        is in no stream, null if unknown. If unknown for every row, None instead of a function.
    :param step_columns: the columns that ``steps`` reads.
    :param log_offsets: columns with a row's offset in the log. The first value that isn't null counts. If
        empty, the position is the offset.
    :param producer: the column with the address of the message's sender; None if the broker doesn't store it.
    :param views: columns to fill for readers of messages. Each has a source column, and a function that
        computes missing values from the source column.
    :param comments: each column's meaning, for people who query the table in another engine.
    :param not_of_raw: encoded columns that a row with its bytes in ``raw`` doesn't need.
    :param filler: the stream of the filler that replaces missing messages in a restore. No broker serves it.
    """

    stored_at: str | None = None
    streams: tuple[str, ...] = ()
    bounds: tuple[str, ...] = ()
    file_bounds: tuple[str, ...] = ()
    dictionary: tuple[str, ...] = ()
    delta: tuple[str, ...] = field(default=("physical_offset", "size"))
    export: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    key_lists: tuple[str, ...] = ()
    topic_id_of: Callable[[str], str] | None = None
    views: Mapping[str, tuple[str, Callable[[pa.ChunkedArray[Any]], pa.Array[Any]]]] = field(
        default_factory=dict, hash=False
    )
    comments: Mapping[str, str] = field(default_factory=dict, hash=False)
    offset: str | None = None
    steps: Callable[[pa.Table], pa.Array[Any] | pa.ChunkedArray[Any]] | None = None
    step_columns: tuple[str, ...] = ()
    log_offsets: tuple[str, ...] = ()
    producer: str | None = None
    not_of_raw: tuple[str, ...] = ()
    filler: str | None = None


class SegmentCodec(Protocol):
    """Turns a segment's bytes into rows and back.

    Rows cover the segment without gap or overlap. Each row has its position, ``physical_offset``, and its
    ``size``. A row re-encodes to exactly the bytes [physical_offset, physical_offset + size). ``kind`` is
    ``message``, ``undecodable`` for bytes that are no valid frame, or a word of the broker's own.

    Positions count bytes. Offsets count what the broker counts: bytes or records. Where a log's offsets count
    bytes, the two are equal. Only :meth:`origin` relates the two.
    """

    @property
    def columns(self) -> Columns:
        """Return the purpose of each column of :attr:`schema`."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of a row, without the identity columns that the lake adds."""

    @property
    def encoded_columns(self) -> tuple[str, ...]:
        """The columns that :meth:`encode` reads."""

    def origin(self, base_offset: int) -> int:
        """Return the position of a segment's first byte.

        By default it is the segment's base offset. It is 0 where offsets count records.
        """
        return base_offset

    def decode(
        self, data: memoryview, base_offset: int, *, chunk_bytes: int = ..., context: str = ""
    ) -> Iterator[tuple[pa.Table, tuple[Damage, ...]]]:
        """Yield the rows of consecutive byte ranges of about ``chunk_bytes``, from the origin on, with the
        damage found in each range.

        The rows of a range are sorted so that those of one topic are together.

        :param context: ``SegmentContext.codec``, as the segment's store returned it.
        """

    def decode_groups(
        self, data: memoryview, base_offset: int, *, chunk_bytes: int, context: str, load: LoadBytes
    ) -> Iterator[tuple[Iterator[pa.Table], tuple[Damage, ...]]]:
        """Yield the rows of each range that :meth:`decode` yields, cut into the row groups of a data file.

        By default the whole segment is loaded, and decoded a range at a time.

        :param data: a buffer for the whole segment.
        """
        from storage_engine.arrow.row_groups import cut_rows

        load(0, len(data))
        decoded = self.decode(data, base_offset, chunk_bytes=chunk_bytes, context=context)
        # No name here holds on to rows while the next are made in their memory.
        yield from starmap(lambda rows, damages: (cut_rows(rows), damages), decoded)

    def older_rows(self, rows: pa.Table) -> pa.Table:
        """Return decoded rows with the columns that lakes below version 3 have. By default all columns."""
        return rows

    def filler(
        self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], stored_ms: npt.NDArray[np.int64]
    ) -> pa.Table | None:
        """Return filler rows for runs of bytes whose own rows a lake no longer has. The broker reads filler
        as messages of no stream.

        By default None: this format has no filler.

        :param starts: positions of the runs, in order.
        :param ends: positions behind the runs.
        :param stored_ms: the store times to write into the filler.
        :raises ProofError: a run is too short for filler.
        """
        return None

    @property
    def bodies(self) -> Bodies | None:
        """Return the reader of payloads that producers compressed. None if there are none, as by default."""
        return None

    def encode(self, rows: pa.Table, out: memoryview, first_position: int) -> int:
        """Write each row's bytes into ``out`` at physical_offset - first_position.

        :param first_position: the position of the first byte of ``out``; any position in the segment.
        :return: number of bytes written. The caller checks that they cover ``out``.
        :raises ProofError: a row is outside ``out``, or rows overlap.
        """


def offsets_count_bytes(codec: SegmentCodec) -> bool:
    """Return whether offsets are positions, so that a segment's end offset follows from its size."""
    return codec.origin(1) == 1


class Bodies(Protocol):
    """Payloads that producers compressed."""

    def is_compressed(self, flags: Any) -> Any:
        """Return a mask of the payloads that are compressed, by their flags; both are Arrow arrays."""

    def decompressed_parts(self, bodies: Any, flags: Any) -> Iterator[pa.Array[Any]]:
        """Yield the uncompressed payloads in parts. A damaged payload becomes null.

        :param bodies: Arrow array of binaries.
        :param flags: Arrow array of the same length.
        """


@dataclass(frozen=True, slots=True)
class RestoredSetting:
    """A broker's setting that decided how files beside restored segments were made.

    :param source: where the value is from: a file, the lake or the broker's default.
    :param note: the data that the broker doesn't serve in spite of this setting; "" if there is none.
    """

    name: str
    value: str
    source: str
    note: str = ""


class RestoredConfig(Protocol):
    """Derives the files that a broker needs beside restored segments, from the segments' receipts and rows.

    ``COLUMNS`` are the columns to read of each segment. ``NO_QUEUES`` is an empty table of queue positions.
    ``ENDS_ANYWHERE``: a log may end behind any segment, and :meth:`unfinished` isn't called. ``FINISHED``:
    names of all entries that :meth:`finish` makes directly below the root.
    """

    @property
    def FILES(self) -> tuple[str, ...]:  # noqa: N802
        """Return the files beside the logs, as paths relative to the restored root."""

    @property
    def COLUMNS(self) -> tuple[str, ...]: ...  # noqa: N802

    @property
    def NO_QUEUES(self) -> pa.Table: ...  # noqa: N802

    @property
    def ENDS_ANYWHERE(self) -> bool: ...  # noqa: N802

    @property
    def FINISHED(self) -> frozenset[str]: ...  # noqa: N802

    def log_files(self, log: str) -> tuple[str, ...]:
        """Return the files of a log, as paths relative to the restored root."""

    def check(self, receipts: Sequence[Receipt], read_segment: Callable[[Receipt], bytearray]) -> None:
        """
        :param read_segment: returns a segment's bytes from the lake, not yet compared with its SHA-256.
        :raises RestoreError: the broker would not serve the segments of these receipts.
        """

    def queues_of(self, rows: pa.Table) -> pa.Table:
        """Return the queue positions found in some rows of a segment."""

    def merge_queues(self, queues: pa.Table) -> pa.Table:
        """Return the queue positions with one row for each queue."""

    def unfinished(self, queues: pa.Table) -> str:
        """Return why a restored log may not end behind these queue positions' segments. "" if it may."""

    def config_files(self, queues: pa.Table, receipts: Sequence[Receipt]) -> Mapping[str, bytes]:
        """Return the files' contents by name, in the order in which they are written.

        The result is always the same for the same queues and receipts.
        """

    def settings(self, receipts: Sequence[Receipt]) -> tuple[RestoredSetting, ...]:
        """Return the settings that :meth:`finish` uses. The broker has to have the same settings."""

    def finish(self, root: Path, receipts: Sequence[Receipt]) -> None:
        """Make the files, from restored segments, without which a broker can't serve them.

        It may be killed at any instant, and then repeated.
        """
