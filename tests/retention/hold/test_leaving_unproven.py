"""What a hold is ended for rests on the whole chain of receipts, as a deletion of ours does."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.soundness.chain import forget_links
from storage_engine.model.broker.broker_store import UnheldSegments
from storage_engine.retention import steps
from storage_engine.retention.archive.archivable import list_segments, prove_gone
from storage_engine.retention.hold import holding
from storage_engine.retention.hold.holding import find_unproven_segments
from storage_engine.retention.store.context import open_context
from storage_engine.retention.store.managed_store import ManagedStore


def test_of_a_broken_chain_nothing_proves_what_a_broker_may_delete(
    managed: Callable[..., ManagedStore],
) -> None:
    store = managed()
    steps.archive_sealed(store, "a", lambda jobs: steps.archive(store, "a", jobs))
    context = open_context(store)
    last = tuple(list_segments(context).archivable.segments)[-1:]

    def left() -> tuple[int, int, bool]:
        forget_links()
        unheld = find_unproven_segments(store, context.journal, context.record, UnheldSegments(last))
        put_back, _ = holding._find_proven(context, None)
        return len(unheld.segments), len(prove_gone(context, last)[0].segments), last[0].id not in put_back

    assert left() == (0, 0, False)
    table = open_lake(store.lake).segments()
    rows = [row for row in table.scan().to_arrow().to_pylist() if row["sequence"]]
    table.overwrite(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    assert left() == (1, 1, True)
    assert "row number 0 is missing" in holding._find_proven(context, None)[1][-1]
