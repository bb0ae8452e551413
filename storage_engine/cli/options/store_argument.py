"""The argument STORE with its options, or an Airflow connection. A command receives either as one object.

Further options describe the store's running broker. They are made from the table of settings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from storage_engine.cli.options.options import (
    CONN_ID,
    SECOND_LAKE,
    journal_of,
    lake_of,
    policy_option,
    policy_values,
    setting_option,
    store_of_connection,
)
from storage_engine.cli.options.stores_file import SECRET_KEY, NamedStore, find_named, named_stores
from storage_engine.cli.shell.shared_options import NAMED, GroupedOption, wants_json
from storage_engine.cli.shell.values import NamedPath, key_value_pairs, time_zone
from storage_engine.commands import Command, Text
from storage_engine.core.host import ANY_HOST
from storage_engine.core.wording import did_you_mean
from storage_engine.exceptions import BadInputError
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.model.broker import live
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.settings.policy import Policy
from storage_engine.model.settings.store_settings import SETTINGS, STORE_SETTINGS, TLS_ON, TLS_UNVERIFIED

if TYPE_CHECKING:
    from storage_engine.retention.store.managed_store import ManagedStore

Function = Callable[..., Any]
DecoratedFunction = TypeVar("DecoratedFunction", bound=Function)

_UNVERIFIED = "tls_unverified"
_LIVE_NAMES = tuple(setting.name for setting in STORE_SETTINGS if setting.live)
_FLAGGED = ("deletes", "hold")
"""Settings with two choices. Their option chooses the second one."""
LIVE_OPTIONS = (
    *map(setting_option, _LIVE_NAMES),
    GroupedOption(
        ["--tls-unverified", _UNVERIFIED],
        group="Running broker",
        is_flag=True,
        help="With TLS: trust any certificate.",
    ),
)
"""Options of every command that takes a store."""


def with_live_broker(command: DecoratedFunction) -> DecoratedFunction:
    """Give a command the options of a running broker. It receives the broker as ``live``."""

    @wraps(command)
    def called(*arguments: Any, **values: Any) -> Any:
        given = {str(option.name): values.pop(str(option.name)) for option in LIVE_OPTIONS}
        return command(*arguments, live=live_broker(given), **values)

    _add_parameters(called, LIVE_OPTIONS)
    return called  # type: ignore[return-value]


def _add_parameters(command: Function, parameters: Sequence[click.Parameter]) -> None:
    """Add parameters as click.option does: a decorated function has them in reverse order."""
    command.__dict__.setdefault("__click_params__", []).extend(reversed(parameters))


def address_options(broker: str | None) -> str:
    """Return the options that name a running broker, for a message.

    :param broker: name of the broker's kind; None means any kind.
    """
    from storage_engine.brokers import broker_names, find_broker

    kinds = broker_names() if broker is None else (broker,)
    return " or ".join(
        dict.fromkeys(name for kind in kinds for name in find_broker(kind).words.address_options)
    )


def live_broker(
    values: Mapping[str, Any], kind: Callable[[], str | None] = lambda: None
) -> LiveBroker | None:
    """Return the broker that runs on the store; None if it is stopped.

    :param values: the options' values by their names.
    :param kind: returns the name of the store's kind of broker, for a message; None means any kind.
    :raises click.UsageError: options contradict each other, or an option is missing.
    """
    settings = {name: values[SETTINGS[name].own_field] for name in _LIVE_NAMES}
    if values[_UNVERIFIED] and not settings["tls"]:
        raise click.UsageError(f"--tls-unverified: expected {_shown_option('tls')} with it, found none.")
    if not (settings["broker_address"] or settings["name_servers"] or settings["client_config"]):
        # Options from the environment have no effect without a typed broker.
        if typed := [
            _shown_option(name)
            for name in filter(settings.get, settings)
            if click.get_current_context().get_parameter_source(SETTINGS[name].own_field)
            is not ParameterSource.ENVIRONMENT
        ]:
            expected = address_options(kind())
            raise click.UsageError(f"{', '.join(typed)}: expected {expected} with it, found none.")
        return None
    tls = TLS_UNVERIFIED if values[_UNVERIFIED] else TLS_ON if settings["tls"] else None
    settings |= {name: SETTINGS[name].choices[1] for name in _FLAGGED if settings[name]}
    broker = live.live_broker({**settings, "tls": tls}, _refuse, _shown_option)
    access_key = settings["conn_id"] or ""
    secret_key = os.environ.get(SECRET_KEY, "") if access_key else ""
    if access_key and not secret_key:
        raise click.UsageError(
            f"{_shown_option('conn_id')}: expected the secret key in {SECRET_KEY}, found none."
        )
    return replace(broker, access_key=access_key, secret_key=secret_key)


def _shown_option(name: str) -> str:
    return SETTINGS[name].option


def _refuse(name: str, expected: str, found: object) -> click.UsageError:
    return click.UsageError(f"{_shown_option(name)}: expected {expected}, found {found or 'none'}.")


def installed_broker(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    """Make sure that a broker of this name is installed; a click callback."""
    from storage_engine.brokers import broker_names

    if name is not None and name not in broker_names():
        raise click.BadParameter(
            f"expected one of {', '.join(broker_names())}, found {name!r}", context, parameter
        )
    return name


def _check_name(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    if name is not None and not name.strip():
        raise click.BadParameter("expected a name, found an empty one", context, parameter)
    return name


NAME = GroupedOption(
    ["--name"],
    group="Store",
    metavar="NAME",
    callback=_check_name,
    help="The name of STORE; default: its known name, else the last part of its path.",
)
"""Option of commands that find a store in its journal."""

STORE_OPTIONS = (
    setting_option("broker_conf", type=NamedPath()),
    setting_option("overrides", multiple=True, callback=key_value_pairs),
    setting_option("time_zone", callback=time_zone),
    setting_option("broker_type", callback=installed_broker),
    setting_option("mode", type=bool, default=False),
)
"""Options of every command that takes a store."""
SHARED_STORE_OPTIONS = (*STORE_OPTIONS, NAME)

_SHOWN = {"store": "STORE", "name": "--name", "live": "options of a running broker"}
_SHOWN |= {
    str(option.name): option.opts[0] for option in (*STORE_OPTIONS, lake_of(required=False), SECOND_LAKE)
}
_OVERRIDES = {"broker_conf", "overrides", "time_zone", "lake_dir", "second_lake_dir"}
"""Options that a call may give in addition to a store's name."""
_EITHER = "Expected STORE and --lake DIRECTORY, or --conn-id ID"
_STORE_OR_CONNECTION = "Expected STORE, or --conn-id ID"


class StoreArgument(NamedPath):
    """The argument STORE: a path, or a store's name in the file of stores, which stands for the path."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        named = find_named(value) if isinstance(value, str) else None
        if named is None or ctx is None:
            return super().convert(value, param, ctx)
        ctx.meta[NAMED] = named
        lakes = {"lake_dir": named.path("lake"), "second_lake_dir": named.path("second_lake")}
        ctx.default_map = {name: str(path) for name, path in lakes.items() if path is not None}
        return named.path("root")


def takes_store(
    *,
    required: bool = True,
    lake: bool | None = True,
    second_lake: bool = False,
    connection: bool = False,
    each: bool = False,
    named: bool = True,
    settings: bool = True,
    looks: bool = True,
    policy: tuple[str, ...] = (),
) -> Callable[[Function], Function]:
    """Give a command the argument STORE and its options. The command receives the store as ``managed``.

    :param required: whether STORE must be given. If not, ``managed`` may be None, and a command without
        --conn-id also receives ``lake_dir``.
    :param lake: whether the store has a lake; None if that depends on --lake.
    :param connection: whether --conn-id may be given instead of all these options.
    :param each: whether a call without arguments means each store in the file of stores. Then ``managed`` is
        None.
    :param named: whether a store that has a lake may be named by --name.
    :param settings: whether --set is a setting of the store. Otherwise the command has its own option --set.
    :param looks: whether the command reads the store. Otherwise this account needs no right to read it.
    :param policy: settings of the policy for which the command has options.
    """

    def decorate(command: Function) -> Function:
        @wraps(command)
        def called(*arguments: Any, **values: Any) -> Any:
            given = {name: values.pop(name) for name in taken}
            if not (required or connection):
                values["lake_dir"] = given["lake_dir"]
            if (named := click.get_current_context().meta.get(NAMED)) is not None:
                of_file = _named_store(named, given, values, policy)
                for name in (*live_names, *policy, "conn_id"):
                    values.pop(name, None)
                return command(*arguments, managed=of_file, **values)
            live = live_broker({name: values.pop(name) for name in live_names}, lambda: _broker_of(given))
            chosen = Policy(**policy_values({name: values.pop(name) for name in policy}))
            conn_id = values.pop("conn_id", None)
            if conn_id is not None:
                _check_no_fields({**given, "live": live}, policy)
                managed = store_of_connection(conn_id)
            elif given["store"] is not None:
                if connection and lake and given["lake_dir"] is None:
                    raise click.UsageError(f"{_EITHER}; found no --lake.")
                if not looks:
                    given["broker_type"] = given["broker_type"] or _broker_if_readable(given["store"])
                managed = managed_store(**given, live=live, policy=chosen)
            elif each and not (wants_json() or any(values.values())) and named_stores():
                managed = None
            elif connection:
                raise click.UsageError(f"{_EITHER if lake else _STORE_OR_CONNECTION}; found no STORE.")
            else:
                useless = {name: value for name, value in given.items() if name != "lake_dir"}
                if names := _option_names({**useless, "live": live}):
                    raise click.UsageError(f"{names}: expected STORE, found none.")
                managed = None
            return command(*arguments, managed=managed, **values)

        # Eager: an error about a missing lake depends on the store's kind.
        store = click.Argument(
            ["store"], type=StoreArgument(), required=required and not connection, is_eager=True
        )
        connections = [CONN_ID] if connection else []
        policies = [policy_option(name) for name in policy]
        _add_parameters(called, [store, *own, *lakes, *connections, *LIVE_OPTIONS, *policies])
        return called

    lakes = [] if lake is False else [lake_of(required=lake is True and not connection)]
    lakes += [SECOND_LAKE] if second_lake else []
    own = [option for option in STORE_OPTIONS if settings or option.name != "overrides"]
    own += [NAME] if named and lake else []
    taken = ["store", *(str(option.name) for option in (*own, *lakes))]
    live_names = [str(option.name) for option in LIVE_OPTIONS]
    return decorate


def _check_no_fields(given: Mapping[str, object], policy: tuple[str, ...]) -> None:
    """Refuse --conn-id with an option for which the connection has a field.

    :raises click.UsageError: the call has such an option.
    """
    source_of = click.get_current_context().get_parameter_source
    typed = [policy_option(name) for name in policy if source_of(name) is ParameterSource.COMMANDLINE]
    if names := ", ".join(filter(None, (_option_names(given), *(option.opts[0] for option in typed)))):
        raise click.UsageError(f"--conn-id: expected no option for a field of the connection, found {names}.")


def _broker_of(given: Mapping[str, Any]) -> str | None:
    """Return the name of the given store's broker, or None if no store is given."""
    from storage_engine.brokers import broker_of

    broker: str | None = given["broker_type"]
    return broker_of(given["store"]) if broker is None and given["store"] is not None else broker


def _broker_if_readable(store: Path) -> str:
    """Return the name of a store's broker; the default broker's name if the files don't decide."""
    from storage_engine.brokers import broker_of, default_broker

    try:
        return broker_of(store)
    except BadInputError:
        return default_broker()


def managed_store(
    store: Path,
    lake_dir: Path | None = None,
    *,
    name: str | None = None,
    broker_conf: Path | None = None,
    overrides: Mapping[str, str] = MappingProxyType({}),
    time_zone: str | None = None,
    broker_type: str | None = None,
    mode: bool = False,
    second_lake_dir: Path | None = None,
    live: LiveBroker | None = None,
    policy: Policy | None = None,
) -> ManagedStore:
    """Return the store that a command line names. Without a lake it has no journal; see :func:`has_lake`.

    A person at a shell names a path on this host, so the store gets no host.
    """
    from storage_engine.brokers import broker_of, store_around, store_text, stores_in
    from storage_engine.retention.store.managed_store import ManagedStore

    if mode and live is not None:
        raise click.UsageError("--engine: expected no running broker with it, found one.")
    base = (lake_dir or Path()).absolute()
    if broker_type is None and store_around(store.absolute()) is None and (inside := stores_in(store)):
        raise BadInputError(
            f"{store}: expected a store, found a directory that contains a store. Nothing was changed. "
            f"Did you mean {' or '.join(map(str, inside))}?"
        )
    broker = broker_type or broker_of(store)
    _check_settings(broker, overrides)
    return ManagedStore(
        name=store_text(name, broker, store.absolute()),
        root=str(store.absolute()),
        broker=broker,
        broker_conf=None if broker_conf is None else str(broker_conf.absolute()),
        overrides=dict(overrides),
        time_zone=time_zone,
        lake=LakeConfig.local(base),
        journal_url="" if lake_dir is None else journal_of(base),
        report_dir=str(base / "reports"),
        policy=policy or Policy(),
        second_lake=None if second_lake_dir is None else LakeConfig.local(second_lake_dir.absolute()),
        host=ANY_HOST,
        live=live,
        named=name is not None,
        engine=mode,
    )


def _named_store(
    named: NamedStore, given: Mapping[str, Any], values: Mapping[str, Any], policy: tuple[str, ...]
) -> ManagedStore:
    """Return a store of the file of stores, changed by the options of a call.

    :param given: parameters that name a store. If the call names no lake, they contain the file's lakes.
    :param values: values of all other parameters.
    :raises click.UsageError: the call gives an option that only the file may contain.
    """
    context = click.get_current_context()
    typed = {
        name: value
        for name, value in {**given, **values}.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE and name != "store"
    }
    of_file = {*(str(option.name) for option in LIVE_OPTIONS), *given, "conn_id"} - _OVERRIDES
    if fixed := of_file & typed.keys():
        params = context.command.params
        listed = ", ".join(sorted(param.opts[0] for param in params if param.name in fixed))
        raise click.UsageError(
            f"{named.source}: expected no option for a setting that only the file may have, found {listed}. "
            "Nothing was changed."
        )
    store = named.managed(given.get("lake_dir"), given.get("second_lake_dir"))
    overrides = typed.get("overrides", {})
    _check_settings(store.broker, overrides)
    chosen = {name: typed[name] for name in policy if name in typed}
    broker_conf: Path | None = typed.get("broker_conf")
    return replace(
        store,
        broker_conf=store.broker_conf if broker_conf is None else str(broker_conf.absolute()),
        time_zone=typed.get("time_zone", store.time_zone),
        overrides={**store.overrides, **overrides},
        policy=_with_options(named, store.policy, policy_values(chosen)),
    )


def _with_options(named: NamedStore, policy: Policy, chosen: Mapping[str, Any]) -> Policy:
    """Return a store's policy, changed by the options of a call.

    :raises click.UsageError: the call asks for less approval than the file does.
    """
    approval = chosen.get("approval", policy.approval)
    if approval.rank < policy.approval.rank:
        raise click.UsageError(
            f"{named.source}: expected --approval {policy.approval.value}, as in the file, or more, found "
            f"{approval.value}. Nothing was changed. To lower it, change the file."
        )
    return replace(policy, **chosen)


def _check_settings(broker: str, overrides: Mapping[str, str]) -> None:
    """Refuse a typed setting without effect, although such a setting may be in broker.conf.

    :raises click.BadParameter: a typed setting has no effect.
    """
    from storage_engine.brokers import find_broker

    names = find_broker(broker).settings.known if overrides else None
    if names is None:
        return
    for name in sorted(set(overrides) - names):
        raise click.BadParameter(
            Text(
                "expected a setting that has an effect on storage-engine, found "
                f"{name!r}.{did_you_mean(name, names)} Nothing was changed. ",
                Command("inspect"),
                " lists them. Other settings stay in broker.conf, and have no effect here.",
            ),
            param_hint="--set",
        )


def has_lake(managed: ManagedStore) -> bool:
    """Return whether a command line named a lake. The journal is in the lake's directory."""
    return bool(managed.journal_url)


def _option_names(given: Mapping[str, object]) -> str:
    return ", ".join(_SHOWN[name] for name, value in given.items() if value)
