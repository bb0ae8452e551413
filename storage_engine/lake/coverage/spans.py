"""Ranges on a store's disk and in a lake's receipts. Few columns are read, as there may be 100,000 ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path

from pyiceberg.expressions import And, GreaterThanOrEqual

from storage_engine.brokers import find_broker, has_companions
from storage_engine.core.untrusted import read_file
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import CorruptFileError, ReceiptError
from storage_engine.lake.acts.act_files import read_expiries
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.coverage.coverage import LocalSpan
from storage_engine.lake.coverage.verify_turns import History, standing_fault
from storage_engine.lake.file.scan import all_equal, count_rows, plan_files, read_files
from storage_engine.lake.file.staging import sha256_of
from storage_engine.lake.storage.errors import metadata_errors
from storage_engine.model.proof.receipt import MAX_COMPANION_BYTES, Companion, Receipt, act_sha256, end_text
from storage_engine.model.store import FileFacts, Lineages, SegmentId, SegmentState, StoreSnapshot
from storage_engine.same_bytes.own_acts import OwnActs, read_own_acts


@dataclass(frozen=True, slots=True)
class Compared:
    """The result of comparing a segment's files with its receipt; see :class:`LocalSpan`."""

    sha256: str | None
    unchanged: bool
    companions_fault: str
    unread: str = ""


def comparable(rows: Iterable[Receipt], lineages: Lineages) -> dict[tuple[str, int], Receipt]:
    """Return the receipts that segments on disk are compared with, by log and base offset.

    If several lineages have receipts, the newest counts. Receipts of a lineage older than the log's are left
    out, because they are of earlier bytes.

    :param rows: the store's receipts.
    :param lineages: present lineages of its logs.
    """
    ordered = sorted(rows, key=lambda row: row.lineage)
    return {(row.log, row.base_offset): row for row in ordered if row.lineage >= lineages.of(row.log)}


def local_spans(
    snapshot: StoreSnapshot,
    rows: Sequence[Receipt],
    lineages: Lineages,
    ends: Mapping[SegmentId, int] | None = None,
) -> tuple[LocalSpan, ...]:
    """Return a store's ranges on disk, compared with its receipts.

    A file that vanishes meanwhile is left out.

    :param rows: the store's receipts; :func:`comparable` chooses those that count.
    :param ends: ends of the segments that end before the next one begins.
    """
    receipts = comparable(rows, lineages)
    acts = read_own_acts(snapshot.root)
    spans = []
    for log in snapshot.logs:
        for segment in log.segments:
            with suppress(FileNotFoundError):
                receipt = receipts.get((log.name, segment.base_offset))
                compared = compare(segment.files, receipt, acts)
                end = (ends or {}).get(segment.id, segment.end_offset)
                is_active = segment.state is SegmentState.ACTIVE
                spans.append(
                    LocalSpan(
                        log=log.name,
                        start_offset=segment.base_offset,
                        end_offset=min(end, log.max_offset),
                        name=segment.name,
                        sha256=compared.sha256,
                        unchanged=compared.unchanged,
                        path=segment.facts.path,
                        companions_fault=compared.companions_fault,
                        lineage=lineages.of(log.name),
                        unread=compared.unread or (log.unread if is_active else ""),
                    )
                )
    return tuple(spans)


def compare(
    files: Sequence[FileFacts], receipt: Receipt | None, acts: OwnActs, *, hash_all: bool = False
) -> Compared:
    """Compare a segment's files with its receipt. A file whose facts changed since its proof is hashed.

    :param files: facts of the files, the segment's own file first.
    :param hash_all: read and hash each file.
    :raises FileNotFoundError: a file to hash vanished.
    """
    if receipt is None:
        return Compared(None, False, "")
    try:
        return _compare(files, receipt, acts, hash_all=hash_all)
    except FileNotFoundError:
        raise
    except OSError as error:
        return Compared(None, False, "", reason_text(error))


def _compare(files: Sequence[FileFacts], receipt: Receipt, acts: OwnActs, *, hash_all: bool) -> Compared:
    own, *companions = files
    is_same = acts.same_file(own, receipt.source_facts)
    sha256 = sha256_of(own.path) if hash_all or not is_same else None
    if receipt.files is None and not companions:
        return Compared(sha256, is_same, "")
    try:
        proven = {companion.name: companion for companion in receipt.companions}
    except ReceiptError as error:
        return Compared(sha256, False, str(error))
    present = {Path(file.path).name: file for file in companions}
    if not has_companions(receipt.broker, proven, present):
        lists = (", ".join(sorted(names)) or "none" for names in (present, proven))
        return Compared(sha256, False, "its companions are {} on disk, {} in the lake".format(*lists))
    for name, facts in present.items():
        unchanged = acts.same_file(facts, proven[name].facts_in(Path(facts.path).parent))
        if (hash_all or not unchanged) and (
            fault := companion_fault(receipt.broker, proven[name], Path(facts.path))
        ):
            return Compared(sha256, False, fault)
    return Compared(sha256, is_same, "")


def companion_fault(broker: str, proven: Companion, path: Path) -> str:
    """Return how a file differs from a receipt's companion; "" if its content is the same.

    :param broker: name of the segment's broker.
    :raises OSError: the file can't be read.
    """
    if (digest := sha256_of(path)) == proven.sha256 or is_same_companion(broker, proven, path):
        return ""
    hashes = f"{digest[:16]}… on disk, {proven.sha256[:16]}… in the lake"
    return f"its companion {proven.name} has SHA-256 {hashes}"


def is_same_companion(broker: str, proven: Companion, path: Path) -> bool:
    """Return whether a file has a companion's content in other bytes. Raise OSError if it can't be read."""
    with suppress(CorruptFileError):
        content = read_file(path, MAX_COMPANION_BYTES, follow_links=False)
        return find_broker(broker).receipts.same_companion(proven.name, proven.content, content)
    return False


_COLUMNS = ("sequence", "log", "lineage", "base_offset", "size_bytes", "row_hash")


@dataclass(frozen=True, slots=True, order=True)
class ReceiptSpan:
    """A receipt's range, and its place in the chain of receipts.

    :param log_id: identity of its log; "" if not known.
    :param ended: a clause on why the lake doesn't have the segment whole, such as its expiry; "" if it has.
    """

    sequence: int
    log: str
    lineage: int
    start_offset: int
    end_offset: int
    size_bytes: int
    row_hash: str
    log_id: str = ""
    ended: str = ""


@dataclass(frozen=True, slots=True, order=True)
class ArchivedSpan:
    """One segment with a receipt in a lake, or several adjacent ones.

    :param fault: the last fault that verifying found in the span; "" without a fault, or if the span was
        never verified.
    :param log_id: identity of its log; "" if not known.
    :param ended: a clause on why the lake doesn't have the segment whole, such as its expiry; "" if it has.
    """

    log: str
    lineage: int
    start_offset: int
    end_offset: int
    size_bytes: int
    fault: str = ""
    segments: int = 1
    log_id: str = ""
    ended: str = ""


_fields_of = attrgetter(*(field.name for field in fields(ArchivedSpan)))


def in_order(spans: Iterable[ArchivedSpan]) -> list[ArchivedSpan]:
    """Return spans in order. ``sorted`` without a key is slower, as it compares dataclasses in Python."""
    return sorted(spans, key=_fields_of)


def receipt_spans(lake: Lake, store_id: str, first_sequence: int) -> tuple[ReceiptSpan, ...]:
    """Return a lake's receipts of a store, of all lineages, in order. Only files that can have them are read.

    :param first_sequence: lowest sequence of a receipt to return.
    :raises LakeUnavailableError: the table can't be read.
    """
    table = lake.segments()
    with metadata_errors(table.location(), "read receipts"):
        # A table that an older version made may lack these columns.
        later_columns = ("end_offset", "log_id", "state", "act")
        columns = [*_COLUMNS, *(name for name in later_columns if name in table.schema().column_names)]
        later = GreaterThanOrEqual("sequence", first_sequence)  # type: ignore[call-arg,arg-type]
        where = And(all_equal({"store_id": store_id}), later)
        files = plan_files(table, where, store_id=store_id, since=first_sequence)
        values = read_files(table, where, columns, files).select(columns).to_pydict()
    empty = [None] * len(values["log"])
    ends, log_ids, states, acts = (values.get(name) or empty for name in later_columns)
    expiries = read_expiries(lake, map(act_sha256, filter(None, acts)))
    rows = zip(*(values[name] for name in _COLUMNS), ends, log_ids, states, acts, strict=True)
    return tuple(
        sorted(
            ReceiptSpan(
                sequence,
                log,
                lineage,
                base,
                base + size if end is None else end,
                size,
                row_hash,
                log_id or "",
                end_text(state, act, expiries),
            )
            for sequence, log, lineage, base, size, row_hash, end, log_id, state, act in rows
        )
    )


def has_those_before(lake: Lake, store_id: str, rows: Sequence[ReceiptSpan]) -> bool:
    """Return whether a lake has as many receipts of a store as the number of the last receipt says.

    If it has fewer, another engine has deleted some. No file of receipts is read.

    :param rows: the store's last receipts, in order.
    :raises LakeUnavailableError: the table can't be read.
    """
    if not rows:
        return True
    table = lake.segments()
    with metadata_errors(table.location(), "count receipts"):
        count = count_rows(table, store_id)
    return count is not None and count > rows[-1].sequence


def archived_spans(rows: Iterable[ReceiptSpan], history: History) -> tuple[ArchivedSpan, ...]:
    """Return the segments of receipts, by log, lineage and offset.

    :param history: verification's memory of receipts with faults.
    """
    spans: dict[tuple[str, int, int], ArchivedSpan] = {}
    for row in sorted(rows, key=attrgetter("sequence")):
        check = standing_fault(history, row) if row.row_hash in history else None
        fault = "" if check is None else check.fault
        slot = (row.log, row.lineage, row.start_offset)
        span = ArchivedSpan(*slot, row.end_offset, row.size_bytes, fault, log_id=row.log_id, ended=row.ended)
        # A segment that was proven again has several rows: one sound row is enough, unless it expired.
        earlier = spans.setdefault(slot, span)
        if bool(earlier.ended) != bool(row.ended) or (earlier.fault and not fault):
            spans[slot] = span
    return tuple(in_order(spans.values()))
