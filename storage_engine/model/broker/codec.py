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
"""Makes bytes of a segment readable, from one position up to another; earlier bytes become unreadable."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A run of bytes in a segment that is not a valid frame, and what was wrong with it.

    :param offset: position of the first of them.
    :param as_written: a checksum over them is right, so each replica has the same ones: they are archived as
        they are, without anybody's consent.
    """

    offset: int
    size_bytes: int
    expected: str
    found: str
    as_written: bool = False


@dataclass(frozen=True, slots=True)
class Columns:
    """Purposes of a codec's columns; all but the stored time may be empty.

    :param stored_at: when the broker took the message, a timestamp of any unit; None: nothing says.
    :param streams: which name the stream that a message belongs to: topic and queue, say. Bytes are counted
        by the first.
    :param bounds: by which people select: minima and maxima, in files and in the table's manifests.
    :param file_bounds: the same, in files alone.
    :param dictionary: that may have few distinct values; nested ones as Parquet paths.
    :param delta: of numbers that grow slowly.
    :param export: the columns exported of a message, in this order; none: messages aren't exported.
    :param keys: each of which names a message as a whole, texts or binaries.
    :param key_lists: texts of several such names, with blanks between them.
    :param topic_id_of: returns the topic's id that a log's identity (``Receipt.log_id``) names; None: topics
        have none.
    :param offset: which counts the messages of a stream; None: nothing does.
    :param steps: returns, of rows, by how many a message moves its stream's offset on; 0: it is in no stream;
        null: the columns don't tell. None: null of every row.
    :param step_columns: that it reads.
    :param log_offsets: of which the first that a row has tells its offset in the log; none: its position is.
    :param producer: address of whoever sent a message; None: the broker doesn't store it.
    :param views: by column, which other one's values it is made of where it has none, and how, for who reads
        messages.
    :param comments: what each column says, for who queries the table in another engine.
    :param not_of_raw: columns of the encoded ones by which no row is encoded that has its bytes as ``raw``.
    :param filler: the stream of filler that a restore puts in place of missing messages: no broker counts or
        serves it.
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

    Rows cover the segment without gap or overlap: each has its position, ``physical_offset``, and ``size``,
    and re-encodes to exactly the bytes [physical_offset, physical_offset + size). ``kind`` is ``message``,
    ``undecodable`` for bytes that are no valid frame, or a word of the broker's own.

    Positions count bytes, offsets what the broker counts. They are the same where a log's offsets count
    bytes; :meth:`origin` is all that leads from one to the other.
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

        By default it is the segment's base offset; 0 is for who counts records.
        """
        return base_offset

    def decode(
        self, data: memoryview, base_offset: int, *, chunk_bytes: int = ..., context: str = ""
    ) -> Iterator[tuple[pa.Table, tuple[Damage, ...]]]:
        """Yield the rows of consecutive byte ranges of about ``chunk_bytes``, from the origin on, each
        clustered for reading by topic, with the damage found in that range.

        :param context: of ``SegmentContext``, as the segment's store gave it.
        """

    def decode_groups(
        self, data: memoryview, base_offset: int, *, chunk_bytes: int, context: str, load: LoadBytes
    ) -> Iterator[tuple[Iterator[pa.Table], tuple[Damage, ...]]]:
        """Yield the rows of each range that :meth:`decode` yields, cut into the row groups of a data file.

        By default the whole segment is loaded, and decoded a range at a time.

        :param data: room for the whole segment.
        :param load: makes parts of it readable.
        """
        from storage_engine.arrow.row_groups import cut_rows

        load(0, len(data))
        decoded = self.decode(data, base_offset, chunk_bytes=chunk_bytes, context=context)
        # No name here holds on to rows while the next are made in their memory.
        yield from starmap(lambda rows, damages: (cut_rows(rows), damages), decoded)

    def older_rows(self, rows: pa.Table) -> pa.Table:
        """Return decoded rows with the columns of lakes of a version below 3: by default all of them."""
        return rows

    def filler(
        self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], stored_ms: npt.NDArray[np.int64]
    ) -> pa.Table | None:
        """Return rows for runs of bytes whose own rows a lake no longer has, which the broker takes for
        messages of no stream. By default None: there is no such thing.

        :param starts: positions of the runs, in order.
        :param ends: positions behind them.
        :param stored_ms: when they are to have been stored.
        :raises ProofError: a run has no room for one.
        """
        return None

    @property
    def bodies(self) -> Bodies | None:
        """Return the reader of payloads that producers compressed; None, as by default: there are none."""
        return None

    def encode(self, rows: pa.Table, out: memoryview, first_position: int) -> int:
        """Write each row's bytes into ``out`` at physical_offset - first_position.

        :param first_position: of the byte that ``out`` begins with, which may be any of the segment's.
        :return: number of bytes written; the caller checks coverage.
        :raises ProofError: when a row lies outside ``out`` or rows overlap.
        """


def offsets_count_bytes(codec: SegmentCodec) -> bool:
    """Return whether offsets are positions, so that a segment's size tells where it ends."""
    return codec.origin(1) == 1


class Bodies(Protocol):
    """Payloads that producers compressed."""

    def is_compressed(self, flags: Any) -> Any:
        """Return a mask of the payloads that are compressed, by their flags; both are Arrow arrays."""

    def decompressed_parts(self, bodies: Any, flags: Any) -> Iterator[pa.Array[Any]]:
        """Yield the payloads in parts, uncompressed; what is damaged becomes null.

        :param bodies: Arrow array of binaries.
        :param flags: Arrow array, as long.
        """


@dataclass(frozen=True, slots=True)
class RestoredSetting:
    """A setting of a broker by which something was made beside restored segments.

    :param source: the file or the lake that says it, or that it is the broker's default.
    :param note: the part that is not served in spite of it; "": none.
    """

    name: str
    value: str
    source: str
    note: str = ""


class RestoredConfig(Protocol):
    """Derives the files that a broker needs beside restored segments, from their receipts and from their
    rows.

    ``COLUMNS`` are read of each segment; ``NO_QUEUES`` is an empty table of what is known of queues.
    ``ENDS_ANYWHERE``: :meth:`unfinished` never has a reason, and isn't asked. ``FINISHED``: names, right
    below the root, of all that :meth:`finish` makes.
    """

    @property
    def FILES(self) -> tuple[str, ...]:  # noqa: N802
        """Return the files that lie beside logs, by their path below the restored root."""

    @property
    def COLUMNS(self) -> tuple[str, ...]: ...  # noqa: N802

    @property
    def NO_QUEUES(self) -> pa.Table: ...  # noqa: N802

    @property
    def ENDS_ANYWHERE(self) -> bool: ...  # noqa: N802

    @property
    def FINISHED(self) -> frozenset[str]: ...  # noqa: N802

    def log_files(self, log: str) -> tuple[str, ...]:
        """Return the files of a log, by their path below the restored root."""

    def check(self, receipts: Sequence[Receipt], read_segment: Callable[[Receipt], bytearray]) -> None:
        """
        :param read_segment: returns a segment's bytes from the lake, not yet compared with its SHA-256.
        :raises RestoreError: the broker would not serve the segments of these receipts.
        """

    def queues_of(self, rows: pa.Table) -> pa.Table:
        """Return the queues' positions that some rows of a segment have."""

    def merge_queues(self, queues: pa.Table) -> pa.Table:
        """Return one row a queue."""

    def unfinished(self, queues: pa.Table) -> str:
        """Return why a restored log may not end behind the segments that these queues are of; "": it may."""

    def config_files(self, queues: pa.Table, receipts: Sequence[Receipt]) -> Mapping[str, bytes]:
        """Return the files' contents by name, in the order in which they are written.

        The same again for the same queues and receipts.
        """

    def settings(self, receipts: Sequence[Receipt]) -> tuple[RestoredSetting, ...]:
        """Return the settings that :meth:`finish` goes by, which the broker has to have as well."""

    def finish(self, root: Path, receipts: Sequence[Receipt]) -> None:
        """Make, of restored segments, what a broker can't serve them without.

        It may be killed at any instant, and done again.
        """
