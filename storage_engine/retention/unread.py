"""What consumers lose by a deletion: found before it, again when it is done, and said with its remedy."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from storage_engine.exceptions import StorageEngineError
from storage_engine.lake.config import CATALOG_FILE, DESCRIPTION, LakeConfig
from storage_engine.model.broker import BrokerStore
from storage_engine.model.lag import Unread, UnreadMessages
from storage_engine.model.policy import ArchiveMode, LagPolicy
from storage_engine.model.store import StoreSnapshot
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.wording import count_text

ROWS_KEPT = 100
ROWS_SHOWN = 10


def find_unread(
    broker: BrokerStore, snapshot: StoreSnapshot, new_min_offsets: Mapping[str, int], lag_policy: LagPolicy
) -> Unread:
    """Find what consumers lose where logs begin at other offsets. What can't be found is unknown.

    Nothing is read where nothing goes, or where the policy ignores consumers.

    :param new_min_offsets: by the name of the log; the other logs stay as they are.
    """
    begin = {log.name: log.min_offset for log in snapshot.logs}
    goes = any(offset > begin[log] for log, offset in new_min_offsets.items())
    if lag_policy is LagPolicy.IGNORE or not goes:
        return Unread()
    try:
        rows = broker.unread(snapshot, new_min_offsets)
    except (StorageEngineError, OSError) as error:
        return Unread(error=str(error))
    return Unread(rows[:ROWS_KEPT], max(len(rows) - ROWS_KEPT, 0))


def unread_lines(store: ManagedStore, unread: Unread, *, done: bool, waived: bool = False) -> tuple[str, ...]:
    """Say what consumers lose and how to get it back, a line a group and topic; empty where it is nothing.

    :param done: it is deleted.
    :param waived: segments go without receipts.
    """
    return tuple(_lines(store, unread, done=done, waived=waived))


def _lines(store: ManagedStore, unread: Unread, *, done: bool, waived: bool) -> Iterator[str]:
    archived = store.policy.archive is not ArchiveMode.OFF and not waived
    if unread.error:
        yield f"what consumers have not read of what goes is not known: {unread.error}"
    for row in unread.rows[:ROWS_SHOWN]:
        yield f"{_what(row)} {_where(row, done=done, archived=archived)}" + (
            f"; to get them: {_command(store, row)}" if archived else ""
        )
    more = len(unread.rows[ROWS_SHOWN:]) + unread.more
    if more:
        yield f"so it is for {count_text(more, 'more group and topic')}; report.json names {_named(unread)}"


def _named(unread: Unread) -> str:
    return f"the first {len(unread.rows)}" if unread.more else "all"


def _what(row: UnreadMessages) -> str:
    if row.messages is None:
        return (
            f"group {row.group} has no known position in {count_text(row.queues, 'queue')} of {row.topic}: "
            "what it may need of them"
        )
    return f"{count_text(row.messages, 'unread message')} of {row.group} in {row.topic}"


def _where(row: UnreadMessages, *, done: bool, archived: bool) -> str:
    one = row.messages in (None, 1)
    if archived:
        return (
            f"{'is' if one else 'are'} only in the lake now"
            if done
            else "will be only in the lake from now on"
        )
    if done:
        return f"{'is' if one else 'are'} gone, as far as no lake has them"
    return "will be gone, as far as no lake has them"


def _command(store: ManagedStore, row: UnreadMessages) -> str:
    words = ["storage-engine", "export", "--lake", lake_directory(store.lake), "--topic", row.topic]
    if row.from_ms is not None:
        words += ["--from-time", datetime.fromtimestamp(row.from_ms // 1000, UTC).isoformat()]
    return shlex.join([*words, "--to", "unread.parquet"])


def lake_directory(lake: LakeConfig) -> str:
    """Return what ``--lake`` takes for a lake; LAKE where no directory of this machine is known to be it."""
    warehouse = urlsplit(lake.properties.get("warehouse", ""))
    root = Path(unquote(warehouse.path)).parent
    if warehouse.scheme in ("", "file") and any(
        (root / name).exists() for name in (CATALOG_FILE, DESCRIPTION)
    ):
        return str(root)
    return "LAKE"


def has_loss(unread: Unread) -> bool:
    """Tell whether consumers lose something, or nobody knows."""
    return bool(unread.rows or unread.error)


def loss_count(rows: Sequence[UnreadMessages]) -> int:
    """Count the messages whose number is known."""
    return sum(row.messages or 0 for row in rows)
