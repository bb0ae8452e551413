"""The command to type next: the last line that a command prints, as it can be pasted."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import click

from storage_engine.cli.output.output import say, say_styled
from storage_engine.cli.shell.call_parameters import said_by
from storage_engine.core.next_commands import with_arguments
from storage_engine.core.wording import printable


def archive_command(broker: str, lake_dir: Path) -> str:
    """Return the command that archives some store into a lake.

    :param broker: name of the lake's; "": the first store's, whatever that is.
    """
    from storage_engine.brokers import find_broker

    names_its_file = broker != "" and find_broker(broker).age_settings != frozenset()
    options = " --broker-conf FILE" if names_its_file else ""
    return f"archive STORE{options} --lake {quote(str(lake_dir))}"


def say_next(command: str, why: str, options: str = "") -> None:
    """Say what to do next and why.

    :param command: without arguments, which those of this call are; "": there is none to type now.
    :param options: as typed, which follow this call's.
    """
    say()
    if not command:
        say(f"Next: {why}")
        return
    told = with_arguments(f"storage-engine {command}", said_by(click.get_current_context()))
    told = f"{told} {options}".rstrip()
    say(f"{why}.")
    say_styled(f"Next: {click.style(printable(told), bold=True)}")
