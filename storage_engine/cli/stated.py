"""What a call states about its store beside its place: broker and name, kept in click's context.

``managed_store`` finds them there.
"""

from __future__ import annotations

import click

from storage_engine.brokers import broker_names

_BROKER_TYPE = "storage_engine.broker_type"
_NAME = "storage_engine.name"


def installed_broker(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    """Make sure that a broker of this name is installed; a click callback."""
    if name is not None and name not in broker_names():
        raise click.BadParameter(
            f"expected one of {', '.join(broker_names())}, found {name!r}", context, parameter
        )
    return name


def _keep_broker_type(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    context.meta[_BROKER_TYPE] = installed_broker(context, parameter, name)


broker_type_option = click.option(
    "--broker-type",
    metavar="NAME",
    expose_value=False,
    callback=_keep_broker_type,
    help="Whose store it is; default: told from its files.",
)


def _keep_name(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    if name is not None and not name.strip():
        raise click.BadParameter("expected a name, found an empty one", context, parameter)
    context.meta[_NAME] = name


name_option = click.option(
    "--name",
    metavar="NAME",
    expose_value=False,
    callback=_keep_name,
    help="What STORE is called; default: as it is known, else the last part of its path.",
)


def stated_name() -> str | None:
    """Return what this call was given as --name."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_NAME)


def named_broker_type() -> str | None:
    """Return what this call was given as --broker-type."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_BROKER_TYPE)
