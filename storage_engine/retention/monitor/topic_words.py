"""A person's words that topics were deleted: looked at before anything goes by them."""

from __future__ import annotations

from collections.abc import Mapping

from storage_engine.exceptions import BadInputError
from storage_engine.journal.journal import Step
from storage_engine.retention.store.broker_answers import ask
from storage_engine.retention.store.context import AnyStore, Context, open_context


def check_topic_words(store: AnyStore, run_key: str, words: Mapping[str, str]) -> tuple[str, ...]:
    """Make sure that words can be meant; of a run that goes on, once: what it removed is gone by now.

    :param words: by topic, why what no lake has of it may go.
    :return: which of them are for nothing, as sentences.
    :raises BadInputError: a reason is empty, or a topic is there still. Nothing was removed.
    :raises BrokerError: the running broker can't be asked.
    """
    for topic, reason in words.items():
        if not reason.strip():
            raise BadInputError(
                f"topic {topic}: expected a reason why it may go unproven, found none. Nothing was removed."
            )
    context = open_context(store)
    if not words or _has_begun(context, run_key):
        return ()
    doing = "tell which topics are there"
    return ask(context.store.broker, doing, lambda: context.broker.check_deleted_topics(tuple(words)))


def _has_begun(context: Context, run_key: str) -> bool:
    run = context.journal.find_run(context.record.store_id, run_key)
    return run is not None and bool(context.journal.events(run, Step.BROKER_TASK))
