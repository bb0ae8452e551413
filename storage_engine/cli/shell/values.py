"""Values of options, parsed from texts on a command line."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click

from storage_engine.commands import Command, Text
from storage_engine.core.host import parse_address
from storage_engine.core.wording import meant_zone, parse_size


class NamedPath(click.Path):
    """A path. It refuses an empty text, such as an unset shell variable gives.

    A path made of an empty text would mean the present directory.
    """

    def __init__(self, **more: Any) -> None:
        super().__init__(**{"path_type": Path, **more})

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        if value == "":
            self.fail("expected a path, found an empty one. Nothing was changed.", param, ctx)
        return super().convert(value, param, ctx)


class TargetPath(NamedPath):
    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        if value == "-":
            self.fail(
                "expected a path, found -, and nothing is written to standard output. Nothing was "
                "changed. Name a path; a file with the name - is ./-",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


class LakePath(NamedPath):
    def __init__(self) -> None:
        super().__init__(file_okay=False)

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        return Text(
            "Name the lake's directory. If there is no lake yet: ", Command("init-lake", "--lake DIRECTORY")
        )


def absolute_paths(
    _context: click.Context, _parameter: click.Parameter, values: tuple[Path, ...]
) -> tuple[str, ...]:
    return tuple(str(path.absolute()) for path in values)


def key_value_pairs(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """Return options of the form KEY=VALUE as a dictionary; a click callback."""
    pairs = {}
    for value in values:
        key, separator, text = value.partition("=")
        if not separator or not key:
            raise click.BadParameter(f"expected KEY=VALUE, found {value!r}. Nothing was changed.")
        pairs[key] = text
    return pairs


def reason_text(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return a person's reason; a click callback. A blank text, as from an unset variable, is refused."""
    if value is None:
        return None
    if not value.strip():
        raise click.BadParameter("expected a reason, found none. Nothing was changed.")
    return value.strip()


def size_bytes(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Return a size such as 10GiB, 500 MB or 4096 in bytes; a click callback."""
    size = None if text is None else _bytes(parameter, text)
    if size == 0:
        raise click.BadParameter(f"expected at least one byte, found {text!r}", context, parameter)
    return size


def parse_speed(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Return a size such as 50MB in bytes, or 0 for the text 0; a click callback."""
    size = None if text is None else _bytes(parameter, text)
    if size == 0 and text is not None and text.strip() != "0":
        raise click.BadParameter(f"expected 0 or at least one byte, found {text!r}", context, parameter)
    return size


def _bytes(parameter: click.Parameter, text: str) -> int:
    size = parse_size(text)
    if size is None:
        raise click.BadParameter(
            f"expected a size such as 10GiB, 500MB or 4096, found {text!r}", param=parameter
        )
    return size


def time_zone(_context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    try:
        return name if name is None else ZoneInfo(name).key
    except (KeyError, ValueError) as error:
        raise click.BadParameter(
            f"expected an IANA time zone such as Asia/Shanghai, found {name!r}.{meant_zone(str(name))}",
            param=parameter,
        ) from error


def host_and_port(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[str, int] | None:
    if text is None:
        return None
    address = parse_address(text)
    if address is None:
        raise click.BadParameter(f"expected HOST:PORT, found {text!r}", context, parameter)
    return address


def moment_ms(text: str, time_zone: str | None, *, option: str) -> int:
    """Return a time in milliseconds since the epoch.

    :param time_zone: zone for a time without a zone; None means this machine's zone.
    :param option: name of the option with the time, for a message.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(
            f"expected a time such as 2026-11-20T04:10 or 2026-11-20T04:10+08:00, found {text!r}",
            param_hint=option,
        ) from error
    if not 1970 <= moment.year < 9999:
        # The same moment in any zone has to be valid, and no message is stored before 1970.
        raise click.BadParameter(f"expected a year from 1970 to 9998, found {text!r}", param_hint=option)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=ZoneInfo(time_zone)) if time_zone else moment.astimezone()
    return round(moment.timestamp() * 1000)


def disk_percents(pairs: dict[str, str]) -> dict[str, int]:
    """Return levels of ``--disk PATH=RATIO`` in percent, by absolute path. A ratio is a fraction such as
    0.86, or a percentage such as 86%. A relative path begins in the working directory.
    """
    levels = {}
    for path, text in pairs.items():
        try:
            percent = float(text[:-1]) if text.endswith("%") else float(text) * 100
        except ValueError as error:
            raise click.BadParameter(
                f"expected a ratio such as 0.86 or 86% for {path}, found {text!r}", param_hint="--disk"
            ) from error
        if not 0 <= percent <= 100:
            raise click.BadParameter(
                f"expected a ratio from 0 to 1 (or 0% to 100%) for {path}, found {text!r}",
                param_hint="--disk",
            )
        levels[str(Path(path).absolute())] = round(percent)
    return levels
