"""Delayed messages that still wait: those of each delay level's queue behind what was delivered.

The queue of SCHEDULE_TOPIC_XXXX with id q is that of level q + 1 (ScheduleMessageService#queueId2DelayLevel);
an entry's tags code is the time in ms at which it is due (ScheduleMessageService#computeDeliverTimestamp), or
the address of a unit that has it. ``delayOffset.json`` is behind the broker by up to 10 s.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from storage_engine.exceptions import CorruptFileError
from storage_engine.rocketmq.codec.frame import SCHEDULE_TOPIC
from storage_engine.rocketmq.codec.stored_messages import Longs
from storage_engine.rocketmq.format import consume_queue_ext
from storage_engine.rocketmq.format.config_files import delay_offsets
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.pending.pending_queue import entries_from, queue_ids


def waiting_in_levels(layout: StoreLayout) -> tuple[Longs, Longs]:
    """Physical offset of each waiting message, and when it is due, in ms.

    A level that the file doesn't name begins at its queue's first message (ScheduleMessageService#start).

    :raises CorruptFileError: the positions or a queue can't be read as what they are.
    """
    delivered = delay_offsets(layout)
    topic = layout.consumequeue / SCHEDULE_TOPIC
    offsets, due = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for queue_id in sorted(queue_ids(topic) | {level - 1 for level in delivered}):
        entries = entries_from(
            topic / str(queue_id), delivered.get(queue_id + 1, 0), layout.config / "delayOffset.json"
        )
        offsets.append(entries.physical_offset)
        due.append(_due_ms(layout.consumequeue_ext / SCHEDULE_TOPIC / str(queue_id), entries.tags_code))
    return np.concatenate(offsets), np.concatenate(due)


def _due_ms(extension: Path, tags_codes: Longs) -> Longs:
    """Tags codes, those that are addresses replaced by their units' (ConsumeQueueExt#isExtAddr)."""
    elsewhere = tags_codes <= consume_queue_ext.MAX_ADDRESS
    if not elsewhere.any():
        return tags_codes
    due = tags_codes.copy()
    wanted = tags_codes[elsewhere] - np.iinfo(np.int64).min
    found = np.zeros(len(wanted), dtype=bool)
    values = np.zeros(len(wanted), dtype=np.int64)
    for file in consume_queue_ext.list_files(extension):
        here = (wanted >= file.base_offset) & (wanted < file.end_offset)
        if here.any():
            units = consume_queue_ext.read_units(file)
            at = np.searchsorted(units.offset, wanted[here])
            hit = (at < len(units.offset)) & (np.append(units.offset, -1)[at] == wanted[here])
            found[here], values[here] = hit, np.append(units.tags_code, 0)[at]
    if not found.all():
        raise CorruptFileError(
            f"{extension}: expected a unit at offset {wanted[~found][0]}, to which the queue's entry points, "
            "found none. Compare the directory with a replica."
        )
    due[elsewhere] = values
    return due
