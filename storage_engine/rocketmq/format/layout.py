"""Places of a store's files, the check that its layout is a known one, and whose a directory is.

Only looks; never creates a missing directory (a disk that isn't mounted must not look like an empty store).

Whose directories these are: a broker that finds strange files among its own does not start.
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
"""Directory of a store's log, where its settings name no other (StorePathConfigHelper)."""
_EPOCHS = "epochFileCheckpoint"
"""Beside the log of a broker that a controller gives its role (MessageStoreConfig#getStorePathEpochFile)."""
IDENTITY = "brokerIdentity"
"""Cluster, name and id of such a broker (MessageStoreConfig#getStorePathBrokerIdentity)."""
_RIGHTS = ("acls", "users")
"""Databases of who may do what, below config, which say nothing of messages (AuthConfig)."""


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """A store's paths (StorePathConfigHelper, CommitLog#<init>), without symbolic links in them.

    :param segment_size_bytes: mappedFileSizeCommitLog where it is set; None: as the files are.
    :param timers_in_rocksdb: timerRocksDBEnable, as the settings have it.
    :param halves_in_rocksdb: transRocksDBEnable likewise.
    :param archive_only: why nothing may be deleted of it: what else the store has that points into its log
        can't be read here. "": it can.
    :param reading: tells others that this process reads the store, as long as it may.
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
        """Every directory that may hold segments."""
        return tuple(dict.fromkeys(self.commitlog_paths + self.read_only_paths))

    @property
    def dependent_directories(self) -> tuple[Path, ...]:
        """Return the directories of files that point into the log."""
        return (self.consumequeue, self.consumequeue_ext, self.batchconsumequeue, self.index)

    @property
    def directories(self) -> tuple[Path, ...]:
        """Return where any of the store's files are."""
        return tuple(dict.fromkeys((self.root, *self.log_paths, *self.dependent_directories, self.config)))

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def abort(self) -> Path:
        """Exists while a broker runs, and after one that did not stop cleanly."""
        return self.root / "abort"

    @property
    def lock(self) -> Path:
        """Opened by ``store_lock`` alone: closing any descriptor of it drops the process's lock."""
        return self.root / "lock"

    def check_cleanable(self) -> None:
        """Make sure that segments of the store may be deleted.

        :raises UnsupportedLayoutError: it is for archiving alone.
        """
        if self.archive_only:
            raise UnsupportedLayoutError(self.archive_only)

    @property
    def rocksdb(self) -> Path:
        """In every store of 5.4 and later, whatever is in it."""
        return self.root / "rocksdbstore"


def resolve_layout(config: BrokerConfig, *, to_archive: bool = False) -> StoreLayout:
    """Find a store's directories and refuse layouts by name that we can't handle.

    The root, the log's directories and those of one kind of file may be symbolic links, which are resolved
    here, once. Nothing below them may.

    :param to_archive: also where the log alone is in a form that is read here, such as one whose queues are
        in RocksDB: every message is in the log. Its ``archive_only`` says so, and nothing may be deleted.
    :raises StoreNotFoundError: the root or a configured commitlog directory is missing.
    :raises UnsupportedLayoutError: RocksDB, DLedger or compaction.
    :raises StoreLayoutError: a directory of it is another store's, or a symbolic link leads where its owner
        could not have put it.
    """
    named = Path(config.store_path_root_dir)
    _require_directory(named, "the store's root directory")
    root = Path(os.path.realpath(named))
    unhandled = _unhandled(root, config)
    if unhandled and not (to_archive and unhandled[0] in _LOG_AS_USUAL):
        raise _unsupported(root, *unhandled)
    usual = root / LOG
    hint = container_hint([f"storePathCommitLog={usual}"]) if usual.is_dir() else ""
    for path in config.store_path_commit_log:
        _require_directory(Path(path), "a commitlog directory", _stores_nearby(root), hint)
    for path in config.read_only_commit_log_store_paths:
        _require_directory(Path(path), "a commitlog directory", _stores_nearby(root))
    layout = store_layout(root, config)
    return replace(layout, archive_only=Text(_unsupported(root, *unhandled))) if unhandled else layout


def store_layout(root: Path, config: BrokerConfig) -> StoreLayout:
    """Return a store's directories, which need not be there.

    :param root: without symbolic links in it.
    :raises StoreLayoutError: as :func:`resolve_layout`.
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
    """Resolve a directory of a store, and make sure that it is this store's.

    Whoever may write the root may put a link there, so that one leads only where its owner may delete.

    :raises StoreLayoutError: it is in another store, or another user's.
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
    """Return whether two names are one file, as in a directory that is mounted twice."""
    try:
        return os.path.samestat(left.lstat(), right.lstat())
    except FileNotFoundError:
        return False


def list_segments(layout: StoreLayout) -> tuple[MappedFile, ...]:
    """The commitlog's files by base offset, over all its directories.

    :raises StoreNotFoundError: there is none.
    :raises StoreLayoutError: a wrong name or size, a hole, or one base offset on two paths.
    """
    files = list_mapped_files(layout.log_paths, error=StoreLayoutError, size_bytes=layout.segment_size_bytes)
    if not files:
        paths = ", ".join(str(path) for path in layout.log_paths)
        raise StoreNotFoundError(
            f"{paths}: no segment file: expected files of a commitlog, found an empty store. "
            "Name the directory that the broker's storePathRootDir names."
        )
    return files


def is_new(layout: StoreLayout) -> bool:
    """Return whether no message was ever stored: the first one makes the first segment and queue files.

    A log that was emptied, or whose disk isn't mounted, leaves queues or index files.
    """
    return not any(
        map(_has_file, (*layout.log_paths, layout.consumequeue, layout.batchconsumequeue, layout.index))
    )


def _has_file(directory: str | Path) -> bool:
    """Return whether any file lies below one of them, directories left out. Stops at the first, which a log
    has at once.
    """
    try:
        entries = os.scandir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return False
    with entries:
        return any(not entry.is_dir(follow_symlinks=False) or _has_file(entry.path) for entry in entries)


def _stores_nearby(root: Path) -> list[Path]:
    """Return the stores that a person may have meant who named a directory inside or above a store."""
    nearby = [root.parent]
    with suppress(OSError):
        nearby += sorted(root.iterdir())
    return [path for path in nearby if os.access(path / LOG / ".", os.X_OK)]


def _require_directory(path: Path, what: str, stores: Sequence[Path] = (), elsewhere: str = "") -> None:
    """:param elsewhere: what to say where an absolute path isn't here."""
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
        f"{path}: expected {what}, found {'a file' if path.exists() else 'nothing'}. "
        f"Check the path and that its disk is mounted.{hint}"
    )


_ROCKSDB = "defaultrocksdb"
"""StoreType#DEFAULT_ROCKSDB in small letters, as a broker compares it."""
_QUEUES_IN_ROCKSDB = "RocksDB consume queue"
_CONFIGURATION_IN_ROCKSDB = "RocksDB configuration"
_COMPACTION = "compaction topics"
_OF_ROCKSDB = re.compile(r"CURRENT|IDENTITY|LOCK|LOG(\.old\.\d+)?|(MANIFEST|OPTIONS)-\d+|\d+\.(sst|log|blob)")
"""Names of a database's files (rocksdb/file/filename.cc)."""
_DLEDGER = "DLedger commitlog"
_LOG_AS_USUAL = (_QUEUES_IN_ROCKSDB, _CONFIGURATION_IN_ROCKSDB, _COMPACTION)
"""Features that leave the commitlog as it is: every message is in it, whatever points there."""


def unhandled_setting(config: BrokerConfig) -> tuple[str, str] | None:
    """Return data that a broker keeps in a form that we don't handle, and the setting for it; None: none."""
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
    """Return whether a broker keeps its queues in RocksDB, and all else in a form that we handle."""
    only_queues = replace(config, store_type="default")
    return config.store_type.lower() == _ROCKSDB and unhandled_setting(only_queues) is None


def _unhandled(root: Path, config: BrokerConfig) -> tuple[str, str] | None:
    """Return the data that a store keeps in a form that we don't handle, and the sign of it; None: none.

    What has another log than the usual one comes first.
    """
    found = list(_unhandled_all(root, config))
    return min(found, key=lambda one: one[0] in _LOG_AS_USUAL, default=None)


def _unhandled_all(root: Path, config: BrokerConfig) -> Iterator[tuple[str, str]]:
    if unhandled := unhandled_setting(config):
        yield unhandled
    # RocksDBConsumeQueueStore keeps its database in consumequeue itself, or beside it with
    # useSeparateStorePathForRocksdbCQ; ConfigStorage in config/rdb, the managers of config v1 in one each
    for directory in ("consumequeue", "consumequeue_rocksdb"):
        if file := _file_of_rocksdb(root / directory):
            yield _QUEUES_IN_ROCKSDB, file
    for database in sorted(root.glob("config/*/")):
        if database.name not in _RIGHTS and (file := _file_of_rocksdb(database)):
            yield _CONFIGURATION_IN_ROCKSDB, file
    for found in sorted(root.glob("dledger-*")):
        yield _DLEDGER, str(found)
    # a broker with compaction enabled (the default) leaves an empty position-checkpoint behind
    for directory in ("compaction/compactionLog", "compaction/compactionCq"):
        for found in (path for path in (root / directory).rglob("*") if path.is_file()):
            yield _COMPACTION, str(found)


def _file_of_rocksdb(directory: Path) -> str:
    """Return the path of a database's file in a directory, even of a partial copy; "": there is none."""
    try:
        entries = os.scandir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    with entries:
        # A queue's topic, whatever its name, is a directory.
        names = (entry for entry in entries if _OF_ROCKSDB.fullmatch(entry.name))
        return next((entry.path for entry in names if not entry.is_dir(follow_symlinks=False)), "")


def _unsupported(root: Path, kind: str, where: str) -> UnsupportedLayoutError:
    advice = (
        Text(
            " Archive its log all the same (",
            Command("archive"),
            "), and leave deleting to its broker: what consumers have not read, and what is still pending, "
            "can't be told from here.",
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

    A broker that it makes a slave cuts off what its new master doesn't have (AutoSwitchHAClient#doTruncate),
    and no file says up to where that can't be: the checkpoint of a slave has the offset that its master
    sent, which is the master's end unless ``allAckInSyncStateSet`` is set (CommitLog#getConfirmOffset), and
    that of a broker without a controller has its own end.

    :return: also where the settings don't say, and the broker kept beside its log what only such ones keep.
    """
    says = config.raw.get(CONTROLLER_MODE, "").strip().lower()
    return says == "true" or (says != "false" and (layout.root / _EPOCHS).exists())


_ANCHORS = ("commitlog", "consumequeue")
_USUAL = (*_ANCHORS, "index", "config", "checkpoint", "lock", "abort")

_OWN = frozenset(
    {
        *_USUAL,
        "abort.bak",
        "batchconsumequeue",
        "brokerIdentity",
        "combineconsumequeue",
        "compaction",
        "consumequeue_ext",
        "consumequeue_rocksdb",
        "controllerDleger",
        "epochFileCheckpoint",
        "kvStore",
        "rocksdbstore",
        "tieredStore",
        "timerlog",
        "timerrocksdb",
        "timerwheel",
        "transrocksdb",
    }
)
"""Files that releases from 4.9 to 5.5 keep in a store's root (StorePathConfigHelper and its callers)."""


def store_around(path: Path) -> Path | None:
    """See :meth:`storage_engine.model.broker.kind.Places.store_around`."""
    real = Path(os.path.realpath(path))
    for root in (real, *real.parents):
        if _is_store(root) and (root == real or real.relative_to(root).parts[0] in _OWN):
            return root
    return None


def _is_store(root: Path) -> bool:
    if not any((root / name).is_dir() for name in _ANCHORS):
        return False
    return sum((root / name).exists() for name in _USUAL) > 1
