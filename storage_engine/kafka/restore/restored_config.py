"""A log directory for a node around restored segments, and where a restored log may end.

A transaction without its marker stays open for ever: who reads what was committed never gets past it. So a
log doesn't end between a transaction's records and its marker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute

from storage_engine.kafka.restore.restored_log import DIRECTORY_FILES, check_served, files_of, log_files
from storage_engine.kafka.store.serving_nodes import ServingNodes
from storage_engine.model.broker.codec import RestoredConfig, RestoredSetting
from storage_engine.model.proof.receipt import Receipt

# Its stubs know no text beside a column.
pc: Any = pyarrow.compute

_OPEN_STATE = pa.table(
    {
        "producer_id": pa.array([], pa.int64()),
        "marker": pa.array([], pa.int64()),
        "first": pa.array([], pa.int64()),
    }
)
"""Of each producer: its last marker, and the first record of a transaction behind it."""


@dataclass(frozen=True, slots=True)
class RestoredLogDirectory(RestoredConfig):
    """RestoredConfig of the nodes that are to serve what is restored."""

    nodes: ServingNodes

    FILES: ClassVar[tuple[str, ...]] = DIRECTORY_FILES
    COLUMNS: ClassVar[tuple[str, ...]] = ("kind", "offset", "producer_id", "transactional", "control")
    NO_QUEUES: ClassVar[pa.Table] = _OPEN_STATE
    ENDS_ANYWHERE: ClassVar[bool] = False
    FINISHED: ClassVar[frozenset[str]] = frozenset()

    def log_files(self, log: str) -> tuple[str, ...]:
        return log_files(log)

    def check(self, receipts: Sequence[Receipt], read_segment: Callable[[Receipt], bytearray]) -> None:
        check_served(receipts, self.nodes)

    def queues_of(self, rows: pa.Table) -> pa.Table:
        """Return each producer's last marker and first record of a transaction behind it."""
        own = rows.filter(pc.fill_null(rows["transactional"], False))
        own = own.filter(pc.is_in(own["kind"], pa.array(["message", "control"])))
        ends = pc.is_in(own["control"], pa.array(["commit", "abort"]))
        none = pa.scalar(None, pa.int64())
        markers = pc.if_else(ends, own["offset"], none)
        firsts = pc.if_else(pc.equal(own["kind"], "message"), own["offset"], none)
        found = [own["producer_id"], markers, firsts]
        return self.merge_queues(pa.Table.from_arrays(found, names=_OPEN_STATE.column_names))

    def merge_queues(self, queues: pa.Table) -> pa.Table:
        """Return one row a producer, whatever number of :func:`queues_of` the rows come from."""
        markers = queues.group_by("producer_id").aggregate([("marker", "max")])
        joined = queues.join(markers, "producer_id")
        behind = pc.greater(joined["first"], pc.fill_null(joined["marker_max"], -1))
        firsts = pc.if_else(pc.fill_null(behind, False), joined["first"], pa.scalar(None, pa.int64()))
        table = joined.select(["producer_id", "marker"]).append_column("first", firsts)
        found = table.group_by("producer_id").aggregate([("marker", "max"), ("first", "min")])
        return found.rename_columns(_OPEN_STATE.column_names)

    def unfinished(self, queues: pa.Table) -> str:
        still_open = queues.filter(pc.is_valid(queues["first"])).sort_by("first").to_pylist()
        if not still_open:
            return ""
        oldest = still_open[0]
        return (
            f"a transaction of producer {oldest['producer_id']}, which begins at offset {oldest['first']}, "
            "has no marker"
        )

    def config_files(self, queues: pa.Table, receipts: Sequence[Receipt]) -> Mapping[str, bytes]:
        return files_of(receipts, self.nodes)

    def settings(self, receipts: Sequence[Receipt]) -> tuple[RestoredSetting, ...]:
        """Return nothing: a broker makes the indexes again, as its own settings say."""
        return ()

    def finish(self, root: Path, receipts: Sequence[Receipt]) -> None:
        """Make nothing more."""
