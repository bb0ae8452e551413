"""options: what many commands take, told once."""

from __future__ import annotations

import click

from storage_engine.cli.options.live_options import LIVE_OPTIONS
from storage_engine.cli.options.store_argument import SHARED_STORE_OPTIONS
from storage_engine.cli.output.output import say
from storage_engine.cli.shell.command import QUIET, WAIT, command


@command()
def options() -> None:
    """List the options that many commands share: of a store, of the broker that runs on it, of the output."""
    say("STORE is the directory of a store, or its name in stores.toml (storage-engine docs).\n")
    context = click.get_current_context()
    formatter = context.make_formatter()
    for title, shared in (
        ("Of every command that takes STORE", SHARED_STORE_OPTIONS),
        ("Where the broker runs on", LIVE_OPTIONS),
        ("Of every command", (WAIT, QUIET)),
    ):
        with formatter.section(title):
            formatter.write_dl([row for option in shared if (row := option.get_help_record(context))])
    say(formatter.getvalue().rstrip("\n"))
