"""Transactions that stay open longer than any may: readers, the cleaner and remote storage stop at them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from storage_engine.core.wording import bytes_text, count_text, reason_text, time_text
from storage_engine.exceptions import StorageEngineError
from storage_engine.kafka.format.file_names import METADATA_TOPIC
from storage_engine.kafka.format.layout import Node, PartitionLog
from storage_engine.kafka.format.producer_snapshot import parse_producer_snapshot
from storage_engine.kafka.format.stored_files import read_stored
from storage_engine.kafka.transactions.open_transactions import OpenTransaction, open_transactions
from storage_engine.model.report.diagnosis import Finding, Severity, named_in_short, reason_of

_LONGEST_MS = 900_000
"""``transaction.max.timeout.ms`` by default: no producer may ask for longer."""
_GRACE_MS = 60_000
"""The coordinator looks for such transactions every 10 seconds, and has to write their markers."""
_MOST_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class OpenInLogs:
    """What is open in a node's logs.

    :param by_log: only of logs that leave one open.
    :param unread: logs whose active segments would take too long to be read.
    :param faults: by log, why it can't be told.
    """

    by_log: Mapping[str, tuple[OpenTransaction, ...]]
    unread: tuple[str, ...]
    faults: Mapping[str, str]

    @property
    def first_offsets(self) -> dict[str, int]:
        """Return where the oldest of each log begins."""
        return {log: found[0].first_offset for log, found in self.by_log.items()}


def find_open(node: Node, ends: Mapping[str, int], max_bytes: int = _MOST_BYTES) -> OpenInLogs:
    """Look for open transactions in all logs of a node.

    :param ends: of logs, by name.
    :param max_bytes: to be read behind snapshots in all; the smaller ones first.
    """
    by_log: dict[str, tuple[OpenTransaction, ...]] = {}
    faults: dict[str, str] = {}
    unread: list[str] = []
    left = max_bytes
    logs = {log.name.log: log for _, log in node.logs if log.name.topic != METADATA_TOPIC}
    sizes = {name: _bytes_behind(log, ends[name]) for name, log in logs.items() if name in ends}
    for name, size_bytes in sorted(sizes.items(), key=lambda one: one[1]):
        if size_bytes > left:
            unread.append(name)
            continue
        left -= size_bytes
        try:
            found = open_transactions(logs[name], ends[name])
        except StorageEngineError as error:
            faults[name] = reason_of(error)
        except OSError as error:
            faults[name] = reason_text(error)
        else:
            if found:
                by_log[name] = found
    return OpenInLogs(by_log, tuple(unread), faults)


def oldest_open(log: PartitionLog, end: int) -> OpenTransaction | None:
    """Return the oldest transaction that is open in the newest snapshot and still is; None: there is none.

    Where all are younger than the snapshot they aren't looked for: most logs have none, and reading costs.

    :raises CorruptFileError: it can't be told.
    :raises OSError: a file can't be read.
    """
    known = [one for one in log.snapshots if int(Path(one.path).stem) <= end]
    if not known:
        return None
    path = known[-1].path
    producers = parse_producer_snapshot(read_stored(Path(path)), path)
    if all(one.transaction_first_offset is None for one in producers):
        return None
    return next(iter(open_transactions(log, end)), None)


def _bytes_behind(log: PartitionLog, end: int) -> int:
    """Return how many bytes lie in the segments behind the newest snapshot."""
    snapshots = [int(Path(one.path).stem) for one in log.snapshots]
    begin = max((one for one in snapshots if one <= end), default=0)
    return sum(segment.log.size_bytes for segment, behind in log.with_ends(end) if behind > begin)


def transaction_findings(found: OpenInLogs, node: Mapping[str, str], at_ms: int) -> Iterator[Finding]:
    """Yield transactions that hang.

    :param node: its settings.
    :param at_ms: now; of a stopped node when it last did something.
    """
    text = node.get("transaction.max.timeout.ms", "").strip()
    longest_ms = (int(text) if text.isdecimal() else _LONGEST_MS) + _GRACE_MS
    for name, transactions in sorted(found.by_log.items()):
        for one in transactions:
            if at_ms - one.written_ms > longest_ms:
                yield _hanging(name, one)
    for name, why in sorted(found.faults.items()):
        yield Finding(
            Severity.WARNING, "transactions-unknown", f"log {name}: its open transactions aren't known: {why}"
        )
    if found.unread:
        yield Finding(
            Severity.NOTE,
            "transactions-unread",
            f"in {count_text(len(found.unread), 'log')} no transaction was looked for, "
            f"{named_in_short(found.unread)}: more than {bytes_text(_MOST_BYTES)} lie behind snapshots",
            "kafka-transactions.sh find-hanging asks the running brokers",
        )


def _hanging(name: str, one: OpenTransaction) -> Finding:
    topic, _, partition = name.rpartition("-")
    return Finding(
        Severity.WARNING,
        "hanging-transaction",
        f"log {name}: the transaction of producer {one.producer_id} is open from offset {one.first_offset} "
        f"on, last written at {time_text(one.written_ms)}: readers of committed records stop there, and so "
        "do the cleaner, remote storage and the archive",
        f"kafka-transactions.sh --bootstrap-server HOST:PORT abort --topic {topic} --partition {partition} "
        f"--start-offset {one.first_offset}",
    )
