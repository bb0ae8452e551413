"""The command to type next: a command's last line, ready to be pasted."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from storage_engine.cli.output.output import say, say_styled
from storage_engine.cli.shell.shared_options import said_by
from storage_engine.commands import Command, Text, render_command
from storage_engine.core.wording import count_text, printable
from storage_engine.exceptions import StorageEngineError
from storage_engine.model.plan import PlanRequest
from storage_engine.retention.doctor.next_step import LOOK_FIRST

if TYPE_CHECKING:
    from storage_engine.retention.store.managed_store import ManagedStore


def archive_command(broker: str, lake_dir: Path) -> Command:
    """Return the command that archives a store into a lake.

    :param broker: name of the lake's kind of broker; "" if the first store will decide it.
    """
    from storage_engine.brokers import find_broker

    names_its_file = broker != "" and find_broker(broker).settings.of_age != frozenset()
    options = " --broker-conf FILE" if names_its_file else ""
    return Command("archive", f"STORE{options} --lake {quote(str(lake_dir))}")


def say_next(command: Command | None, why: str, options: str = "") -> None:
    """Print the next command and the reason for it.

    :param command: the command, to which this call's arguments are added; None if there is nothing to type.
    :param options: further options, after those of this call.
    """
    say()
    if command is None:
        say("Next: ", why)
        return
    line = render_command(command, said_by(click.get_current_context()))
    line = f"{line} {options}".rstrip()
    say(why, ".")
    say_styled(f"Next: {click.style(printable(line), bold=True)}")


def say_cleanup(managed: ManagedStore, previous: PlanRequest | None = None) -> None:
    """Print the cleanup command that would delete segments now, with the consumers' losses.

    :param previous: the cleanup that was just requested and deleted nothing.
    """
    from storage_engine.brokers import find_broker
    from storage_engine.retention.lag.unread_losses import unread_lines
    from storage_engine.retention.plan.preview import preview
    from storage_engine.retention.store.brokers import assumes_defaults, may_clean_now

    if not may_clean_now(managed):
        return
    requests = [(Command("clean"), PlanRequest()), (Command("clean --manual"), PlanRequest(manual=True))]
    if previous is not None:
        requests = [] if previous.manual else requests[1:]
    for command, request in requests:
        try:
            decided = preview(managed, request)
        except StorageEngineError as error:
            # The requested work is done. The error belongs to the next cleanup.
            say_next(Command("doctor"), Text("No cleanup can be planned now: ", error).removesuffix("."))
            return
        if going := decided.plan.to_delete:
            for line in unread_lines(managed, decided.unread, done=False):
                say("WARNING ", line)
            text = f"{count_text(len(going), 'segment')} would be deleted"
            if assumes_defaults(managed):
                # Its own settings may keep what the defaults delete.
                say_next(Command("clean"), f"{text} by the broker's defaults, which were assumed", LOOK_FIRST)
            elif request.manual:
                beyond = find_broker(managed.broker).words.by_hand
                reason = f"{text} by a run by hand: they have expired"
                say_next(command, f"{reason}. {beyond}" if beyond else reason)
            else:
                say_next(command, f"{text} by its rules now, once proven")
            return
    say_next(Command("doctor"), "Nothing may be deleted yet, and doctor says when")
