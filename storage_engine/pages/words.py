"""The words of a report's broker: a page or a mail is about stores of any kind."""

from __future__ import annotations

from storage_engine.brokers import find_broker
from storage_engine.exceptions import BadInputError
from storage_engine.model.broker.broker_words import BrokerWords


def words_of(broker: str) -> BrokerWords:
    """Return the words of a kind of broker; those that fit any where its package isn't here.

    :param broker: its name, as reports have it.
    """
    try:
        return find_broker(broker).words
    except BadInputError:
        return BrokerWords()


def sets_aside_until_start(broker: str) -> bool:
    """Return whether an undo of what was deleted fits only before the store's broker starts."""
    try:
        return find_broker(broker).undo_outside
    except BadInputError:
        return False
