"""Paths of a store's files, and checks that its layout is supported and that each directory belongs to it.

Nothing is created: an unmounted disk must not look like an empty store. A broker that finds foreign files
among its own does not start, so each directory must belong to this store.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from storage_engine.commands import Command, Text
from storage_engine.core.turns import SharedLock
from storage_engine.exceptions import StoreLayoutError, StoreNotFoundError, UnsupportedLayoutError
from storage_engine.rocketmq.format.broker_config import CONTROLLER_MODE, BrokerConfig, container_hint
from storage_engine.rocketmq.format.mapped_files import MappedFile, list_mapped_files

LOG = "commitlog"
"""Default directory of a store's log (StorePathConfigHelper)."""
_EPOCHS = "epochFileCheckpoint"
"""File of a broker whose role a controller decides (MessageStoreConfig#getStorePathEpochFile)."""
IDENTITY = "brokerIdentity"
"""File with cluster, name and id of a broker whose role a controller decides
(MessageStoreConfig#getStorePathBrokerIdentity).
"""
_RIGHTS = ("acls", "users")
"""Databases of access rights below config (AuthConfig). They have nothing about messages."""


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """A store's paths (StorePathConfigHelper, CommitLog#<init>), with symbolic links resolved.

    :param segment_size_bytes: mappedFileSizeCommitLog. If it is None, the size of existing files counts.
    :param archive_only: reason why nothing may be deleted from the store, or "". The reason is that files
        which point into the log have a form that can't be read here.
    :param reading: lock with which this process shows that it reads the store, if it may take the lock.
    """

    root: Path
    commitlog_paths: tuple[Path, ...]
    read_only_paths: tuple[Path, ...]
    consumequeue: Path
    consumequeue_ext: Path
    batchconsumequeue: Path
    index: Path
    config: Path
    segment_size_bytes: int | None
    timers_in_rocksdb: bool = False
    halves_in_rocksdb: bool = False
    archive_only: str = ""
    reading: SharedLock = field(default_factory=SharedLock, repr=False, compare=False)

    @property
    def log_paths(self) -> tuple[Path, ...]:
        """Return every directory that may contain segments."""
        return tuple(dict.fromkeys(self.commitlog_paths + self.read_only_paths))

    @property
    def dependent_directories(self) -> tuple[Path, ...]:
        """Return the directories of files that point into the log."""
        return (self.consumequeue, self.consumequeue_ext, self.batchconsumequeue, self.index)

    @property
    def directories(self) -> tuple[Path, ...]:
        """Return all directories that contain files of the store."""
        return tuple(dict.fromkeys((self.root, *self.log_paths, *self.dependent_directories, self.config)))

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def abort(self) -> Path:
        """Return the path of ``abort``. The file exists while a broker runs, and after an unclean stop."""
        return self.root / "abort"

    @property
    def lock(self) -> Path:
        """Return the path of the broker's lock file. Only ``store_lock`` may open it: closing any descriptor
        of the file drops the process's lock.
        """
        return self.root / "lock"

    def check_cleanable(self) -> None:
        """:raises UnsupportedLayoutError: the store may only be archived."""
        if self.archive_only:
            raise UnsupportedLayoutError(self.archive_only)

    @property
    def rocksdb(self) -> Path:
        """Return RocksDB's directory. Every store of 5.4 and later has it, even without data in it."""
        return self.root / "rocksdbstore"


def resolve_layout(config: BrokerConfig, *, to_archive: bool = False) -> StoreLayout:
    """Find a store's directories, and refuse unsupported layouts by name.

    The root and the directories of files may be symbolic links, resolved once here. Links inside are refused.

    :param to_archive: also accept a store of which only the log can be read here, for example because its
        queues are in RocksDB. Then ``archive_only`` is set in the layout, and nothing may be deleted.
    :raises StoreNotFoundError: the root or a configured commitlog directory is missing.
    :raises UnsupportedLayoutError: the store uses RocksDB, DLedger or compaction.
    :raises StoreLayoutError: a directory is another store's, or is a link whose owner is neither root nor
        its target's owner.
    """
    named = Path(config.store_path_root_dir)
    _require_directory(named, "the store's root directory")
    root = Path(os.path.realpath(named))
    # An unusual form of the log itself comes first.
    unhandled = min(_iter_unhandled(root, config), key=lambda item: item[0] in _LOG_AS_USUAL, default=None)
    if unhandled and not (to_archive and unhandled[0] in _LOG_AS_USUAL):
        raise _unsupported_error(root, *unhandled)
    usual = root / LOG
    hint = container_hint([f"storePathCommitLog={usual}"]) if usual.is_dir() else ""
    for path in config.store_path_commit_log:
        _require_directory(Path(path), "a commitlog directory", _stores_nearby(root), hint)
    for path in config.read_only_commit_log_store_paths:
        _require_directory(Path(path), "a commitlog directory", _stores_nearby(root))
    layout = store_layout(root, config)
    return replace(layout, archive_only=Text(_unsupported_error(root, *unhandled))) if unhandled else layout


def store_layout(root: Path, config: BrokerConfig) -> StoreLayout:
    """Return the directories of a store with a resolved root. They need not exist.

    :raises StoreLayoutError: see :func:`resolve_layout`.
    """

    def own(path: str | Path) -> Path:
        return _own_directory(root, Path(path))

    return StoreLayout(
        root=root,
        commitlog_paths=tuple(map(own, config.store_path_commit_log)),
        read_only_paths=tuple(map(own, config.read_only_commit_log_store_paths)),
        consumequeue=own(root / "consumequeue"),
        consumequeue_ext=own(root / "consumequeue_ext"),
        batchconsumequeue=own(root / "batchconsumequeue"),
        index=own(root / "index"),
        config=own(root / "config"),
        segment_size_bytes=config.mapped_file_size_commit_log_bytes,
        timers_in_rocksdb=config.timer_rocksdb_enable,
        halves_in_rocksdb=config.trans_rocksdb_enable,
        reading=SharedLock(map(own, config.store_path_commit_log)),
    )


def _own_directory(root: Path, path: Path) -> Path:
    """Resolve a directory of a store, and check that it belongs to this store.

    Anyone who may write to the store's root could put a link there. So a link's owner must be the user root,
    or the owner of the link's target, who may delete there anyway.

    :raises StoreLayoutError: the directory is in another store, or the link has another owner.
    """
    real = Path(os.path.realpath(path))
    link = path.lstat() if path.is_symlink() and path.parent.samefile(root) else None
    if link is not None and link.st_uid not in (0, real.stat().st_uid if real.exists() else 0):
        raise StoreLayoutError(
            f"{path}: expected a directory, or a symbolic link to one of the same owner, found a link of uid "
            f"{link.st_uid} to {real}. Nothing was changed. If it is right, have root make the link "
            f"(chown -h root {path})."
        )
    lock = real.parent / "lock"
    if real.parent != root and os.path.lexists(lock) and not _same_file(lock, root / "lock"):
        raise StoreLayoutError(
            f"{path}: expected a directory of the store {root}, found that it is another store's: "
            f"{real.parent} has a lock of its own. Nothing was changed. Check the paths in broker.conf; if "
            f"no broker uses {real.parent} any more, remove {lock}."
        )
    return real


def _same_file(left: Path, right: Path) -> bool:
    """Return whether two paths lead to the same file, for example in a directory that is mounted twice."""
    try:
        return os.path.samestat(left.lstat(), right.lstat())
    except FileNotFoundError:
        return False


def list_segments(layout: StoreLayout) -> tuple[MappedFile, ...]:
    """Return the commitlog's files from all its directories, sorted by base offset.

    :raises StoreNotFoundError: there is no file.
    :raises StoreLayoutError: a file has a wrong name or size, two have the same name, or there is a hole.
    """
    files = list_mapped_files(layout.log_paths, error=StoreLayoutError, size_bytes=layout.segment_size_bytes)
    if not files:
        raise StoreNotFoundError(
            f"{', '.join(map(str, layout.log_paths))}: no segment file: expected files of a commitlog, found "
            "an empty store. Name the directory that the broker's storePathRootDir names."
        )
    return files


def is_new(layout: StoreLayout) -> bool:
    """Return whether no message was ever stored: there are no files of the log, of queues or of the index.

    If only the log was emptied, or its disk isn't mounted, files of queues or index still exist.
    """
    return not any(
        map(_has_file, (*layout.log_paths, layout.consumequeue, layout.batchconsumequeue, layout.index))
    )


def _has_file(directory: str | Path) -> bool:
    """Return whether anything but directories lies below a directory. Stops at the first such file."""
    try:
        entries = os.scandir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return False
    with entries:
        return any(not entry.is_dir(follow_symlinks=False) or _has_file(entry.path) for entry in entries)


def _stores_nearby(root: Path) -> list[Path]:
    """Return stores just above and below a directory: a person may have named the wrong level."""
    nearby = [root.parent]
    with suppress(OSError):
        nearby += sorted(root.iterdir())
    return [path for path in nearby if os.access(path / LOG / ".", os.X_OK)]


def _require_directory(path: Path, expected: str, stores: Sequence[Path] = (), elsewhere: str = "") -> None:
    """Check that a directory exists.

    :param elsewhere: advice for an absolute path that doesn't exist.
    :raises StoreNotFoundError: the directory doesn't exist.
    """
    if path.is_dir():
        return
    hint = (
        elsewhere and f" {elsewhere}"
        if path.is_absolute()
        else f" The path is relative, so it was looked for in {Path.cwd()}, as the broker looks in its own "
        "working directory; ~ and ${...} are not expanded."
    )
    if stores:
        hint += f" Or name the store's root directory: did you mean {' or '.join(map(str, stores))}?"
    raise StoreNotFoundError(
        f"{path}: expected {expected}, found {'a file' if path.exists() else 'nothing'}. "
        f"Check the path and that its disk is mounted.{hint}"
    )


_ROCKSDB = "defaultrocksdb"
"""StoreType#DEFAULT_ROCKSDB in small letters: a broker ignores case."""
_QUEUES_IN_ROCKSDB = "RocksDB consume queue"
_CONFIGURATION_IN_ROCKSDB = "RocksDB configuration"
_COMPACTION = "compaction topics"
_OF_ROCKSDB = re.compile(r"CURRENT|IDENTITY|LOCK|LOG(\.old\.\d+)?|(MANIFEST|OPTIONS)-\d+|\d+\.(sst|log|blob)")
"""Names of a database's files (rocksdb/file/filename.cc)."""
_DLEDGER = "DLedger commitlog"
_LOG_AS_USUAL = (_QUEUES_IN_ROCKSDB, _CONFIGURATION_IN_ROCKSDB, _COMPACTION)
"""Features that don't change the commitlog, which still has every message."""


def unhandled_setting(config: BrokerConfig) -> tuple[str, str] | None:
    """Return a kind of data that a setting keeps in an unsupported form, and its setting; else None."""
    for kind, setting, is_set in (
        (_DLEDGER, "enableDLegerCommitLog", config.enable_dledger_commit_log),
        (_QUEUES_IN_ROCKSDB, f"storeType={config.store_type}", config.store_type.lower() != "default"),
        (_QUEUES_IN_ROCKSDB, "rocksdbCQDoubleWriteEnable", config.rocksdb_cq_double_write_enable),
        (
            _QUEUES_IN_ROCKSDB,
            "rocksdbCQSelectiveDoubleWriteEnable",
            config.rocksdb_cq_selective_double_write_enable,
        ),
        (_QUEUES_IN_ROCKSDB, "combineCQUseRocksdbForLmq", config.combine_cq_use_rocksdb_for_lmq),
        (_CONFIGURATION_IN_ROCKSDB, "configManagerVersion", config.config_manager_version.lower() == "v2"),
    ):
        if is_set:
            return kind, setting
    return None


def has_rocksdb_queues(config: BrokerConfig) -> bool:
    """Return whether a broker keeps its queues in RocksDB, and all other data in a supported form."""
    others = replace(config, store_type="default")
    return config.store_type.lower() == _ROCKSDB and unhandled_setting(others) is None


def _iter_unhandled(root: Path, config: BrokerConfig) -> Iterator[tuple[str, str]]:
    """Yield each kind of data that is kept in an unsupported form, and the file or setting that shows it."""
    if unhandled := unhandled_setting(config):
        yield unhandled
    # RocksDBConsumeQueueStore keeps its database in consumequeue itself, or beside it with
    # useSeparateStorePathForRocksdbCQ. ConfigStorage has config/rdb, and each manager of config v1 its own.
    for directory in ("consumequeue", "consumequeue_rocksdb"):
        if file := _file_of_rocksdb(root / directory):
            yield _QUEUES_IN_ROCKSDB, file
    for database in sorted(root.glob("config/*/")):
        if database.name not in _RIGHTS and (file := _file_of_rocksdb(database)):
            yield _CONFIGURATION_IN_ROCKSDB, file
    for entry in sorted(root.glob("dledger-*")):
        yield _DLEDGER, str(entry)
    # Compaction is enabled by default and makes an empty position-checkpoint, which shows nothing.
    for directory in ("compaction/compactionLog", "compaction/compactionCq"):
        for entry in (path for path in (root / directory).rglob("*") if path.is_file()):
            yield _COMPACTION, str(entry)


def _file_of_rocksdb(directory: Path) -> str:
    """Return the path of any RocksDB file in a directory, which may be a partial copy; "" without one."""
    try:
        entries = os.scandir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    with entries:
        # A topic may have such a name, but its queues lie in a directory.
        names = (entry for entry in entries if _OF_ROCKSDB.fullmatch(entry.name))
        return next((entry.path for entry in names if not entry.is_dir(follow_symlinks=False)), "")


def _unsupported_error(root: Path, kind: str, where: str) -> UnsupportedLayoutError:
    advice = (
        Text(
            " Archive its log all the same (",
            Command("archive"),
            "), and leave deleting to its broker: unread and pending messages can't be counted from here.",
        )
        if kind in _LOG_AS_USUAL
        else ""
    )
    return UnsupportedLayoutError(
        f"{root}: this store uses {kind} (seen by {where}), which this version doesn't handle: expected "
        "a file-based commitlog with file-based consume queues. Nothing was changed.",
        advice,
    )


def has_controller(config: BrokerConfig, layout: StoreLayout) -> bool:
    """Return whether a controller decides which broker is the master of this log.

    If the controller makes a broker a slave, the broker cuts off everything that its new master doesn't have
    (AutoSwitchHAClient#doTruncate). No file has the offset below which nothing can be cut off. A slave's
    checkpoint has the offset that its master sent; unless ``allAckInSyncStateSet`` is set, that is the
    master's end (CommitLog#getConfirmOffset). Without a controller, a broker writes its own end to its
    checkpoint.

    If enableControllerMode isn't set, a file that only brokers with a controller keep decides.
    """
    mode = config.raw.get(CONTROLLER_MODE, "").strip().lower()
    return mode == "true" or (mode != "false" and (layout.root / _EPOCHS).exists())


_ANCHORS = ("commitlog", "consumequeue")
_USUAL = (*_ANCHORS, "index", "config", "checkpoint", "lock", "abort")

_ALSO = """
    abort.bak batchconsumequeue brokerIdentity combineconsumequeue compaction consumequeue_ext
    consumequeue_rocksdb controllerDleger epochFileCheckpoint kvStore rocksdbstore tieredStore timerlog
    timerrocksdb timerwheel transrocksdb
"""
_OWN = frozenset({*_USUAL, *_ALSO.split()})
"""Files and directories in the root of a store of 4.9 to 5.5 (StorePathConfigHelper and its callers)."""


def store_around(path: Path) -> Path | None:
    """See :meth:`storage_engine.model.broker.kind.Places.store_around`."""
    real = Path(os.path.realpath(path))
    for root in (real, *real.parents):
        if _is_store(root) and (root == real or real.relative_to(root).parts[0] in _OWN):
            return root
    return None


def _is_store(root: Path) -> bool:
    has_anchor = any((root / name).is_dir() for name in _ANCHORS)
    return has_anchor and sum((root / name).exists() for name in _USUAL) > 1
