"""Who consumes from a running broker, and how far: by its word, by its files where it can't be asked."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa

from storage_engine.arrow.name_columns import names_of, one_array
from storage_engine.core.wording import count_text, duration_text
from storage_engine.exceptions import BrokerError
from storage_engine.model.lag.lag import LagSource, PositionsFrom
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.format.queue_files import iter_queues
from storage_engine.rocketmq.format.rereading import ATTEMPTS
from storage_engine.rocketmq.lag.subscriptions import Consumers, consumers_in_files, read_filtered
from storage_engine.rocketmq.remoting.admin import BrokerAdmin

ASKED_FOR_SUBSCRIPTIONS = 2000
"""Groups without any offset that are asked what they subscribe to: a request each, of about a millisecond."""
REVIVE_TOPIC_PREFIX = "rmq_sys_REVIVE_LOG_"

_OFFSET_FILES = ("consumerOffset.json", "lmqConsumerOffset.json")


def live_consumers(admin: BrokerAdmin, layout: StoreLayout) -> tuple[Consumers, LagSource]:
    """Return what the broker knows, light message queues included.

    A group that has no offset yet is known by what its connected members subscribe to, unless each of them
    takes every message (broadcasting): such members keep their positions themselves.

    :raises BrokerError: the broker can't be asked.
    """
    committed = admin.consumer_offsets()
    groups = admin.groups()
    filtered, unknown = read_filtered(layout, ATTEMPTS)
    silent = sorted(groups - frozenset(names_of(_groups(committed))))
    subscribed = {
        (group, topic)
        for group in silent[:ASKED_FOR_SUBSCRIPTIONS]
        for topic in admin.clustering_subscriptions(group)
    }
    notices = []
    if unasked := silent[ASKED_FOR_SUBSCRIPTIONS:]:
        notices.append(
            f"what {count_text(len(unasked), 'group')} without any offset subscribe to was not asked"
        )
    consumers = Consumers(committed, groups, filtered | subscribed, unknown)
    return consumers, LagSource(PositionsFrom.BROKER, None, (*notices, *_pop_notice(layout)))


def consumers_written_down(layout: StoreLayout, error: BrokerError) -> tuple[Consumers, LagSource]:
    """Return what the broker last wrote to its files, which is behind what it knows by up to 10 s while it
    runs.

    :param error: why it can't be asked.
    :raises BrokerError: it never wrote anything down, so nothing is known.
    """
    times = []
    for name in _OFFSET_FILES:
        path = layout.config / name
        if path.exists():
            times.append(path.stat().st_mtime_ns // 1_000_000)
    if not times:
        raise error
    consumers = consumers_in_files(layout, ATTEMPTS)
    age = duration_text(max(0, time.time_ns() // 1_000_000 - max(times)))
    notice = (
        f"the broker could not be asked, so groups' positions are those that it wrote down {age} ago: {error}"
    )
    return consumers, LagSource(PositionsFrom.FILES, max(times), (notice, *_pop_notice(layout)))


def _groups(committed: pa.Table) -> pa.Array[Any]:
    return one_array(committed["group"]).dictionary


def _pop_notice(layout: StoreLayout) -> tuple[str, ...]:
    if not any(queue.topic.startswith(REVIVE_TOPIC_PREFIX) for queue in iter_queues(layout.consumequeue)):
        return ()
    return (
        "some group takes messages by pop: what it took and has not acknowledged lies below its position, "
        "and is not looked at",
    )
