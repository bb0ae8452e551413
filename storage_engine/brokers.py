"""The installed brokers, by name. Each is an entry point of the group ``storage_engine.brokers``."""

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
    """Return the broker with this name.

    :raises BadInputError: no broker with this name is installed, or the object isn't a broker.
    """
    installed = _read_entry_points()
    if name in installed:
        return _load(name, installed[name])
    if (broker := _import_broker(name)) is not None:
        return broker
    names = ", ".join(sorted(installed)) or "none"
    raise BadInputError(
        f"broker_type: expected a broker that is installed ({names}), found {name!r}. Nothing was changed. "
        "Install its package in this environment, or name another broker."
    )


def broker_names() -> tuple[str, ...]:
    return tuple(sorted(_read_entry_points()))


@cache
def default_broker() -> str:
    """Return the broker of stores and lakes that name no broker.

    :raises BadInputError: no installed broker is the default.
    """
    own = f"{__package__}."
    for name, points in sorted(_read_entry_points().items()):
        if points[0].value.startswith(own) and find_broker(name).is_default:
            return name
    raise BadInputError(
        f"entry points {GROUP}: expected the broker of stores that name no broker, found "
        f"{', '.join(broker_names()) or 'none'}. Install this package again."
    )


def kind_option(broker: str) -> str:
    """Return a command's option for a broker, with a space before it; "" for the default broker."""
    return "" if broker == default_broker() else f" --broker-type {broker}"


def broker_of(root: str | os.PathLike[str]) -> str:
    """Return the broker of a store's files. If the path is no store, return the default broker.

    :raises BadInputError: several brokers recognize the store, or a broker can't be asked.
    """
    real_path = Path(os.path.realpath(root))
    names = [name for name in broker_names() if _store_around(name, real_path) == real_path]
    if len(names) > 1:
        raise BadInputError(
            f"{root}: expected the store of one broker, found files that may be a store of "
            f"{' or '.join(names)}. Nothing was changed. Name its broker: --broker-type at the shell, "
            "broker_type in a connection."
        )
    return names[0] if names else default_broker()


def store_text(name: str | None, broker: str, root: str | os.PathLike[str]) -> str:
    """Return a store's name for output: its recorded name, else a default name made from its path.

    :param name: its recorded name; None if no name is recorded.
    :param root: its present or former path, which need not exist on this host.
    """
    if name:
        return name
    try:
        return find_broker(broker).places.default_name(Path(root))
    except (BadInputError, OSError):
        return Path(root).name


def same_companions(broker: str, archived: Sequence[Companion], found: Sequence[Companion]) -> bool:
    """Return whether a segment's companion files equal the archived companion files, by name and content."""
    same = find_broker(broker).receipts.same_companion
    contents = {file.name: file.content for file in archived}
    return has_companions(broker, contents, [file.name for file in found]) and all(
        same(file.name, contents[file.name], file.content) for file in found
    )


def has_companions(broker: str, archived: Iterable[str], found: Iterable[str]) -> bool:
    """Return whether a segment has the companion files that were archived with it, by name.

    Files that its broker removes by itself may be missing: then the lake has more than the deletion removes.
    Additional files aren't allowed.
    """
    proven, present = set(archived), set(found)
    return present <= proven and all(map(find_broker(broker).receipts.drops_companion, proven - present))


def store_around(path: Path) -> Path | None:
    """Return the root of the store that ``path`` is or is inside of; None if no broker has a store there.

    :raises BadInputError: a broker can't be asked.
    """
    roots = (_store_around(name, path) for name in broker_names())
    return next((root for root in roots if root is not None), None)


def stores_in(directory: Path) -> tuple[Path, ...]:
    """Return the files directly in a directory that are roots of stores, such as a broker's settings file."""
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
            "Nothing was changed. Check its permissions, or run the same command as its owner."
        ) from error
    except Exception as error:
        # Another package's code may raise anything. An unknown place must not be written to.
        raise BadInputError(
            f"{path}: expected broker {name} to say whether one of its stores is there, found "
            f"{type(error).__name__}: {error}. Nothing was changed. Mend or uninstall its package."
        ) from error


def engine_of(broker: str, where: str, done: str) -> BrokerEngine:
    """Return the engine that writes a broker's stores.

    :param done: the request as a participle, for the message "stores are <done> only by their broker".
    :raises BadInputError: only the broker itself writes them.
    """
    kind = find_broker(broker)
    if kind.engine is None:
        raise BadInputError(
            f"{where}: stores of {kind.words.title} are {done} only by their broker. Nothing was changed."
        )
    return kind.engine


def cleanups_of(broker: str, live: LiveBroker | None) -> Cleanups:
    """Return when segments of the broker's stores may be deleted.

    :param live: the running broker of the store; None if it is stopped.
    :raises BrokerPackageError: the package gives no valid answer, so that nothing may be deleted.
    """
    kind = find_broker(broker)
    try:
        cleanups: object = kind.cleanups(live)
    except (Exception, SystemExit) as error:
        cleanups = error
    if not isinstance(cleanups, Cleanups):
        raise BrokerPackageError(
            f"broker {broker}: expected cleanups to be one of {', '.join(map(str, Cleanups))}, found "
            f"{cleanups!r:.400}. Nothing was changed. Mend the package that brings the broker."
        )
    return cleanups


def client_connection_of(broker: str) -> str:
    """Return the type of Airflow connections with a broker's client settings; "" if only keys are needed."""
    running = find_broker(broker).running
    return "" if running is None else running.client_connection


def forget() -> None:
    """Clear the caches, so that installed brokers are searched again at the next request."""
    for cached in (find_broker, default_broker, _read_entry_points):
        cached.cache_clear()


@cache
def _read_entry_points() -> dict[str, tuple[EntryPoint, ...]]:
    """Return entry points by name. One package may be found twice, if it is at two places on the path."""
    points: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=GROUP):
        points[point.name] = (*points.get(point.name, ()), point)
    return points


def _import_broker(name: str) -> Broker | None:
    """Return this package's broker of this name, even if the package isn't installed; None without one."""
    if not name.isidentifier():
        return None
    module = f"{__package__}.{name}"
    try:
        broker = getattr(importlib.import_module(module), "BROKER", None)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return None
    return broker if isinstance(broker, Broker) else None


def _load(name: str, points: tuple[EntryPoint, ...]) -> Broker:
    values = sorted({point.value for point in points})
    where = f"entry point {name} = {' and '.join(values)} of the group {GROUP}"
    if len(values) > 1:
        raise BadInputError(
            f"{where}: expected one package with a broker of that name, found {len(values)}. Nothing was "
            "changed. Uninstall all but one."
        )

    def refuse(expected: str, found: str) -> BadInputError:
        return BadInputError(
            f"{where}: expected {expected}, found {found}. Nothing was changed. Mend or uninstall its "
            "package."
        )

    try:
        broker = points[0].load()
        if isinstance(broker, Broker):
            refuse_former_members(broker, FORMER_MEMBERS)
        parts = {part: getattr(broker, part, None) for part in PARTS}
    except (Exception, SystemExit) as error:
        # Another package's module may raise anything.
        raise refuse("a module that can be imported", f"{type(error).__name__}: {error}") from error
    if not isinstance(broker, Broker) or broker.name != name:
        raise refuse("an instance of Broker with that name", repr(broker))
    for part, classes in PARTS.items():
        if not isinstance(parts[part], classes):
            expected = " or ".join(cls.__name__ for cls in classes)
            raise refuse(f"{part} to be an object of {expected}", repr(parts[part]))
    return broker
