"""Consumers of a running broker and their positions: from the broker, or from files if it can't be asked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from storage_engine.arrow.name_columns import names_of, one_array
from storage_engine.core.wording import count_text, duration_text
from storage_engine.exceptions import BadInputError, BrokerError, BrokerUnavailableError
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.lag import LagSource, PositionsFrom
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.format.queue_files import iter_queues
from storage_engine.rocketmq.format.stored_files import ATTEMPTS
from storage_engine.rocketmq.hold.state import ROLE, SLAVE
from storage_engine.rocketmq.lag.subscriptions import Consumers, consumers_in_files, read_filtered
from storage_engine.rocketmq.live.connect import reach_master
from storage_engine.rocketmq.remoting.admin import BrokerAdmin

ASKED_FOR_SUBSCRIPTIONS = 2000
"""Groups without any offset that are asked what they subscribe to: a request each, of about a millisecond."""
REVIVE_TOPIC_PREFIX = "rmq_sys_REVIVE_LOG_"

_OFFSET_FILES = ("consumerOffset.json", "lmqConsumerOffset.json")


@contextmanager
def _who_knows(
    admin: BrokerAdmin, settings: Mapping[str, str], live: LiveBroker
) -> Iterator[tuple[BrokerAdmin, tuple[str, ...]]]:
    """Give the broker that knows where groups are, with a notice: a slave copies that once a minute.

    :raises BrokerUnavailableError: it is a slave's master, and can't be asked.
    """
    if settings.get(ROLE) != SLAVE:
        yield admin, ()
        return
    try:
        master = reach_master(settings, live)
    except (BrokerError, BadInputError) as error:
        raise BrokerUnavailableError(
            f"{admin.address} is a slave, which only copies positions, and its master can't be asked: {error}"
        ) from error
    with master:
        yield (
            master,
            (
                f"groups' positions are those that master {master.address} says; what this slave has not got "
                "yet counts in no lag",
            ),
        )


def live_consumers(
    admin: BrokerAdmin, settings: Mapping[str, str], live: LiveBroker, layout: StoreLayout
) -> tuple[Consumers, LagSource]:
    """Return the groups that the broker, or a slave's master, knows; light message queues included.

    A group that has no offset yet is known by what its connected members subscribe to, unless each of them
    takes every message (broadcasting): such members keep their positions themselves.

    :param settings: the broker's.
    :param live: how it is reached.
    :raises BrokerError: the broker can't be asked, or a slave's master.
    """
    with _who_knows(admin, settings, live) as (knows, notices):
        committed = knows.consumer_offsets()
        groups = knows.groups()
        silent = sorted(groups - frozenset(names_of(one_array(committed["group"]).dictionary)))
        subscribed = {
            (group, topic)
            for group in silent[:ASKED_FOR_SUBSCRIPTIONS]
            for topic in knows.clustering_subscriptions(group)
        }
    filtered, unknown = read_filtered(layout, ATTEMPTS)
    if unasked := silent[ASKED_FOR_SUBSCRIPTIONS:]:
        text = f"what {count_text(len(unasked), 'group')} without any offset subscribe to was not asked"
        notices = (*notices, text)
    consumers = Consumers(committed, groups, filtered | subscribed, unknown)
    return consumers, LagSource(PositionsFrom.BROKER, None, (*notices, *_pop_notice(layout)))


def consumers_written_down(layout: StoreLayout, error: BrokerError) -> tuple[Consumers, LagSource]:
    """Return the groups in the broker's files, which are up to 10 s behind its memory while it runs.

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


def _pop_notice(layout: StoreLayout) -> tuple[str, ...]:
    if not any(queue.topic.startswith(REVIVE_TOPIC_PREFIX) for queue in iter_queues(layout.consumequeue)):
        return ()
    return (
        "some group takes messages by pop: what it took and has not acknowledged lies below its position, "
        "and is not looked at",
    )
