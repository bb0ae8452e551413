"""--notify: the ways in which a person is told of alarms at a shell."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from storage_engine.cli.output.output import say_notes
from storage_engine.commands import Command, Text
from storage_engine.core.wording import unexpected_text
from storage_engine.exceptions import BadInputError

if TYPE_CHECKING:
    from storage_engine.retention.monitor.notifying import Means
    from storage_engine.retention.store.managed_store import ManagedStore


def _parse_means(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[Means, ...]:
    if not texts:
        return ()
    from storage_engine.retention.monitor.notifying import means_of

    try:
        return tuple(means_of(text) for text in dict.fromkeys(texts))
    except BadInputError as error:
        raise click.BadParameter(Text(error), context, parameter) from error


notify_option = click.option(
    "--notify",
    metavar="COMMAND|URL",
    multiple=True,
    callback=_parse_means,
    help=(
        "Run this command for an alarm that begins or ends, with JSON on its stdin, or POST the JSON to "
        "this URL; repeatable."
    ),
)


def doctor_of(store: ManagedStore) -> str:
    """Return the doctor command for a store, as advice in its alarms."""
    from storage_engine.lake.catalog.place import own_directory

    lake = own_directory(store.lake)
    at = "" if lake is None else f" --lake {shlex.quote(str(lake))}"
    return str(Command("doctor", f"{shlex.quote(store.root)}{at}"))


AlarmsTold = Callable[..., None]


@contextmanager
def alarms_told(managed: ManagedStore, source: str, all_means: tuple[Means, ...]) -> Iterator[AlarmsTold]:
    """Send a command's alarms when it ends: alarms passed to the yielded function, or the raised error."""
    is_told = not all_means

    def tell(*alarms: str, link: str = "", has_failed: bool = False) -> None:
        nonlocal is_told
        if is_told:
            return
        is_told = True
        from storage_engine.retention.monitor.notifying import Subject
        from storage_engine.retention.monitor.notifying import tell as tell_means

        try:
            subject = Subject.of(managed, source, advice=doctor_of(managed), link=link)
            notices = tell_means(subject, alarms, all_means, has_failed=has_failed)
        except Exception as error:
            # A failure to notify must not fail the command.
            notices = (Text("alarms could not be sent: ", unexpected_text(error)),)
        say_notes(notices, err=True)

    try:
        yield tell
    except Exception as error:
        tell(Text(error), has_failed=True)
        raise
