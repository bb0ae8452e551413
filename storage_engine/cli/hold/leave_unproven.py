"""--leave-unproven: a person's word that a store is left to its broker though some of it is unproven."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from storage_engine.cli.shell.values import reason_text
from storage_engine.core.host import person


def leave_unproven_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command both options, which it gets as ``acceptance``."""

    @wraps(command)
    def called(*arguments: Any, leave_unproven: int | None, reason: str | None, **values: Any) -> Any:
        if (leave_unproven is None) != (reason is None):
            raise click.UsageError("Expected --leave-unproven AT-MOST and --reason TEXT together, found one.")
        accepted = None
        if leave_unproven is not None and reason is not None:
            # The lake's libraries, which --help needs for nothing.
            from storage_engine.retention.hold.leaving_unproven import Acceptance

            accepted = Acceptance(leave_unproven, person(), reason)
        return command(*arguments, acceptance=accepted, **values)

    for decorate in (
        click.option(
            "--reason",
            callback=reason_text,
            metavar="TEXT",
            help="With --leave-unproven: why. The journal keeps it.",
        ),
        click.option(
            "--leave-unproven",
            type=click.IntRange(min=1),
            metavar="AT-MOST",
            help="Leave so many segments at most to the broker though it deletes them within a day and no "
            "lake proves them.",
        ),
    ):
        called = decorate(called)
    return called
