"""A running broker's store in its parts, and a look at broker and log for a hold. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import javaproperties

from storage_engine.core.untrusted import read_file
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import CorruptFileError
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.hold import HoldMemory
from storage_engine.rocketmq.format.broker_config import MAX_CONF_BYTES
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.format.mapped_files import MappedFile, is_offset, list_raw_files
from storage_engine.rocketmq.hold.state import (
    HELD_SETTINGS,
    ROLE,
    SLAVE,
    HoldState,
    Observed,
    SavedSettings,
    SeenFile,
    known_replicas,
)
from storage_engine.rocketmq.live.connect import access_of, as_who_may_read, reach
from storage_engine.rocketmq.live.drift import has_moved
from storage_engine.rocketmq.live.identity import ask_and_look, check_same_store, left_open, why_unproven
from storage_engine.rocketmq.remoting.admin import BrokerAdmin
from storage_engine.rocketmq.remoting.masters import BrokerGroup, Replicas
from storage_engine.rocketmq.store.broker import RocketMQBrokerStore
from storage_engine.same_bytes.trusted_times import mount_of


def observe(parts: LiveParts, now_ms: int, state: HoldState | None = None) -> Observed:
    """Return the present state; the broker is asked before the files are listed.

    :param state: of a hold: if another broker is the master by now, it is no error that these files aren't
        its own, since that drift tells more.
    :raises BrokerError: the broker can't be asked.
    :raises BadInputError: the directory isn't this broker's store.
    """
    layout = parts.layout
    config = parts.admin.config()

    def look() -> tuple[tuple[SeenFile, ...], list[MappedFile]]:
        with as_who_may_read(layout.root):
            files = list_files(layout.log_paths)
        return files, [MappedFile(Path(file.path), file.base_offset, file.size_bytes) for file in files]

    info, files, listed = ask_and_look(parts.admin, look)
    found = Observed(
        at_ms=now_ms,
        address=parts.admin.address,
        boot_timestamp_ms=info.boot_timestamp_ms,
        min_offset=info.commitlog_min_offset,
        max_offset=info.commitlog_max_offset,
        settings=config,
        role=config.get(ROLE, ""),
        files=files,
        saved=saved_settings(parts.broker_conf),
        log_paths={str(path): mount_point(path) for path in layout.log_paths if path.is_dir()},
    )
    if state is not None and has_moved(state, found):
        return replace(found, unproven=why_unproven(parts.admin, info, layout, listed))
    if state is not None and found.role == SLAVE:
        return found
    if check_same_store(parts.admin, info, layout, listed):
        return found
    return replace(found, unproven=left_open(parts.admin, layout))


def find_replicas(
    parts: LiveParts, settings: Mapping[str, str], is_replicated: Callable[[], bool] = lambda: False
) -> Replicas:
    """Ask for other brokers of the broker's name, also those that earlier looks have seen.

    :param settings: the broker's.
    :param is_replicated: whether a lake tells that it has replicas.
    :raises BrokerError: the broker can't be asked.
    """
    admin, live = parts.admin, parts.live
    group = BrokerGroup(
        settings,
        access_of(live),
        admin.address,
        lambda: admin.runtime_info().boot_timestamp_ms,
        live.name_servers,
    )
    known = known_replicas(parts.memory, settings)
    return group.find_replicas(known, lambda: admin.has_slaves() or is_replicated())


def below_the_first_file(found: Observed, state: HoldState | None) -> tuple[str, ...]:
    """Say that the broker serves from segments that aren't there; nothing where it doesn't.

    A broker that was loading its store, or running, while others removed segments goes on serving them. While
    it deletes, its min offset is behind for a moment, so that only what a look before saw, too, counts.
    """
    first = found.files[0].base_offset if found.files else 0
    if state is None or not state.segments or state.segments[0][0] != first or found.min_offset >= first:
        return ()
    said = (
        f"broker {found.address} says that its log begins at {found.min_offset}, but its first file at "
        f"{first}: what is before that was removed while the broker loaded the store or had it open, not by "
        "the broker, which serves it from memory. Restart the broker, which puts that right"
    )
    return (said,)


def saved_settings(broker_conf: str | None) -> SavedSettings:
    """Return broker.conf's values of the settings that a hold depends on (java.util.Properties syntax)."""
    if broker_conf is None:
        return SavedSettings()
    try:
        properties = javaproperties.loads(read_file(Path(broker_conf), MAX_CONF_BYTES))
    except (OSError, ValueError, CorruptFileError) as error:
        return SavedSettings(broker_conf, None, reason_text(error))
    values: dict[str, str] = {key: properties[key].strip() for key in HELD_SETTINGS if key in properties}
    return SavedSettings(broker_conf, values)


def mount_point(directory: Path) -> str:
    """Return where the file system is mounted that a directory lies on; "": the system doesn't say."""
    mount = mount_of(directory)
    return "" if mount is None else mount.point


def list_files(directories: tuple[Path, ...]) -> tuple[SeenFile, ...]:
    """A file that goes in the middle of it is one that went before."""
    seen = []
    for path, _ in list_raw_files(directories):
        if not is_offset(path.name):
            continue
        try:
            stat = path.lstat()
        except FileNotFoundError:
            continue
        if stat.st_size:
            seen.append(
                SeenFile(
                    base_offset=int(path.name),
                    path=str(path),
                    inode=stat.st_ino,
                    size_bytes=stat.st_size,
                    mtime_ns=stat.st_mtime_ns,
                    ctime_ns=stat.st_ctime_ns,
                )
            )
    return tuple(seen)


class Session:
    """One process' connection with a store's broker: opened once, led to a new master, and closed.

    Shared by all looks at a store that came of one opening, so that closing any of them closes it.

    :param live: how the broker is reached.
    :raises StorageEngineError: as :func:`reach` does.
    """

    def __init__(self, live: LiveBroker) -> None:
        self._live = live
        self._admin = reach(live)
        self._former: list[BrokerAdmin] = []

    @property
    def admin(self) -> BrokerAdmin:
        """Return the master as it was known last."""
        return self._admin

    def renew(self) -> None:
        """Ask which broker is the master by now. Where it is the same one, the connection stays.

        :raises StorageEngineError: as :func:`reach` does; the master is the one of before then.
        """
        admin = reach(self._live)
        if admin.address != self._admin.address:
            self._admin.close()
            # Who has looked at that broker goes on asking it, and not another one, which connects again.
            self._former.append(self._admin)
            self._admin = admin

    def close(self) -> None:
        """End the connection, and those with former masters; the next request opens another."""
        for admin in (self._admin, *self._former):
            admin.close()


@dataclass(frozen=True, slots=True)
class LiveParts:
    """A running broker's store in its parts.

    :param session: has the connection, and ends it.
    :param admin: the broker that was the master when the store was looked at.
    :param files: the store's files, by the broker's live settings.
    :param settings: those settings, as the broker says them.
    :param opened_by: how it is reached, and the broker's config file if it was named.
    """

    session: Session
    admin: BrokerAdmin
    files: RocketMQBrokerStore
    settings: Mapping[str, str]
    live: LiveBroker
    memory: HoldMemory | None
    opened_by: StoreSettings

    @property
    def layout(self) -> StoreLayout:
        """Return where the store's files lie."""
        return self.files.files.layout

    @property
    def root(self) -> Path:
        """Return the store's root directory."""
        return self.layout.root

    @property
    def broker_conf(self) -> str | None:
        """The broker's config file as it is named here; None: none was named."""
        return self.opened_by.broker_conf
