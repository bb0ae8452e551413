"""hold, unmanage, shield: keep unarchived segments from a running broker, or end that again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from storage_engine.cli.options.store_argument import address_options, takes_store
from storage_engine.cli.output.live_output import print_hold
from storage_engine.cli.output.output import answer, print_json, say, say_notes
from storage_engine.cli.shell.shared_options import command, json_option, wants_json
from storage_engine.cli.shell.values import reason_text
from storage_engine.core.clock import clock_ms
from storage_engine.core.host import person
from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.wording import count_text
from storage_engine.model.broker.live import RunningBroker
from storage_engine.model.settings.policy import ShieldMode
from storage_engine.retention.hold.hold_text import broker_text

if TYPE_CHECKING:
    from storage_engine.retention.hold.holding import Acceptance
    from storage_engine.retention.shield import ShieldResult
    from storage_engine.retention.steps import HoldResult
    from storage_engine.retention.store.managed_store import ManagedStore


def leave_unproven_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --leave-unproven and --reason. It receives them as ``acceptance``."""

    @click.option(
        "--leave-unproven",
        type=click.IntRange(min=1),
        metavar="AT-MOST",
        help="Accept that the broker deletes at most this many unproven segments within a day.",
    )
    @click.option("--reason", callback=reason_text, help="Reason for --leave-unproven. The journal keeps it.")
    @wraps(command)
    def called(*arguments: Any, leave_unproven: int | None, reason: str | None, **values: Any) -> Any:
        if (leave_unproven is None) != (reason is None):
            raise click.UsageError(
                "Expected --leave-unproven AT-MOST and --reason TEXT together, found only one of them."
            )
        acceptance = None
        if leave_unproven is not None and reason is not None:
            # Imports the lake's libraries, which --help must not wait for.
            from storage_engine.retention.hold.holding import Acceptance

            acceptance = Acceptance(leave_unproven, person(), reason)
        return command(*arguments, acceptance=acceptance, **values)

    return called


@command()
@takes_store(policy=("archive_margin_hours",))
@json_option
def hold(managed: ManagedStore) -> int:
    """Hold STORE beside its running broker, or renew its hold. Then the broker deletes only what we release.

    clean holds STORE, too; inspect only shows a hold. A hold that isn't renewed for --hold-hours ends by
    itself. Before a first hold, its changes at the broker are shown. Exit code 1: the store isn't held.

    If a Kafka broker deletes by its own rules, only some topics are held: those with segments that no lake
    has and that are due within --archive-margin-hours. Their settings are restored once the segments are
    archived. Exit code 1: some of these topics can't be held.
    """
    from storage_engine.model.broker.broker_store import hold_of
    from storage_engine.retention import steps
    from storage_engine.retention.store.brokers import open_to_look
    from storage_engine.retention.store.context import opened

    broker = _running(managed)
    with closing(open_to_look(managed)) as store:
        before = hold_of(store).status(clock_ms())
    for notice in () if before.is_well else before.notices:
        say("Before: ", notice, err=True)
    with opened(managed) as context:
        result = steps.hold(context, run_key=f"hold-{clock_ms()}")
    _print("hold", broker, result)
    return 0 if result.status.is_well else 1


@command()
@takes_store()
@leave_unproven_options
@json_option
def unmanage(managed: ManagedStore, acceptance: Acceptance | None) -> int:
    """End the hold of STORE, and restore every file's time and every setting of its running broker.

    From then on the broker deletes by its own rules. Refused while a run works on the store, and while these
    rules would delete unproven segments within a day. Then no setting is changed.
    """
    from storage_engine.retention import steps
    from storage_engine.retention.store.context import opened

    broker = _running(managed)
    with opened(managed, only_gives_back=True) as context:
        return _print("unmanage", broker, steps.unmanage(context, acceptance=acceptance))


def _running(managed: ManagedStore) -> RunningBroker:
    from storage_engine.retention.store.brokers import running_broker

    broker = running_broker(managed)
    if broker is None:
        raise click.UsageError(
            f"Expected {address_options(managed.broker)}, which names the running broker of STORE, found "
            "no such option. A stopped broker's store needs no hold."
        )
    return broker


def _print(kind: str, broker: RunningBroker, result: HoldResult) -> int:
    def print_words(shown: object) -> None:
        say(broker_text(broker))
        print_hold(result.status)

    return answer(kind, {"broker": to_jsonable(broker), **to_jsonable(result)}, print_words)


@command()
@takes_store(policy=("shield_give_up_percent",))
@click.option(
    "--remove", is_flag=True, help="Remove the shield, once all its segments are in the log or proven."
)
@leave_unproven_options
@json_option
def shield(managed: ManagedStore, remove: bool, acceptance: Acceptance | None) -> int:
    """Give each unproven sealed segment of STORE a second name in its .storage-engine directory.

    A segment that is deleted from the log by force or by hand then still exists, and the next call archives
    it with proof. A second name is removed when its segment is proven. Beside a running broker,
    storage-engine watch does all this; while watch runs, this command only shows the shield. Exit code 1: a
    segment was deleted from the log and isn't in the lake.
    """
    from storage_engine.retention.store.brokers import refuse_shield

    if acceptance is not None and not remove:
        raise click.UsageError("--leave-unproven: expected --remove with it, found none.")
    refuse_shield(managed)
    # Imports the lake's libraries, which --help must not wait for.
    from storage_engine.retention.hold.holding import remove_shield_of
    from storage_engine.retention.shield import tend_shield
    from storage_engine.retention.store.context import opened

    managed = replace(managed, policy=replace(managed.policy, shield=ShieldMode.ON))
    if remove:
        notices = remove_shield_of(managed, acceptance)
        if wants_json():
            print_json("shield", {"links": 0, "notices": notices})
            return 0
        say("Shield: removed" if not notices else "Shield: not all of it could be removed")
        say_notes(notices)
        return 0
    with opened(managed) as store:
        result = tend_shield(store)
    answer("shield", result, _print_shield)
    return 1 if result.gone or result.given_up else 0


def _print_shield(result: ShieldResult) -> None:
    say(f"Shield: {count_text(result.links, 'segment')} kept")
    for title, offsets in (
        ("archived now, with proof", result.archived),
        ("gone from the log and not in the lake", result.gone),
        ("given up for space", result.given_up),
    ):
        if offsets:
            say(f"{title}: offset {', '.join(map(str, offsets))}")
    say_notes(result.notices)
