"""A running broker and the hold on its store: read, and printed."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storage_engine.cli.output.output import say, say_notes
from storage_engine.commands import Text
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import to_jsonable
from storage_engine.exceptions import GateRefusedError
from storage_engine.model.broker.live import RunningBroker
from storage_engine.model.hold import HoldStatus
from storage_engine.model.store import StoreSnapshot
from storage_engine.retention.hold.hold_text import broker_text, drift_text, due_alarms, hold_text

if TYPE_CHECKING:
    from storage_engine.retention.store.managed_store import ManagedStore


@dataclass(frozen=True, slots=True)
class LiveLook:
    """A look at a store and its broker. ``hold`` is None if it can't be read, and ``refusal`` says why."""

    broker: RunningBroker
    snapshot: StoreSnapshot
    hold: HoldStatus | None
    refusal: str


def look_live(managed: ManagedStore, now_ms: int) -> LiveLook | None:
    """Return a look at the store and its running broker. Change nothing. None if no broker runs.

    :raises BrokerError: the broker doesn't answer.
    """
    from storage_engine.model.broker.broker_store import hold_of
    from storage_engine.retention.store.broker_answers import take_snapshot
    from storage_engine.retention.store.brokers import open_to_look, running_broker

    broker = running_broker(managed)
    if broker is None:
        return None
    with closing(open_to_look(managed)) as store:
        snapshot = take_snapshot(store, now_ms, managed.broker)
        try:
            return LiveLook(broker, snapshot, hold_of(store).status(now_ms), "")
        except GateRefusedError as error:
            return LiveLook(broker, snapshot, None, Text(error))


def live_json(look: LiveLook) -> dict[str, Any]:
    return {
        "broker": to_jsonable(look.broker),
        "hold": to_jsonable(look.hold),
        "hold_refusal": look.refusal or None,
    }


def print_live(look: LiveLook) -> None:
    say(broker_text(look.broker))
    if look.hold:
        print_hold(look.hold)
    else:
        say(f"Hold: not available: {look.refusal}")


def print_hold(status: HoldStatus) -> None:
    say("Hold: ", hold_text(status))
    for due in due_alarms(status, clock_ms()):
        say(f"URGENT {due}")
    for drift in status.disturbances:
        say("WARNING ", drift_text(drift))
    say_notes(status.notices)
