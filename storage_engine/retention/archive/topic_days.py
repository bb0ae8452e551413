"""Records what archived segments hold of each topic and day. Nothing is decided from it."""

from __future__ import annotations

from collections.abc import Sequence

from storage_engine.lake.archive.topic_days import read_topic_days
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.soundness.segment_reader import untouched_files
from storage_engine.model.proof.receipt import Receipt
from storage_engine.retention.store.context import Context

_BATCH = 50
"""Segments in a transaction."""


def record_topic_days(context: Context, lake: Lake, receipts: Sequence[Receipt]) -> str:
    """Record what segments hold, in the place of what is recorded of them.

    :return: why that could not be done; "" where it was.
    """
    try:
        messages = lake.messages()
        untouched = untouched_files(messages, receipts)
        for start in range(0, len(receipts), _BATCH):
            found = {
                (receipt.log, receipt.base_offset): read_topic_days(messages, receipt, untouched)
                for receipt in receipts[start : start + _BATCH]
            }
            context.journal.save_topic_days(context.record.store_id, found)
    except Exception as error:
        # The segments are proven and recorded: whatever goes wrong here takes nothing of that back.
        return f"bytes by topic and day were not recorded of what was archived: {error}"
    return ""
