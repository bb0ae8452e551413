"""What has to hold after a live demo of Kafka, by what clients and brokers saw and the lake has."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from storage_engine.project.demo.demo_checks import Check
from storage_engine.project.demo.demo_kafka_load import CLICKS, KEEPS_UP, LAGS, ORDERS, PAYMENTS, ClientsSaw
from storage_engine.project.demo.demo_kafka_served import Record

Served = Mapping[str, Sequence[Record]]
"""What a broker gives a reader of committed records, or a lake has of these, by topic."""
_Hashes = Mapping[tuple[str, int], str]
"""SHA-256 of values by topic and offset."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What stood in the way of deletion at a moment, and where logs began after it.

    :param lagging_at: the position of the group that lags.
    :param transaction_at: the first offset of the open transaction.
    :param starts: by topic.
    """

    lagging_at: int
    transaction_at: int
    starts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class KafkaOutcome:
    """What was seen of a demo.

    :param first: when a group lagged and a transaction was open.
    :param last_starts: where logs began once neither was.
    :param settings: of each topic that keep or expire records: before, held and afterwards.
    :param served: by the broker, when the load had ended and the hold had not.
    """

    clients: ClientsSaw
    first: Moment
    last_starts: Mapping[str, int]
    settings: tuple[object, object, object]
    served: Served


def log_of(topic: str) -> str:
    return f"{topic}-0"


def check_kafka_live(outcome: KafkaOutcome, archived: Served, elsewhere: Served) -> tuple[Check, ...]:
    """Compare clients, brokers and lake with what they have to be.

    :param archived: what the lake has.
    :param elsewhere: what a second node serves of what was restored.
    """
    clients, first = outcome.clients, outcome.first
    sent = len(clients.acknowledged)
    clicks = sum(topic == CLICKS for topic, _ in clients.acknowledged)
    before, held, after = outcome.settings
    return (
        Check(not clients.failed and sent > 0, f"no client failed, and {sent} records were acknowledged"),
        Check(
            clients.kept_up == list(range(clicks)),
            f"group {KEEPS_UP} has read all {clicks} records of {CLICKS}, each once",
        ),
        Check(
            first.starts[CLICKS] > 0
            and 0 < first.starts[ORDERS] <= first.lagging_at
            and 0 < first.starts[PAYMENTS] <= first.transaction_at,
            f"at first {CLICKS} began at {first.starts[CLICKS]}, {ORDERS} at {first.starts[ORDERS]}: not "
            f"above offset {first.lagging_at}, which group {LAGS} reads next; {PAYMENTS} at "
            f"{first.starts[PAYMENTS]}: not above {first.transaction_at}, where the transaction begins",
        ),
        Check(
            outcome.last_starts[ORDERS] > first.lagging_at
            and outcome.last_starts[PAYMENTS] > first.transaction_at,
            f"then {ORDERS} began at {outcome.last_starts[ORDERS]}, and {PAYMENTS} at "
            f"{outcome.last_starts[PAYMENTS]}",
        ),
        *_account(outcome, _hashes(archived), _hashes(elsewhere)),
        Check(before != held and before == after, "unmanaged, the topics' settings are as before the hold"),
    )


def _account(outcome: KafkaOutcome, archived: _Hashes, elsewhere: _Hashes) -> tuple[Check, ...]:
    """Each record that was acknowledged is served or in the lake, and what is in the lake is served again."""
    sent, served = outcome.clients.acknowledged, _hashes(outcome.served)
    gone = sent.keys() - served.keys()
    return (
        Check(
            bool(gone) and {**archived, **served} == sent,
            f"each of them is served by the broker ({len(served)}) or in the lake ({len(archived)}), "
            "by SHA-256",
        ),
        Check(
            elsewhere == archived and gone <= elsewhere.keys(),
            f"a second node serves all {len(elsewhere)} from the lake, among them the {len(gone)} that the "
            "first one no longer has",
        ),
    )


def _hashes(records: Served) -> _Hashes:
    return {
        (topic, offset): hashlib.sha256(value or b"").hexdigest()
        for topic, of_topic in records.items()
        for offset, _, value in of_topic
    }
