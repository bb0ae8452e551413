"""recover, rebuild-queues: what a broker does to its store when it starts, without starting it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from storage_engine.cli.options.options import json_option
from storage_engine.cli.options.store_argument import takes_store
from storage_engine.cli.output.output import print_json, say
from storage_engine.cli.output.progress import waiting
from storage_engine.cli.shell.command import command

if TYPE_CHECKING:
    from storage_engine.retention.store.managed_store import ManagedStore


@command()
@takes_store(lake=False)
@click.option("--dry-run", is_flag=True, help="Say what would be cut and made; change nothing.")
@click.option("--cut-messages", is_flag=True, help="Also where whole messages behind a damaged one are lost.")
@click.option(
    "--index",
    type=click.Choice(["recent", "all"]),
    default="recent",
    show_default=True,
    help="How much of the log is read to make an index again that the crash took: its 10 newest segments, or "
    "as many as it takes.",
)
@json_option
def recover(managed: ManagedStore, dry_run: bool, cut_messages: bool, index: str, as_json: bool) -> int:
    """Make STORE clean whose broker did not stop cleanly, as that broker would when it starts.

    The log is cut off behind its last whole message. Queues and index are made to agree with it. A store
    that was recovered may be cleaned.
    """
    from storage_engine.brokers import engine_of
    from storage_engine.retention.store.brokers import settings_of

    with waiting("Recovering"):
        found = engine_of(managed.broker, managed.root, "recovered").recover(
            settings_of(managed),
            dry_run=dry_run,
            cut_messages=cut_messages,
            whole_index=index == "all",
        )
    if as_json:
        print_json("recover", found)
        return 0
    for line in found.lines:
        say(line)
    return 0


@command("rebuild-queues")
@takes_store(lake=False)
@json_option
def rebuild_queues(managed: ManagedStore, as_json: bool) -> int:
    """Make the consume queues and the index of STORE again from its log, while its broker is stopped.

    Where the log is damaged before its end, nothing is changed.
    """
    from storage_engine.brokers import engine_of
    from storage_engine.retention.store.brokers import settings_of

    with waiting("Reading the log"):
        engine = engine_of(managed.broker, managed.root, "recovered")
        found = engine.rebuild_queues(settings_of(managed))
    if as_json:
        print_json("rebuild-queues", found)
        return 0
    say(f"{found.root}: queues and index were made again up to offset {found.log_end}.")
    return 0
