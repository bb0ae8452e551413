"""hold, unmanage: keep a running broker from deleting what isn't archived, and leave its store as it was."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import click

from storage_engine.cli.hold.leave_unproven import leave_unproven_options
from storage_engine.cli.options.live_options import address_options
from storage_engine.cli.options.options import json_option
from storage_engine.cli.options.store_argument import takes_store
from storage_engine.cli.output.live_output import print_broker, print_hold
from storage_engine.cli.output.output import print_json, say
from storage_engine.cli.shell.command import command
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import to_jsonable
from storage_engine.model.broker.live import RunningBroker

if TYPE_CHECKING:
    from storage_engine.retention.hold.leaving_unproven import Acceptance
    from storage_engine.retention.steps import HoldResult
    from storage_engine.retention.store.managed_store import ManagedStore


@command()
@takes_store(policy=("archive_margin_hours",))
@json_option
def hold(
    managed: ManagedStore,
    as_json: bool,
) -> int:
    """Hold STORE, whose broker runs on, or renew its hold; then nothing goes that isn't released on purpose.

    clean does so by itself; inspect shows a hold and changes nothing. A hold that nobody renews
    for --hold-hours ends by itself. What a first hold changes at the broker is said before it does. Exit
    code 1 when the store isn't held after all.

    Of a store of Kafka whose broker deletes by its own rules, only topics are held of which something goes
    within --archive-margin-hours that no lake has. They are put back once it is archived. Exit code 1 when
    some of it can't be held.
    """
    from storage_engine.retention import steps
    from storage_engine.retention.store.brokers import open_to_look
    from storage_engine.retention.store.context import opened

    broker = _running(managed)
    with closing(open_to_look(managed)) as store:
        before = store.hold_status(clock_ms())
    for notice in () if before.is_well else before.notices:
        say(f"Before: {notice}", err=True)
    with opened(managed) as context:
        result = steps.hold(context, run_key=f"hold-{clock_ms()}")
    _print("hold", broker, result, as_json)
    return 0 if result.status.is_well else 1


@command()
@takes_store()
@leave_unproven_options
@json_option
def unmanage(
    managed: ManagedStore,
    acceptance: Acceptance | None,
    as_json: bool,
) -> int:
    """Put every file's time and every setting of STORE's running broker back, and hold it no more.

    From then on the broker deletes by its own rules. Refused while a run has the store, and while these rules
    delete within a day what no lake proves; before the first setting is put back.
    """
    from storage_engine.retention import steps
    from storage_engine.retention.store.context import opened

    broker = _running(managed)
    with opened(managed, only_gives_back=True) as context:
        _print("unmanage", broker, steps.unmanage(context, acceptance=acceptance), as_json)
    return 0


def _running(managed: ManagedStore) -> RunningBroker:
    from storage_engine.retention.store.brokers import running_broker

    broker = running_broker(managed)
    if broker is None:
        raise click.UsageError(
            f"Expected the broker that runs on STORE by {address_options(managed.broker)}, found none. A "
            "stopped broker's store needs no hold."
        )
    return broker


def _print(kind: str, broker: RunningBroker, result: HoldResult, as_json: bool) -> None:
    if as_json:
        print_json(kind, {"broker": to_jsonable(broker), **to_jsonable(result)})
        return
    print_broker(broker)
    print_hold(result.status)
