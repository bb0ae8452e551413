"""The parts of a running broker's store, and a look at broker and log for a hold. No call changes them."""

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
from storage_engine.rocketmq.hold.hold_state import (
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
from storage_engine.rocketmq.live.identity import ask_and_look, check_same_store, explain_unproven, left_open
from storage_engine.rocketmq.remoting.admin import BrokerAdmin
from storage_engine.rocketmq.remoting.masters import BrokerGroup, Replicas
from storage_engine.rocketmq.store.broker import RocketMQBrokerStore
from storage_engine.same_bytes.trusted_times import mount_of


def observe(parts: LiveParts, now_ms: int, state: HoldState | None = None) -> Observed:
    """Return the present state of broker and log. The broker is asked before the files are listed.

    :param state: state of a hold. If it shows that another broker is the master now, these files need not be
        that broker's, and no error is raised: drift will report it.
    :raises BrokerError: the broker doesn't answer.
    :raises BadInputError: the directory isn't this broker's store.
    """
    layout = parts.layout
    config = parts.admin.config()

    def look() -> tuple[tuple[SeenFile, ...], list[MappedFile]]:
        with as_who_may_read(layout.root):
            files = list_files(layout.log_paths)
        return files, [MappedFile(Path(file.path), file.base_offset, file.size_bytes) for file in files]

    info, files, listed = ask_and_look(parts.admin, look)
    observed = Observed(
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
    if state is not None and has_moved(state, observed):
        return replace(observed, unproven=explain_unproven(parts.admin, info, layout, listed))
    if state is not None and observed.role == SLAVE:
        return observed
    if check_same_store(parts.admin, info, layout, listed):
        return observed
    return replace(observed, unproven=left_open(parts.admin, layout))


def find_replicas(
    parts: LiveParts, settings: Mapping[str, str], is_replicated: Callable[[], bool] = lambda: False
) -> Replicas:
    """Find other brokers with the broker's name, also those that earlier looks have seen.

    :param is_replicated: returns whether a lake's data show that the broker has replicas.
    :raises BrokerError: the broker doesn't answer.
    """
    admin, live = parts.admin, parts.live

    def boot_timestamp_ms() -> int:
        return admin.runtime_info().boot_timestamp_ms

    group = BrokerGroup(settings, access_of(live), admin.address, boot_timestamp_ms, live.name_servers)
    addresses = known_replicas(parts.memory, settings)
    return group.find_replicas(addresses, lambda: admin.has_slaves() or is_replicated())


def below_the_first_file(observed: Observed, state: HoldState | None) -> tuple[str, ...]:
    """Return a notice if the broker serves segments whose files are gone.

    A broker continues to serve segments that other programs remove while it loads its store or runs. While it
    deletes, its min offset is too low for a moment. So the first file must be the same as at the last look.
    """
    first = observed.files[0].base_offset if observed.files else 0
    if state is None or not state.segments or state.segments[0][0] != first or observed.min_offset >= first:
        return ()
    return (
        f"broker {observed.address} says that its log begins at {observed.min_offset}, but its first file at "
        f"{first}: what is before that was removed while the broker loaded the store or had it open, not by "
        "the broker, which serves it from memory. Restart the broker, which puts that right",
    )


def saved_settings(broker_conf: str | None) -> SavedSettings:
    """Return the values of :data:`HELD_SETTINGS` in broker.conf (java.util.Properties syntax)."""
    if broker_conf is None:
        return SavedSettings()
    try:
        properties = javaproperties.loads(read_file(Path(broker_conf), MAX_CONF_BYTES))
    except (OSError, ValueError, CorruptFileError) as error:
        return SavedSettings(broker_conf, None, reason_text(error))
    values: dict[str, str] = {key: properties[key].strip() for key in HELD_SETTINGS if key in properties}
    return SavedSettings(broker_conf, values)


def mount_point(directory: Path) -> str:
    """Return the mount point of a directory's file system; "" if unknown."""
    mount = mount_of(directory)
    return "" if mount is None else mount.point


def list_files(directories: tuple[Path, ...]) -> tuple[SeenFile, ...]:
    """List the log's files, sorted by name, without empty ones. A file that vanishes is left out."""
    files = []
    for path, _ in list_raw_files(directories):
        if not is_offset(path.name):
            continue
        try:
            stat = path.lstat()
        except FileNotFoundError:
            continue
        if stat.st_size:
            files.append(
                SeenFile(
                    base_offset=int(path.name),
                    path=str(path),
                    inode=stat.st_ino,
                    size_bytes=stat.st_size,
                    mtime_ns=stat.st_mtime_ns,
                    ctime_ns=stat.st_ctime_ns,
                )
            )
    return tuple(files)


class Session:
    """Connection of one process to a store's master, also if another broker becomes the master.

    All :class:`LiveStore` objects of one ``open_live`` share it. Closing one such object closes the
    connection.

    :raises StorageEngineError: see :func:`reach`.
    """

    def __init__(self, live: LiveBroker) -> None:
        self._live = live
        self._admin = reach(live)
        self._former: list[BrokerAdmin] = []

    @property
    def admin(self) -> BrokerAdmin:
        return self._admin

    def renew(self) -> None:
        """Ask which broker is the master now. If it is the same one, the connection stays.

        :raises StorageEngineError: see :func:`reach`; ``admin`` then stays as it was.
        """
        admin = reach(self._live)
        if admin.address != self._admin.address:
            self._admin.close()
            # Code that has looked at the former master keeps asking it, which opens its connection again.
            self._former.append(self._admin)
            self._admin = admin

    def close(self) -> None:
        """Close the connection, and those to former masters. The next request opens a new one."""
        for admin in (self._admin, *self._former):
            admin.close()


@dataclass(frozen=True, slots=True)
class LiveParts:
    """The parts of a running broker's store.

    :param admin: the broker that was the master when the store was opened.
    :param opened_by: settings with which the store was opened, such as the path of broker.conf.
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
        return self.files.files.layout

    @property
    def root(self) -> Path:
        return self.layout.root

    @property
    def broker_conf(self) -> str | None:
        """Return the path of broker.conf on this host; None if it wasn't given."""
        return self.opened_by.broker_conf
