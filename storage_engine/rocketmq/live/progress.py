"""How far a running broker is with its own work, by what it says and by its checkpoint."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from storage_engine.model.hold import BrokerProgress
from storage_engine.rocketmq.remoting.answers import RuntimeInfo

FLUSH_KEY = "remainHowManyDataToFlush"
_TIMESTAMP = "_timestamp_ms"
_BYTE_COUNT = re.compile(r"(-?[0-9]+) B|([0-9]+)[.,]([0-9]) ([KMGTPE])iB")


def progress(
    info: RuntimeInfo,
    checkpoint: Mapping[str, int],
    now_ms: int,
    newest_message_timestamp_ms: int | None = None,
) -> BrokerProgress:
    """
    :param info: of the moment ``now_ms``.
    :param checkpoint: its file's values by name, read before the newest message was looked up.
    :param newest_message_timestamp_ms: store time of the log's newest message; None: it has none, or
        nobody looked, and then nothing is said of the checkpoint.
    """
    behind: dict[str, int] = {}
    if newest_message_timestamp_ms is not None:
        # A part that was never flushed has the time 0: then all that the log has is missing, and how much
        # that is, is not known while the broker can't tell its earliest message.
        oldest_ms = info.earliest_message_timestamp_ms or 0
        behind = {
            name.removesuffix(_TIMESTAMP): max(0, newest_message_timestamp_ms - max(value, oldest_ms))
            for name, value in checkpoint.items()
            if name.endswith(_TIMESTAMP) and (value or oldest_ms)
        }
    return BrokerProgress(
        sampled_at_ms=now_ms,
        min_offset=info.commitlog_min_offset,
        max_offset=info.commitlog_max_offset,
        earliest_message_timestamp_ms=info.earliest_message_timestamp_ms,
        flush_behind_bytes=at_most_bytes(info.values.get(FLUSH_KEY, "")),
        # Both are differences of two moments' offsets (ReputMessageService#behind).
        dispatch_behind_bytes=max(0, info.dispatch_behind_bytes),
        checkpoint_behind_ms=behind,
        timer_behind_messages=max(0, info.timer_behind_messages),
    )


def at_most_bytes(text: str) -> int | None:
    """The most bytes that a text like ``1.2 KiB`` stands for; None for another text.

    The broker rounds to one decimal, in its locale (MixAll#humanReadableByteCount).
    """
    found = _BYTE_COUNT.fullmatch(text)
    if found is None:
        return None
    if found[1] is not None:
        return max(0, int(found[1]))
    unit: int = 1024 ** ("KMGTPE".index(found[4]) + 1)
    # Halves round up, so it is less than half a decimal above.
    return math.ceil((int(found[2]) * 20 + int(found[3]) * 2 + 1) * unit / 20) - 1
