"""Options for settings of the policy, as its table describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from storage_engine.cli.shell.command import GroupedOption
from storage_engine.cli.shell.values import NamedPath, absolute_paths, speed
from storage_engine.model.settings.policy import Policy
from storage_engine.model.settings.settings import Setting, settings_of

SETTINGS = {one.name: one for one in settings_of(Policy)}

CLEAN = (
    "archive",
    "lag_policy",
    "pending_policy",
    "minimum_retention_hours",
    "approval",
    "undo_window_hours",
    "undo_directories",
    "archive_bytes_per_second",
)
"""What a whole cleanup at the shell is told."""

_FLAGS = {"archive": "--archive-policy", "undo_directories": "--undo-directory"}
_UNITS = {"hours": "HOURS", "percent": "PERCENT"}


def policy_option(name: str) -> click.Option:
    """Return the option for a setting of the policy."""
    one = SETTINGS[name]
    flag = _FLAGS.get(name, "--" + name.replace("_", "-"))
    if one.choices:
        return GroupedOption(
            [flag, name],
            group="Policy",
            type=click.Choice(one.choices),
            default=one.default_text,
            show_default=True,
            help=one.help,
        )
    if one.kind is tuple:
        return GroupedOption(
            [flag, name],
            group="Policy",
            metavar="DIRECTORY",
            type=NamedPath(file_okay=False),
            multiple=True,
            callback=absolute_paths,
            help=f"{one.help} Repeatable.",
        )
    if name.endswith("_bytes_per_second"):
        return GroupedOption([flag, name], group="Policy", metavar="SIZE", callback=speed, help=one.help)
    return GroupedOption(
        [flag, name],
        group="Policy",
        type=click.IntRange(one.minimum, one.maximum),
        default=one.default,
        show_default=one.default is not None,
        metavar=_UNITS[name.rpartition("_")[2]],
        help=one.help,
    )


def policy_of(values: Mapping[str, Any]) -> Policy:
    """Return the policy that options amount to; what has none is as the table says.

    :param values: by the names of settings.
    """
    return Policy(**policy_values(values))


def policy_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what options say, by the fields of the policy."""
    return {name: _value(SETTINGS[name], value) for name, value in values.items()}


def _value(one: Setting, value: Any) -> Any:
    return one.kind(value) if one.choices else value
