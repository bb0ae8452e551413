"""What every command has: options in groups, --quiet, and options that the environment may give."""

from __future__ import annotations

from typing import Any

import click

ENVIRONMENT = "STORAGE_ENGINE_"
"""Prefix of the environment variables that options are taken from."""
_QUIET = "storage_engine.quiet"
_OWN = "Options"
_OUTPUT = "Output"
GROUPS = (_OWN, "Lake", "Store", "Policy", "Running broker", _OUTPUT)
"""Headings in the order of a command's help."""


class GroupedOption(click.Option):
    """An option that several commands share, under a heading of its own in their help.

    :param group: one of :data:`GROUPS`.
    :param environment: whether a variable of the environment may give it. What is typed comes first: a
        variable says nothing beside ``--conn-id``, or of a store where none is named.
    """

    def __init__(self, *arguments: Any, group: str = _OWN, environment: bool = False, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.group = group
        if environment:
            self.envvar = ENVIRONMENT + self.opts[0].lstrip("-").upper().replace("-", "_")
            self.show_envvar = True

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return what the environment gives; None where the words that were typed leave it no say."""
        beside = ("store", "lake_dir") if self.name == "conn_id" else ("conn_id", "conn_ids")
        stores = [ctx.params[name] for name in ("store", "stores") if name in ctx.params]
        of_no_store = self.group in ("Store", "Running broker") and stores and not any(stores)
        if of_no_store or any(ctx.params.get(name) for name in beside):
            return None
        return super().resolve_envvar_value(ctx)


def _keep_quiet(context: click.Context, parameter: click.Parameter, quiet: bool) -> None:
    context.find_root().meta[_QUIET] = quiet


QUIET = GroupedOption(
    ["-q", "--quiet"],
    is_flag=True,
    expose_value=False,
    callback=_keep_quiet,
    group=_OUTPUT,
    help="Print errors only, and JSON where --json asks for it.",
)


def is_quiet() -> bool:
    """Return whether the command that runs was told to print errors only."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.find_root().meta.get(_QUIET))


class Command(click.Command):
    """A command whose help has its own options first, and those of a running broker last."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        *own, help_option = super().get_params(ctx)
        return [*own, QUIET, help_option]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in GROUPS}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None:
                groups[_group_of(parameter)].append(row)
        for name, rows in groups.items():
            if rows:
                with formatter.section(name):
                    formatter.write_dl(rows)


def _group_of(parameter: click.Parameter) -> str:
    if isinstance(parameter, GroupedOption):
        return parameter.group
    return _OUTPUT if parameter.name in ("help", "as_json") else _OWN
