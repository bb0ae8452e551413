"""Choice of the archived segments that a restore writes, and the record of segments with filler."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby, pairwise
from os import PathLike
from pathlib import Path

from storage_engine.brokers import find_broker
from storage_engine.commands import Text
from storage_engine.core.durable import DIRECTORY
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.untrusted import MALFORMED, read_file
from storage_engine.core.wording import bytes_text, reason_text, time_text
from storage_engine.exceptions import BadInputError, RestoreError, StoreIdentityError
from storage_engine.model.proof.receipt import NO_EXPIRIES, Receipt, end_text, end_word
from storage_engine.model.store import group_by_log


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a log to restore. A limit that is None is open. Whole segments are restored.

    :param from_offset: first physical offset.
    :param to_offset: end of the physical offsets, exclusive.
    :param from_ms: earliest store timestamp, in milliseconds since the epoch.
    :param to_ms: end of the store timestamps, exclusive: a segment whose messages all have this timestamp or
        a later one is left out.
    :param segments: base offsets of the only segments to restore. Each of them must be archived.
    """

    from_offset: int | None = None
    to_offset: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    segments: tuple[int, ...] | None = None

    def __str__(self) -> str:
        """Return the span as options of the shell."""
        limits = (
            ("--from-offset", self.from_offset),
            ("--to-offset", self.to_offset),
            ("--from-time", None if self.from_ms is None else repr(time_text(self.from_ms))),
            ("--to-time", None if self.to_ms is None else repr(time_text(self.to_ms))),
            ("--segments", None if self.segments is None else ",".join(map(str, self.segments))),
        )
        return " ".join(f"{name} {value}" for name, value in limits if value is not None)


@dataclass(frozen=True, slots=True)
class LineageRange:
    """A range of a log that one lineage has without a hole.

    :param end_text: for expired offsets, a clause with the reason; "" if the lake has them.
    """

    lineage: int
    log: str
    start_offset: int
    end_offset: int
    end_text: str = ""


def choose(
    receipts: Sequence[Receipt],
    span: Span,
    store_id: str,
    location: str,
    replicas: Sequence[Receipt] = (),
    expired: Sequence[Receipt] = (),
    expiries: Mapping[str, str] = NO_EXPIRIES,
    unarchived: Sequence[LineageRange] = (),
) -> tuple[Receipt, ...]:
    """Return the segments that a span touches, in each log's newest lineage, without a hole in any log.

    :param receipts: the store's receipts.
    :param replicas: other stores' receipts of the same logs. Replicas' segments fill gaps between, before and
        after the store's own segments, where they join these without a hole.
    :param expired: receipts of expired segments, which error messages name.
    :param expiries: for each act, by its SHA-256, a clause with the policy and the time.
    :param unarchived: ranges that were deleted without a copy by a rule, with the rule.
    :raises RestoreError: there are no such segments, or a segment between them is missing.
    """
    chosen: list[Receipt] = []
    for log, of_log in group_by_log(receipts).items():
        newest = max(receipt.lineage for receipt in of_log)
        of_log = [receipt for receipt in of_log if receipt.lineage == newest]
        of_log = _with_replicas(of_log, [row for row in replicas if row.log_id == of_log[-1].log_id])
        if span.segments is not None:
            of_log = [receipt for receipt in of_log if receipt.base_offset in span.segments]
        hits = [number for number, receipt in enumerate(of_log) if _touches(receipt, span)]
        if not hits:
            continue
        # A segment without messages has no time. It is included if it lies between two such segments.
        of_span = of_log[hits[0] : hits[-1] + 1]
        for left, right in pairwise(of_span):
            if left.end != right.base_offset:
                became = _describe_gap(left, right, expired, expiries, unarchived)
                raise RestoreError(
                    f"lake {location}, store {store_id}, {log}: expected a segment at offset {left.end}, "
                    f"the next one is at {right.base_offset}. Nothing was written. A broker doesn't accept "
                    "a hole: restore each side of it into a directory of its own, by "
                    + ", ".join(f"--from-offset {start} --to-offset {end}" for start, end in runs(of_span))
                    + f". {became}{_name_replicas(left, right, replicas)}"
                )
        chosen += of_span
    missing = sorted(set(span.segments or ()) - {receipt.base_offset for receipt in chosen})
    if chosen and missing:
        raise RestoreError(
            f"lake {location}: expected segments of store {store_id} at the offsets {missing}, found no "
            "such segments within the given span. Nothing was written."
        )
    if not chosen:
        spans = "; ".join(
            f"lineage {r.lineage} {r.log} [{r.base_offset}, {r.end})" for r in (*receipts[:1], *receipts[-1:])
        )
        raise RestoreError(
            f"lake {location}: expected archived segments of store {store_id}"
            + (f" in the span {span}" if str(span) else "")
            + ", found none"
            + (
                f"; the first and the last that it has are: {spans}."
                if spans
                else " of this store, log and lineage at all."
            )
            + "".join(f" {expired_line(removed)}." for removed in expired_ranges(expired, span, expiries))
            + " Nothing was written."
        )
    return tuple(chosen)


def check_streams(chosen: Sequence[Receipt], streams: Callable[[Receipt], Set[str]]) -> None:
    """Make sure that no stream has removed messages between messages that are still there.

    A broker numbers a queue's messages one after the other. Messages after the gap would get new numbers.

    :param streams: returns the streams with rows in a segment. Called only for logs with removed streams.
    :raises RestoreError: a stream has such a gap.
    """
    for log, of_log in group_by_log(chosen).items():
        if all(row.is_whole for row in of_log):
            continue
        earlier: set[str] = set()
        removed: dict[str, Receipt] = {}
        for row in of_log:
            present = streams(row)
            if broken := sorted(present & removed.keys()):
                first = removed[broken[0]]
                raise RestoreError(
                    f"{log}: expected the messages of each topic without a gap, found messages of topic "
                    f"{broken[0]!r} before and after the segment at {first.base_offset}, and none in this "
                    f"segment ({first.end_text}). A broker would give the later messages other queue offsets "
                    "than before. Nothing was written. Restore the messages before and after the gap into "
                    f"separate directories: one with --to-offset {row.base_offset}, the other with "
                    f"--from-offset {first.end}."
                )
            earlier |= present
            removed |= {name: row for name in row.gone_streams.keys() & earlier if name not in removed}


def _describe_gap(
    left: Receipt,
    right: Receipt,
    expired: Sequence[Receipt],
    expiries: Mapping[str, str],
    unarchived: Sequence[LineageRange],
) -> str:
    """Return a text about the bytes between two segments: expired, not archived, or unknown."""
    hole = Span(left.end, right.base_offset)
    # A replica of the log may have archived them.
    of_log = [
        row
        for row in expired
        if (row.log, row.lineage) == (right.log, right.lineage)
        or (row.store_id != right.store_id and right.log_id is not None and row.log_id == right.log_id)
    ]
    lines = [expired_line(removed) for removed in expired_ranges(of_log, hole, expiries)]
    lines += (
        f"{omitted.log} [{omitted.start_offset}, {omitted.end_offset}) NOT ARCHIVED: {omitted.end_text}"
        for omitted in unarchived
        if (omitted.log, omitted.lineage) == (right.log, right.lineage)
        and omitted.start_offset < right.base_offset
        and left.end < omitted.end_offset
    )
    return f"{'; '.join(lines)}." if lines else "verify says what became of the bytes in between."


def expired_ranges(
    expired: Sequence[Receipt], span: Span, expiries: Mapping[str, str] = NO_EXPIRIES
) -> tuple[LineageRange, ...]:
    """Return the expired ranges within a span, in the newest lineage of each log.

    :param expired: receipts of expired segments.
    :param expiries: for each act, by its SHA-256, a clause with the policy and the time.
    """

    def text_of(row: Receipt) -> str:
        return end_text(row.state, row.act, expiries)

    newest = {(r.store_id, r.log): r.lineage for r in sorted(expired, key=lambda row: row.lineage)}
    touched = [
        row
        for row in expired
        if row.lineage == newest[row.store_id, row.log]
        and _touches(row, span)
        and (span.segments is None or row.base_offset in span.segments)
    ]
    ordered = sorted(touched, key=lambda row: (row.store_id, row.log, row.base_offset))
    return tuple(
        LineageRange(lineage, log, start, end, text)
        for (_, log, lineage, text), rows in groupby(
            ordered, key=lambda row: (row.store_id, row.log, row.lineage, text_of(row))
        )
        for start, end in runs(list(rows))
    )


def expired_line(expired: LineageRange) -> str:
    """Return a line that says that a range expired or wasn't archived."""
    offsets = f"[{expired.start_offset}, {expired.end_offset})"
    return f"{expired.log} {offsets} {end_word(expired.end_text)}: {expired.end_text}"


def _name_replicas(left: Receipt, right: Receipt, replicas: Sequence[Receipt]) -> str:
    """Return a text that names other stores which have archived bytes between two segments."""
    stores = {
        row.store_id: None
        for row in replicas
        if row.log_id == right.log_id and row.base_offset < right.base_offset and left.end < row.end
    }
    return "".join(
        f" Store {store_id} has archived some of these bytes, but receipts don't show that the bytes join. "
        f"If that store is a replica of this store, restore the bytes by --store-id {store_id}."
        for store_id in stores
    )


def _with_replicas(own: Sequence[Receipt], replicas: Sequence[Receipt]) -> list[Receipt]:
    """Return a log's receipts, with those of replicas that fill gaps before, between and after them."""
    # If two replicas have different bytes at the same offsets, it isn't known which bytes this log had.
    hashes: dict[tuple[int, int], set[str]] = {}
    for row in replicas:
        hashes.setdefault((row.base_offset, row.end), set()).add(row.sha256)
    certain = [row for row in replicas if len(hashes[row.base_offset, row.end]) == 1]
    rows = [*_joined_before(own[0], certain), own[0]]
    for left, right in pairwise(own):
        between = _joined_before(right, [row for row in certain if row.base_offset >= left.end])
        fills = bool(between) and between[0].base_offset == left.end and _continues(left, between[0])
        rows += [*(between if fills else ()), right]
    return [*rows, *_joined_behind(rows[-1], certain)]


def _joined_before(right: Receipt, rows: Sequence[Receipt]) -> list[Receipt]:
    """Return rows without a hole that end where a receipt begins, with the lowest possible first offset."""
    joined: dict[int, list[Receipt]] = {right.base_offset: [right]}
    for row in sorted(rows, key=lambda row: row.base_offset, reverse=True):
        rest = joined.get(row.end)
        if rest and row.base_offset < right.base_offset and _continues(row, rest[0]):
            joined.setdefault(row.base_offset, [row, *rest])
    return joined[min(joined)][:-1]


def _joined_behind(left: Receipt, rows: Sequence[Receipt]) -> list[Receipt]:
    """Return rows without a hole that begin where a receipt ends, with the highest possible end."""
    joined: dict[int, list[Receipt]] = {left.end: [left]}
    for row in sorted(rows, key=lambda row: row.end):
        before = joined.get(row.base_offset)
        if before and _continues(before[-1], row):
            joined.setdefault(row.end, [*before, row])
    return joined[max(joined)][1:]


def _continues(left: Receipt, right: Receipt) -> bool:
    return find_broker(left.broker).receipts.continues(left, right)


def runs(rows: Sequence[Receipt]) -> list[tuple[int, int]]:
    """Return the ranges without a hole that the segments of one log form.

    :param rows: receipts of the segments, in order.
    """
    merged: list[tuple[int, int]] = []
    for row in rows:
        if merged and merged[-1][1] == row.base_offset:
            merged[-1] = (merged[-1][0], row.end)
        else:
            merged.append((row.base_offset, row.end))
    return merged


def other_lineages(receipts: Sequence[Receipt], chosen: Sequence[Receipt]) -> tuple[LineageRange, ...]:
    """Return the ranges of other lineages of the chosen logs, which the restore doesn't bring back."""
    lineages = {row.log: row.lineage for row in chosen}
    ordered = sorted(receipts, key=lambda row: (row.lineage, row.log, row.base_offset))
    return tuple(
        LineageRange(number, log, start, end)
        for (number, log), rows in groupby(ordered, key=lambda row: (row.lineage, row.log))
        if log in lineages and number != lineages[log]
        for start, end in runs(list(rows))
    )


def _touches(receipt: Receipt, span: Span) -> bool:
    if span.from_offset is not None and receipt.end <= span.from_offset:
        return False
    if span.to_offset is not None and receipt.base_offset >= span.to_offset:
        return False
    if span.from_ms is None and span.to_ms is None:
        return True
    first, last = receipt.first_store_timestamp_ms, receipt.last_store_timestamp_ms
    if first is None or last is None:
        return False
    return (span.from_ms is None or last >= span.from_ms) and (span.to_ms is None or first < span.to_ms)


FILLED_FILE = Path(DIRECTORY, "filled.json")
"""Path, below a restored store's root, of the record of segments with filler. The record is written before
the first such segment."""

_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class FilledSegment:
    """A restored segment with filler. No receipt proves its bytes.

    :param sha256: hash of the restored file.
    :param archived_sha256: hash of the archived file.
    :param why: why the messages in the place of the filler were removed, as a clause.
    """

    log: str
    lineage: int
    base_offset: int
    size_bytes: int
    sha256: str
    archived_sha256: str
    filler_bytes: int
    why: str

    def __str__(self) -> str:
        """Return a sentence about the restored segment."""
        return (
            f"{self.log}/{self.base_offset:020d} was restored with {bytes_text(self.filler_bytes)} of "
            f"filler, as it is {self.why}. Its SHA-256 was {self.sha256}, that of the archived segment "
            f"{self.archived_sha256}"
        )


@dataclass(frozen=True, slots=True)
class FilledSegments:
    """The content of the record of segments with filler."""

    store_id: str
    segments: tuple[FilledSegment, ...]

    @property
    def content(self) -> bytes:
        """Return the content as bytes. The same segments always give the same bytes."""
        return json.dumps(to_jsonable(self), indent=1).encode()


def filled_notes(root: str | PathLike[str], slots: Collection[tuple[str, int]]) -> tuple[str, ...]:
    """Return notes about the present segments with filler, or a note that the record can't be read.

    :param slots: logs and base offsets of the present segments.
    """
    try:
        return tuple(str(filled) for filled in read_filled(root) if (filled.log, filled.base_offset) in slots)
    except StoreIdentityError as error:
        return (Text(error).removesuffix("."),)


def read_filled(root: str | PathLike[str]) -> tuple[FilledSegment, ...]:
    """Return the segments of a store that were restored with filler; () if there is no record of any.

    :raises StoreIdentityError: the record can't be read.
    """
    path = Path(root) / FILLED_FILE
    try:
        data = read_file(path, _MAX_BYTES, follow_links=False)
        return from_jsonable(FilledSegments, json.loads(data), str(path)).segments
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except (OSError, BadInputError, *MALFORMED) as error:
        raise StoreIdentityError(
            f"{path}: expected a record of segments with filler, found something that can't be read "
            f"({reason_text(error)}). Nothing was changed. Restore again into a new directory."
        ) from error
