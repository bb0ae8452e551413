"""The brokers that are installed, by name: each is an entry point of the group ``storage_engine.brokers``."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from storage_engine.exceptions import BadInputError, BrokerPackageError
from storage_engine.model.broker.broker_store import refuse_former_members
from storage_engine.model.broker.kind import FORMER_MEMBERS, PARTS, Broker, BrokerEngine, Cleanups
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.proof.receipt import Companion

GROUP = "storage_engine.brokers"


@cache
def find_broker(name: str) -> Broker:
    """Return the broker of this name.

    :raises BadInputError: none is installed, or the one under this name is no broker.
    """
    installed = _installed()
    if name in installed:
        return _load(name, installed[name])
    if (own := _of_this_package(name)) is not None:
        return own
    known = ", ".join(sorted(installed)) or "none"
    raise BadInputError(
        f"broker_type: expected a broker that is installed ({known}), found {name!r}. Nothing was changed. "
        f"Install its package where this runs, or name another."
    )


def broker_names() -> tuple[str, ...]:
    """Return the names of all installed brokers."""
    return tuple(sorted(_installed()))


@cache
def default_broker() -> str:
    """Return the broker of stores and lakes that name none.

    :raises BadInputError: no installed broker takes them.
    """
    own = f"{__package__}."
    for name, points in sorted(_installed().items()):
        if points[0].value.startswith(own) and find_broker(name).is_default:
            return name
    raise BadInputError(
        f"entry points {GROUP}: expected the broker of stores that name none, found "
        f"{', '.join(broker_names()) or 'none'}. Install this package again."
    )


def kind_option(broker: str) -> str:
    """Return the option, behind a space, by which commands are told a broker that isn't the default one."""
    return "" if broker == default_broker() else f" --broker-type {broker}"


def broker_of(root: str | os.PathLike[str]) -> str:
    """Tell from a store's files which broker's they are; of what is no store, the default one.

    :raises BadInputError: several brokers take the store for theirs, or one that may can't be asked.
    """
    real = Path(os.path.realpath(root))
    found = [name for name in broker_names() if _store_around(name, real) == real]
    if len(found) > 1:
        raise BadInputError(
            f"{root}: expected the store of one broker, found what may be one of {' or '.join(found)}. "
            "Nothing was changed. Name its broker: --broker-type at the shell, broker_type in a connection."
        )
    return found[0] if found else default_broker()


def store_called(name: str | None, broker: str, root: str | os.PathLike[str]) -> str:
    """Return a store's name in every output: its own, or the one that its kind makes from its place.

    :param name: that it is known by; None: it has none.
    :param root: where it lies, or lay; it need not be on this host.
    """
    if name:
        return name
    try:
        return find_broker(broker).places.default_name(Path(root))
    except (BadInputError, OSError):
        return Path(root).name


def same_companions(broker: str, archived: Sequence[Companion], found: Sequence[Companion]) -> bool:
    """Return whether further files of a segment equal the archived ones, by name and by content.

    :param broker: the name of the segment's.
    """
    same, known = find_broker(broker).receipts.same_companion, {one.name: one.content for one in archived}
    return has_companions(broker, known, [one.name for one in found]) and all(
        same(one.name, known[one.name], one.content) for one in found
    )


def has_companions(broker: str, archived: Iterable[str], found: Iterable[str]) -> bool:
    """Return whether a segment has the further files that were archived with it, by name. What its broker
    removes by itself may be missing: then the lake has more than goes.

    :param broker: the name of the segment's.
    """
    proven, there = set(archived), set(found)
    return there <= proven and all(map(find_broker(broker).receipts.drops_companion, proven - there))


def store_around(path: Path) -> Path | None:
    """Return the root of the store, of any broker, that ``path`` is or among whose own files it lies.

    :raises BadInputError: a broker can't be asked.
    """
    found = (_store_around(name, path) for name in broker_names())
    return next((root for root in found if root is not None), None)


def stores_in(directory: Path) -> tuple[Path, ...]:
    """Return the files right in a directory that are stores by themselves, as one broker's settings are."""
    try:
        files = sorted(path for path in directory.resolve().iterdir() if path.is_file())
    except OSError:
        return ()
    return tuple(path for path in files if store_around(path) == path)


def _store_around(name: str, path: Path) -> Path | None:
    broker = find_broker(name)
    try:
        return broker.places.store_around(path)
    except PermissionError as error:
        raise BadInputError(
            f"{path}: expected a place that this process may look into, found {error.strerror}. "
            "Nothing was changed. Check its permissions, or run this as the user that it belongs to."
        ) from error
    except Exception as error:
        # Whatever another package's code raises: unknown is no leave to write there.
        raise BadInputError(
            f"{path}: expected broker {name} to tell whether a store of its own is there, found "
            f"{type(error).__name__}: {error}. Nothing was changed. Mend or uninstall its package."
        ) from error


def engine_of(broker: str, where: str, done: str) -> BrokerEngine:
    """Return the engine that writes a broker's stores.

    :param broker: its name.
    :param where: the store's root.
    :param done: the request, as in "stores are <done>".
    :raises BadInputError: nothing but the broker itself writes them.
    """
    kind = find_broker(broker)
    if kind.engine is None:
        raise BadInputError(
            f"{where}: stores of {kind.words.title} are {done} by their broker alone. Nothing was changed."
        )
    return kind.engine


def cleanups_of(broker: str, live: LiveBroker | None) -> Cleanups:
    """Return when a broker's stores are held and deleted from.

    :param broker: its name.
    :param live: the broker that runs on the store; None: it is stopped.
    :raises BrokerPackageError: its package doesn't say, and so nothing may be done by it.
    """
    kind = find_broker(broker)
    try:
        found: object = kind.cleanups(live)
    except (Exception, SystemExit) as error:
        found = error
    if not isinstance(found, Cleanups):
        raise BrokerPackageError(
            f"broker {broker}: expected cleanups to be one of {', '.join(map(str, Cleanups))}, found "
            f"{found!r:.400}. Nothing was changed. Mend the package that brings the broker."
        )
    return found


def client_connection_of(broker: str) -> str:
    """Return the type of the Airflow connections that have a client's settings; "": keys alone are given."""
    running = find_broker(broker).running
    return "" if running is None else running.client_connection


def forget() -> None:
    """Look again for what is installed, when a broker is next asked for."""
    for known in (find_broker, default_broker, _installed):
        known.cache_clear()


@cache
def _installed() -> dict[str, tuple[EntryPoint, ...]]:
    """Entry points by name. One package may be found twice, where it lies in two places on the path."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=GROUP):
        found[point.name] = (*found.get(point.name, ()), point)
    return found


def _of_this_package(name: str) -> Broker | None:
    """Return a broker that comes with this package, where that lies on the path without being installed."""
    if not name.isidentifier():
        return None
    module = f"{__package__}.{name}"
    try:
        found = getattr(importlib.import_module(module), "BROKER", None)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return None
    return found if isinstance(found, Broker) else None


def _load(name: str, points: tuple[EntryPoint, ...]) -> Broker:
    values = sorted({point.value for point in points})
    where = f"entry point {name} = {' and '.join(values)} of the group {GROUP}"
    if len(values) > 1:
        raise BadInputError(
            f"{where}: expected one package with a broker of that name, found {len(values)}. Nothing was "
            "changed. Uninstall all but one."
        )
    try:
        found = points[0].load()
        if isinstance(found, Broker):
            refuse_former_members(found, FORMER_MEMBERS)
        parts = {part: getattr(found, part, None) for part in PARTS}
    except (Exception, SystemExit) as error:
        # Whatever another package's module raises.
        raise BadInputError(
            f"{where}: expected a module that can be imported, found {type(error).__name__}: {error}. "
            "Nothing was changed. Mend or uninstall its package."
        ) from error
    if not isinstance(found, Broker) or found.name != name:
        raise BadInputError(
            f"{where}: expected an instance of Broker with that name, found {found!r}. Nothing was changed. "
            "Mend or uninstall its package."
        )
    for part, classes in PARTS.items():
        if not isinstance(parts[part], classes):
            expected = " or ".join(one.__name__ for one in classes)
            raise BadInputError(
                f"{where}: expected {part} to be an object of {expected}, found {parts[part]!r}. Nothing was "
                "changed. Mend or uninstall its package."
            )
    return found
