"""shield: keep what is unproven by a second name, archive from it what was deleted, or remove it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from storage_engine.cli.hold.leave_unproven import leave_unproven_options
from storage_engine.cli.options.options import json_option
from storage_engine.cli.options.store_argument import takes_store
from storage_engine.cli.output.output import print_json, say
from storage_engine.cli.shell.command import command
from storage_engine.core.wording import count_text
from storage_engine.model.settings.policy import ShieldMode

if TYPE_CHECKING:
    from storage_engine.retention.store.managed_store import ManagedStore

if TYPE_CHECKING:
    from storage_engine.retention.hold.leaving_unproven import Acceptance


@command()
@takes_store(policy=("shield_give_up_percent",))
@click.option("--remove", is_flag=True, help="Remove it, once all that it keeps is in the log or proven.")
@leave_unproven_options
@json_option
def shield(
    managed: ManagedStore,
    remove: bool,
    acceptance: Acceptance | None,
    as_json: bool,
) -> int:
    """Give all sealed segments of STORE that no lake proves a second name, in its .storage-engine directory.

    What is deleted from the log by force or by hand is still there then: the next call archives it with
    proof. A second name goes when its segment is proven. Beside a running broker storage-engine watch does
    this; while it is alive, this command only shows. Exit code 1 when something is gone from the log and not
    in the lake.
    """
    from storage_engine.retention.store.brokers import refuse_shield

    if acceptance is not None and not remove:
        raise click.UsageError("--leave-unproven: expected --remove with it, found none.")
    refuse_shield(managed)
    # The lake's libraries, which --help needs for nothing.
    from storage_engine.retention.hold.shield_removal import remove_shield_of
    from storage_engine.retention.shield import tend_shield
    from storage_engine.retention.store.context import opened

    managed = replace(managed, policy=replace(managed.policy, shield=ShieldMode.ON))
    if remove:
        notices = remove_shield_of(managed, acceptance)
        if as_json:
            print_json("shield", {"links": 0, "notices": notices})
            return 0
        say("Shield: removed" if not notices else "Shield: not all of it could be removed")
        _print_notices(notices)
        return 0
    with opened(managed) as store:
        result = tend_shield(store)
    if as_json:
        print_json("shield", result)
    else:
        say(f"Shield: {count_text(result.links, 'segment')} kept")
        for what, offsets in (
            ("archived now, with proof", result.archived),
            ("gone from the log and not in the lake", result.gone),
            ("given up for space", result.given_up),
        ):
            if offsets:
                say(f"{what}: offset {', '.join(map(str, offsets))}")
        _print_notices(result.notices)
    return 1 if result.gone or result.given_up else 0


def _print_notices(notices: tuple[str, ...]) -> None:
    for notice in notices:
        say(f"Note: {notice}")
