"""Options that several commands share, and what they amount to."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import click

from storage_engine.brokers import broker_of
from storage_engine.cli.live_options import with_live_broker
from storage_engine.cli.stated import broker_type_option, named_broker_type, stated_name
from storage_engine.lake.config import CATALOG_FILE, DESCRIPTION, LakeConfig
from storage_engine.model.live import LiveBroker
from storage_engine.model.policy import (
    LONGEST_UNDO_HOURS,
    SHIELD_GIVE_UP_PERCENT,
    ArchiveMode,
    LagPolicy,
    PendingPolicy,
    Policy,
    ShieldMode,
)
from storage_engine.retention.brokers import open_store
from storage_engine.retention.clock import clock_ms
from storage_engine.retention.host import ANY_HOST
from storage_engine.retention.managed_store import ManagedStore

Command = TypeVar("Command", bound=Callable[..., Any])

_JOURNAL = "journal.db"
"""In a lake's directory, of the stores that a person at a shell manages."""


class TargetPath(click.Path):
    """A path to write to. An empty one, as of an unset shell variable, is not the working directory."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        if value == "":
            self.fail("expected a path, found an empty one. Nothing was changed.", param, ctx)
        return super().convert(value, param, ctx)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def store_options(*, required: bool = True) -> Callable[[Command], Command]:
    """STORE, its broker.conf, single broker settings, the zone its deleteWhen is meant in, and the broker
    that runs on it, which the command gets as ``live``."""

    def decorate(command: Command) -> Command:
        command = with_live_broker(command)
        for option in (
            broker_type_option,
            click.option(
                "--time-zone",
                metavar="ZONE",
                help="IANA zone deleteWhen is meant in; default: this machine's.",
            ),
            click.option(
                "--set",
                "overrides",
                metavar="KEY=VALUE",
                multiple=True,
                callback=key_value_pairs,
                help="A broker setting that wins over broker.conf, such as fileReservedTime=24; repeatable.",
            ),
            click.option(
                "--broker-conf",
                type=click.Path(path_type=Path),
                help="The broker's own config file; default: the broker's defaults.",
            ),
            click.argument("store", type=click.Path(path_type=Path), required=required),
        ):
            command = option(command)
        return command

    return decorate


def lake_option(*, required: bool = True) -> Callable[[Command], Command]:
    """The lake that a command works with. It has to be there: only ``init-lake`` makes one."""
    return click.option(
        "--lake",
        "lake_dir",
        type=click.Path(path_type=Path, file_okay=False),
        required=required,
        callback=_lake_that_is_there,
        help="Directory of the lake; its catalog, warehouse, journal and reports lie in it.",
    )


def _lake_that_is_there(context: click.Context, parameter: click.Parameter, lake: Path | None) -> Path | None:
    """Refuse a directory without a lake before anything is written: its disk may not be mounted."""
    if lake is not None and not any(
        os.path.lexists(lake / name) for name in (CATALOG_FILE, DESCRIPTION, _JOURNAL)
    ):
        raise click.BadParameter(
            f"expected a lake in {lake.absolute()}, found none. Nothing was created. Mount its disk, name "
            f"another directory, or make a lake there: storage-engine init-lake --lake {lake}",
            context,
            parameter,
        )
    return lake


second_lake_option = click.option(
    "--second-lake",
    "second_lake_dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of a second lake, which takes over while the lake can't be reached; either proves.",
)


pending_policy_option = click.option(
    "--pending-policy",
    type=click.Choice([policy.value for policy in PendingPolicy]),
    default=PendingPolicy.WARN.value,
    show_default=True,
    help="What becomes of segments with timers, delayed or half messages that the broker still owes.",
)


def _speed(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    speed = size_bytes(context, parameter, text)
    if speed == 0 and text is not None and text.strip() != "0":
        raise click.BadParameter(f"expected 0 or at least one byte, found {text!r}", context, parameter)
    return speed


minimum_retention_option = click.option(
    "--minimum-retention-hours",
    type=click.IntRange(min=1),
    metavar="HOURS",
    help="Nothing deletes a segment sooner after its last write, whatever forces it; default: no minimum.",
)


archive_limit_option = click.option(
    "--archive-bytes-per-second",
    metavar="SIZE",
    callback=_speed,
    help="Read and write at most so much a second while archiving, such as 50MB; 0: no limit. "
    "Default: 20MB beside a running broker, but in an emergency; else no limit.",
)


give_up_option = click.option(
    "--shield-give-up-percent",
    type=click.IntRange(min=1, max=100),
    default=SHIELD_GIVE_UP_PERCENT,
    show_default=True,
    metavar="PERCENT",
    help="Above this level of its disk what only the shield has is given up for space; 100: never.",
)


def policy_options(command: Command) -> Command:
    for decorate in (
        click.option(
            "--undo-window-hours",
            type=click.IntRange(1, LONGEST_UNDO_HOURS),
            metavar="HOURS",
            help="Keep what goes in a quarantine for so long; undo brings it back. Default: no undo.",
        ),
        minimum_retention_option,
        pending_policy_option,
        click.option(
            "--lag-policy",
            type=click.Choice([policy.value for policy in LagPolicy]),
            default=LagPolicy.WARN.value,
            show_default=True,
            help="What becomes of segments that some consumer group still has to read.",
        ),
        click.option(
            "--archive-policy",
            type=click.Choice([mode.value for mode in ArchiveMode]),
            default=ArchiveMode.REQUIRED.value,
            show_default=True,
            help="Whether a segment may go without a receipt.",
        ),
    ):
        command = decorate(command)
    return command


def managed_store(
    store: Path,
    lake_dir: Path | None,
    broker_conf: Path | None = None,
    overrides: dict[str, str] | None = None,
    time_zone: str | None = None,
    lag_policy: str = LagPolicy.WARN.value,
    archive_policy: str = ArchiveMode.REQUIRED.value,
    second_lake_dir: Path | None = None,
    pending_policy: str = PendingPolicy.WARN.value,
    archive_bytes_per_second: int | None = None,
    live: LiveBroker | None = None,
    minimum_retention_hours: int | None = None,
    undo_window_hours: int | None = None,
    shield: ShieldMode = ShieldMode.AUTO,
    shield_give_up_percent: int = SHIELD_GIVE_UP_PERCENT,
) -> ManagedStore:
    """The store that a command line names. Without a lake, only steps that need none and no journal may be
    called.

    A person at a shell names what they see there, so any host will do.
    """
    base = (lake_dir or Path()).absolute()
    if time_zone is not None:
        check_time_zone(time_zone)
    name = stated_name()
    return ManagedStore(
        name=name or store.absolute().name,
        root=str(store.absolute()),
        broker=named_broker_type() or broker_of(store),
        broker_conf=None if broker_conf is None else str(broker_conf.absolute()),
        overrides=overrides or {},
        time_zone=time_zone,
        lake=LakeConfig.local(base),
        journal_url="" if lake_dir is None else journal_of(base),
        report_dir=str(base / "reports"),
        policy=Policy(
            archive=ArchiveMode(archive_policy),
            lag_policy=LagPolicy(lag_policy),
            pending_policy=PendingPolicy(pending_policy),
            archive_bytes_per_second=archive_bytes_per_second,
            minimum_retention_hours=minimum_retention_hours,
            undo_window_hours=undo_window_hours,
            shield=shield,
            shield_give_up_percent=shield_give_up_percent,
        ),
        second_lake=None if second_lake_dir is None else LakeConfig.local(second_lake_dir.absolute()),
        host=ANY_HOST,
        live=live,
        named=name is not None,
    )


def journal_of(lake_dir: Path) -> str:
    """The journal that lies in a lake's directory."""
    return f"sqlite:///{lake_dir.absolute() / _JOURNAL}"


def check_store(managed: ManagedStore) -> None:
    """Look at the store before anything is recorded: bad input leaves no trace, not even a run.

    :raises BadInputError: it is no store, or one that can't be planned.
    """
    broker = open_store(managed)
    broker.snapshot(clock_ms())
    broker.checkpoint()


def check_time_zone(name: str) -> None:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError) as error:
        raise click.BadParameter(
            f"expected an IANA time zone such as Asia/Shanghai, found {name!r}", param_hint="--time-zone"
        ) from error


def moment_ms(text: str, time_zone: str | None, *, option: str) -> int:
    """Milliseconds since the epoch of a time given as ``option``.

    :param time_zone: zone of a time that names none itself; None: this machine's.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(
            f"expected a time such as 2026-11-20T04:10 or 2026-11-20T04:10+08:00, found {text!r}",
            param_hint=option,
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=ZoneInfo(time_zone)) if time_zone else moment.astimezone()
    return round(moment.timestamp() * 1000)


def disk_percents(pairs: dict[str, str]) -> dict[str, int]:
    """Levels of ``--disk PATH=RATIO``: a fraction such as 0.86, or a percentage such as 86%.

    :return: by absolute path, as the store's own are; a relative one is taken from here, as STORE is.
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


def person() -> str:
    """Return who is at the shell, for the journal, by the real user id: anybody may set LOGNAME.

    Of root it is also who became root by sudo, which only root's environment can be believed in.
    """
    name = _user_name(os.getuid())
    behind = os.environ.get("SUDO_USER", "") if os.getuid() == 0 else ""
    return f"{name} for {behind}" if behind and behind != name else name


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # as in a container
        return f"uid {uid}"


def key_value_pairs(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """Options of the form KEY=VALUE as a dictionary; a click callback."""
    pairs = {}
    for value in values:
        key, separator, text = value.partition("=")
        if not separator or not key:
            raise click.BadParameter(f"expected KEY=VALUE, found {value!r}")
        pairs[key] = text
    return pairs


def size_bytes(_context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """A size such as 10GiB, 500 MB or 4096 in bytes; a click callback."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGTP]?)(i?)B?\s*", text, re.IGNORECASE)
    if match is None or (match[3] and not match[2]):
        raise click.BadParameter(
            f"expected a size such as 10GiB, 500MB or 4096, found {text!r}", param=parameter
        )
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGTP".index(unit.upper() or " "))
