"""Places for a quarantine and the files in them: they are moved in, looked at, moved back, or removed.

A place is on the file system of the files, and not among a broker's own files. Each directory below a place's
base is opened by its name in the directory above. No symbolic link is followed there. A change is on disk
when its function returns.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import signal
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from storage_engine.brokers import find_broker, store_around
from storage_engine.commands import Command, Text, join_texts
from storage_engine.core import durable
from storage_engine.core.durable import DIRECTORY
from storage_engine.core.wording import bytes_text, reason_text
from storage_engine.exceptions import BadInputError, QuarantineError
from storage_engine.model.broker.broker_words import Aside
from storage_engine.retention.store.managed_store import ManagedStore, report_name, short_hash
from storage_engine.same_bytes.trusted_times import mount_of

MANIFEST = "run.json"
"""File in a run's directory that names its owner, for a person and for ``inspect``."""

STEP_BYTES = 64 << 20
"""Size of the steps in which a large file is cut, so that no broker on the disk waits long for one step."""

LEASED_KINDS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs"})
"""File systems on which a lease shows every process that has a file open or mapped.

An overlay hides mappings and other mounts' processes. FUSE and network file systems hide other machines.
"""

_PAUSE_SECONDS = 0.05
_SHRINKING = ".shrinking"

_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_LINK = os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a run's files on one file system.

    :param base: real path of a directory of that file system.
    :param parts: names of the directories from the base to the run's directory.
    :param below: real path of the directory from which the files were moved, or "" for the base. Under
        ``parts`` each file keeps its path relative to that directory.
    """

    base: str
    parts: tuple[str, ...]
    below: str = ""

    @property
    def directory(self) -> Path:
        return Path(self.base, *self.parts)

    def names(self, path: Path) -> tuple[str, ...]:
        """Return the names of the path from the run's directory to a file.

        :raises ValueError: the file was never below that directory.
        """
        return (Path(os.path.realpath(path.parent)) / path.name).relative_to(self.below or self.base).parts

    def covers(self, path: Path) -> bool:
        return Path(os.path.realpath(path.parent)).is_relative_to(self.below or self.base)


def make_place(place: Place, manifest: bytes) -> None:
    """Make a run's directory, 0700, with its manifest. An existing file stays as it is.

    :raises QuarantineError: something else has the name of one of its directories.
    """
    with opened(place, create=True) as directory:
        if _lstat(MANIFEST, directory) is not None:
            return
        with suppress(FileExistsError), durable.new_file(MANIFEST, ".tmp", dir_fd=directory) as new:
            new.file.write(manifest)
            os.fsync(new.file.fileno())
            new.publish()


def has_manifest(place: Place) -> bool:
    """Return whether a run's directory exists and has its manifest."""
    with suppress(OSError, QuarantineError), opened(place) as directory:
        return _lstat(MANIFEST, directory) is not None
    return False


def move_in(place: Place, path: Path, source: int) -> bool:
    """Move a file into a place. The caller fsyncs the file's former directory.

    :param source: descriptor of the file's directory: by now the path may lead elsewhere.
    :return: whether the file was there and was moved.
    :raises QuarantineError: the file isn't a regular one, or its name is taken in the place.
    """
    status = _lstat(path.name, source)
    if status is None:
        return False
    if not stat.S_ISREG(status.st_mode):
        raise QuarantineError(
            f"{path}: expected a regular file to set aside, found something else. It was not touched. Find "
            "out what it is."
        )
    *parents, name = place.names(path)
    with opened(place, *parents, create=True) as target:
        if _lstat(name, target) is not None:
            raise QuarantineError(
                f"{Path(place.directory, *parents, name)}: expected no file of this name before {path} is "
                "moved here, found a file. It was not touched. Find out who put it there."
            )
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
        os.fsync(target)
    return True


def move_back(place: Place, path: Path) -> None:
    """Move a file from a place back to where it was. Both directories are flushed when it returns.

    :raises QuarantineError: the file isn't in the place, or another file has its name by now.
    :raises OSError: its former directory doesn't exist.
    """
    *parents, name = place.names(path)
    with opened(place, *parents) as source, durable.opened(path.parent, _DIRECTORY_FLAGS) as target:
        if _lstat(path.name, target) is not None:
            raise QuarantineError(f"{path}: expected no file, found a file. It was not touched.")
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
        os.fsync(target)
        os.fsync(source)


def stat_in(place: Place, path: Path) -> os.stat_result | None:
    """Return the status of a file in a place, by its former path, or None if the file isn't there.

    :raises QuarantineError: one of the names above it isn't a directory.
    """
    *parents, name = place.names(path)
    try:
        with opened(place, *parents) as directory:
            return _lstat(name, directory)
    except FileNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class Contents:
    """:param files: number of files, without the manifest."""

    files: int = 0
    size_bytes: int = 0

    def __add__(self, other: Contents) -> Contents:
        return Contents(self.files + other.files, self.size_bytes + other.size_bytes)


def contents(place: Place) -> Contents:
    """Count the files of a place.

    :raises OSError: the place can't be read.
    """
    try:
        with opened(place) as directory:
            return _count(directory)
    except FileNotFoundError:
        return Contents()


def remove(place: Place, before_steps: Callable[[], object] | None = None) -> Contents:
    """Remove a run's directory with everything in it, and directories above it that are then empty.

    :param before_steps: called before each large file, which is cut in steps, or None if no file is cut.
    :return: number and size of the removed files.
    """
    *above, name = place.parts
    parent = Place(place.base, tuple(above))
    try:
        with opened(parent) as directory:
            removed = _remove(name, directory, before_steps)
            os.fsync(directory)
    except FileNotFoundError:
        if place.directory.exists():
            raise
        return Contents()
    remove_empty(parent)
    return removed


def remove_empty(place: Place) -> None:
    """Remove a place's directories if they are empty, the innermost first."""
    for depth in range(len(place.parts), 1, -1):
        *above, name = place.parts[:depth]
        try:
            with opened(Place(place.base, tuple(above))) as directory:
                os.rmdir(name, dir_fd=directory)
                os.fsync(directory)
        except OSError:
            return


def remove_empty_below(place: Place) -> None:
    """Remove a place's manifest and its directories without files. Directories with files stay."""
    try:
        with opened(place) as directory:
            for name in _names(directory):
                # A killed process may have left a temporary manifest.
                if name == MANIFEST or name.startswith(f".{MANIFEST}."):
                    os.unlink(name, dir_fd=directory)
                else:
                    _remove_directories(name, directory)
            os.fsync(directory)
    except FileNotFoundError:
        pass
    remove_empty(place)


@contextmanager
def opened(place: Place, *names: str, create: bool = False) -> Iterator[int]:
    """Open a directory of a place, and yield its descriptor.

    :param names: names of directories below the run's directory, the outermost first.
    :param create: make missing directories, durably.
    :raises QuarantineError: one of the names isn't a directory.
    :raises FileNotFoundError: a directory is missing.
    """
    descriptor = os.open(place.base, _DIRECTORY_FLAGS)
    try:
        for depth, name in enumerate((*place.parts, *names)):
            if create:
                with suppress(FileExistsError):
                    # The first directory also has the stamp, which all readers of the store may read.
                    durable.make_dir(name, dir_fd=descriptor, shared=depth == 0 and name == DIRECTORY)
                    os.fsync(descriptor)
            try:
                inner = os.open(name, _DIRECTORY_FLAGS | _NO_LINK, dir_fd=descriptor)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                where = Path(place.base, *(*place.parts, *names)[: depth + 1])
                raise QuarantineError(
                    f"{where}: expected a directory of the quarantine, found something else, or a symbolic "
                    "link. Nothing was changed. Find out who put it there, and remove it."
                ) from error
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _lstat(name: str, directory: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _is_directory(name: str, directory: int) -> bool:
    status = _lstat(name, directory)
    return status is not None and stat.S_ISDIR(status.st_mode)


def _names(directory: int) -> list[str]:
    return os.listdir(directory)  # pathlib knows no descriptors


def _open_inner(name: str, directory: int) -> AbstractContextManager[int]:
    return durable.opened(name, _DIRECTORY_FLAGS | _NO_LINK, dir_fd=directory)


def _count(directory: int, *, inner: bool = False) -> Contents:
    total = Contents()
    for name in _names(directory):
        if _is_directory(name, directory):
            with _open_inner(name, directory) as descriptor:
                total += _count(descriptor, inner=True)
        elif (inner or name != MANIFEST) and (status := _lstat(name, directory)) is not None:
            total += Contents(1, status.st_size)
    return total


def _remove(
    name: str, directory: int, before_steps: Callable[[], object] | None, *, inner: bool = False
) -> Contents:
    """Remove a file, a link, or a directory with everything in it."""
    status = _lstat(name, directory)
    if status is None:
        return Contents()
    if not stat.S_ISDIR(status.st_mode):
        if before_steps is not None and stat.S_ISREG(status.st_mode) and status.st_size > STEP_BYTES:
            before_steps()
            name = _shrink(name, directory)
        return Contents(1, status.st_size) if durable.unlink(name, dir_fd=directory) else Contents()
    removed = Contents()
    with _open_inner(name, directory) as descriptor:
        # The manifest goes last, so that after a kill it still names the owner.
        for below in sorted(_names(descriptor), key=lambda name: name == MANIFEST):
            part = _remove(below, descriptor, before_steps, inner=True)
            removed += Contents() if below == MANIFEST and not inner else part
    os.rmdir(name, dir_fd=directory)
    return removed


def _shrink(name: str, directory: int) -> str:
    """Cut a file in steps before its removal.

    This needs the kernel's lease of the file. The kernel refuses a lease if any process has the file open or
    mapped, in any container. A file with a second name isn't cut, either. If a process opens or links the
    file meanwhile, the cutting ends, and the rest is removed at once. The file is durably renamed first, so
    that after a kill the rest, or a link to it, isn't taken for the whole file.

    :return: the file's present name.
    """
    mount = mount_of(f"/proc/self/fd/{directory}")
    # Only Linux has such leases.
    if mount is None or mount.kind not in LEASED_KINDS or not hasattr(fcntl, "F_SETLEASE"):
        return name
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | _NO_LINK
    with suppress(OSError), durable.opened(name, flags, dir_fd=directory) as descriptor:
        # The kernel sends a signal if a process waits. The default signal would end this process.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        if not _is_ours_alone(descriptor, name, directory):
            return name
        if not name.endswith(_SHRINKING):
            if _lstat(name + _SHRINKING, directory) is not None:
                return name
            os.rename(name, name + _SHRINKING, src_dir_fd=directory, dst_dir_fd=directory)
            name += _SHRINKING
            os.fsync(directory)
        for size_bytes in range(os.fstat(descriptor).st_size - STEP_BYTES, 0, -STEP_BYTES):
            # Checked again: a link or a move of the file breaks no lease.
            if not _is_ours_alone(descriptor, name, directory):
                break
            os.ftruncate(descriptor, size_bytes)
            time.sleep(_PAUSE_SECONDS)
    return name


def _is_ours_alone(descriptor: int, name: str, directory: int) -> bool:
    """Return whether a leased file has this name and no other, and no process waits to open it."""
    by_fd, by_name = os.fstat(descriptor), _lstat(name, directory)
    return (
        by_name is not None
        and os.path.samestat(by_fd, by_name)
        and by_fd.st_nlink == 1
        and fcntl.fcntl(descriptor, fcntl.F_GETLEASE) == fcntl.F_WRLCK
    )


def _remove_directories(name: str, directory: int) -> None:
    """Remove a directory that has no files at any depth."""
    if not _is_directory(name, directory):
        return
    with _open_inner(name, directory) as descriptor:
        for below in _names(descriptor):
            _remove_directories(below, descriptor)
    with suppress(OSError):
        os.rmdir(name, dir_fd=directory)


QUARANTINE = "quarantine"
"""Name of the directory of quarantines, inside our own directory.

In a store's root it has one directory for each run, elsewhere one for each store and run.
"""

_LONGEST_NAME = 100


def bases(store: ManagedStore, data_paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the directories that may have a store's quarantines.

    These are the store's root, then the parents of its other directories. If the broker tolerates no foreign
    files, only the directories that a person named are returned.

    :param data_paths: the directories that the store's broker writes to.
    """
    if find_broker(store.broker).aside is Aside.OUTSIDE:
        return tuple(dict.fromkeys(_real(Path(path)) for path in store.policy.undo_directories))
    root = Path(store.real_root)
    directories = [path for path in map(_real, data_paths) if path != root]
    above = dict.fromkeys(path.parent for path in directories if not path.is_relative_to(root))
    return (
        root,
        *(
            base
            for base in above
            if not any(base.is_relative_to(path) for path in directories)
            and store_around(base / DIRECTORY) is None
        ),
    )


def choose_places(
    store: ManagedStore,
    data_paths: Sequence[Path],
    store_id: str,
    run_key: str,
    paths: Iterable[Path],
    known: Sequence[Place] = (),
) -> Mapping[Path, Place]:
    """Return, for each directory of files, the place where these files are set aside. Changes nothing.

    :param known: places that the run already has, even if a person names other directories by now.
    :raises BadInputError: a directory's file system has no place, or a named directory can't be one.
    """
    outside = find_broker(store.broker).aside is Aside.OUTSIDE
    if outside:
        check_undo_directories(store, data_paths)
    candidates = dict.fromkeys((*(Path(place.base) for place in known), *bases(store, data_paths)))
    places: dict[Path, Place] = {}
    for directory in dict.fromkeys(path.parent for path in paths):
        real = _real(directory)
        base = next(
            (base for base in candidates if (outside or real.is_relative_to(base)) and renames(real, base)),
            None,
        )
        if base is None:
            remedy = "Mount the directory above this one instead"
            if outside:
                remedy = (
                    "With --undo-directory, name a directory on that file system, outside every log directory"
                )
            raise BadInputError(
                f"{directory}: expected a place for a quarantine on the same file system as this directory, "
                f"{'in' if outside else 'below'} {' or '.join(map(str, candidates)) or 'no directory'}, "
                "found none: to another file system, files can't be moved without a copy. Nothing was "
                f"changed. {remedy}, or leave undo_window_hours empty."
            )
        parts = parts_of(store, base, store_id, run_key)
        places[directory] = Place(str(base), parts, "/" if outside else "")
    return places


def check_undo_directories(store: ManagedStore, data_paths: Sequence[Path]) -> None:
    """Make sure that files can be set aside in the directories that a person named. Changes nothing.

    :raises BadInputError: a directory is missing, a link, among a broker's files, on another file system, or
        can't be written to.
    """
    own_paths = [path for path in map(_real, data_paths) if path.is_dir()]
    for path in map(Path, store.policy.undo_directories):
        if fault := _undo_directory_fault(path, own_paths):
            raise BadInputError(
                f"{path}: expected a directory for an undo, outside every log directory and on the file "
                f"system of a log directory, found {fault}. Nothing was changed. Name another directory: "
                "--undo-directory, or undo_directories in the policy."
            )


def _undo_directory_fault(path: Path, data_paths: Sequence[Path]) -> str:
    """Return why files can't be set aside in a directory, or "" if they can."""
    if path.is_symlink():
        return f"a symbolic link to {path.readlink()}"
    if not path.is_dir():
        return "none; is its disk mounted?"
    real = _real(path)
    inside = next((data_path for data_path in data_paths if real.is_relative_to(data_path)), None)
    if inside := inside or store_around(real / DIRECTORY):
        return f"it inside {inside}, where the broker tolerates no other files"
    if not any(renames(data_path, real) for data_path in data_paths):
        return "it on a file system without a log directory"
    # Checked for the effective user, as a rename is.
    may_write = os.access(real, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)
    return "" if may_write else "it not writable"


def parts_of(store: ManagedStore, base: Path, store_id: str, run_key: str) -> tuple[str, ...]:
    """Return the names from a base to a run's directory. Directories of other stores may be beside it."""
    name = report_name(run_key)
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}-{short_hash(run_key)}"
    if str(base) == store.real_root:
        return (DIRECTORY, QUARANTINE, name)
    return (DIRECTORY, QUARANTINE, store_id, name)


def renames(directory: Path, base: Path) -> bool:
    """Return whether a file can be renamed from one directory into another.

    A rename of a missing name is tried. Between two mounts, even of one file system, the kernel refuses it
    before it looks for the name. So no foreign file is ever made among a broker's files.
    """
    above = (base, base / DIRECTORY, base / DIRECTORY / QUARANTINE)
    target = next((path for path in reversed(above) if path.is_dir()), None)
    if target is None or directory.stat().st_dev != target.stat().st_dev:
        return False
    name = durable.temporary_name(QUARANTINE)
    try:
        os.rename(directory / name, target / name)  # noqa: PTH104  # what is tried is the call
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


_LONGEST_MANIFEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class QuarantineLook:
    """A run's quarantine, as it was found on disk.

    :param run_key: the run's key by the manifest, or "" if the manifest can't be read.
    :param until_ms: end of its window by the manifest, in milliseconds since the epoch, or None if unknown.
    :param error: why it can't be read, or "" if it can.
    """

    directory: str
    run_key: str
    until_ms: int | None
    files: int
    size_bytes: int
    error: str = ""


def look_at_quarantines(store: ManagedStore, data_paths: Sequence[Path]) -> tuple[QuarantineLook, ...]:
    """Look at the quarantines in all :func:`bases` of a store."""
    return tuple(look for base in bases(store, data_paths) for look in _look_below(base, store.real_root))


def unknown_quarantines(found: Sequence[QuarantineLook], known: Iterable[str]) -> tuple[QuarantineLook, ...]:
    """Return the quarantines that no journal knows, so that no run ever empties them. Pure.

    Their journal was lost, or replaced by an older copy.

    :param known: directories of the quarantines that a journal knows.
    """
    known_paths = frozenset(known)
    return tuple(look for look in found if look.directory not in known_paths and (look.files or look.error))


def unknown_text(look: QuarantineLook) -> tuple[str, str]:
    """Return clauses on a quarantine that no journal knows, and on the remedy."""
    content = f"{bytes_text(look.size_bytes)}, set aside by run {look.run_key or 'unknown'}"
    return (
        f"{content}, are in {look.directory}. The journal doesn't know that quarantine, so no run empties it",
        Text(
            "with the journal of that run, ",
            Command("undo"),
            " brings the files back. To remove them, after verify has found them in the lake: rm -r "
            f"{shlex.quote(look.directory)}",
        ),
    )


def unknown_notices(store: ManagedStore, data_paths: Sequence[Path], known: Iterable[str]) -> tuple[str, ...]:
    """Return the quarantines that no journal knows, as sentences for a plan or a list of runs."""
    looks = look_at_quarantines(store, data_paths)
    return tuple(join_texts("; ", unknown_text(look)) for look in unknown_quarantines(looks, known))


def _look_below(base: Path, root: str) -> Iterator[QuarantineLook]:
    """Yield the runs in a base's quarantine. Outside of the store's root, leave out other stores' runs."""
    if base.is_file():  # a store may be named by a file of its broker, below which nothing lies
        return
    quarantine = Place(str(base), (DIRECTORY, QUARANTINE))
    try:
        for name in _names_below(quarantine):
            run = Place(str(base), (*quarantine.parts, name))
            if str(base) == root:
                yield _look(run)
                continue
            inner = (Place(str(base), (*run.parts, name)) for name in _names_below(run))
            yield from (_look(place) for place in inner if _manifest(place).get("root") == root)
    except FileNotFoundError:
        return
    except (OSError, QuarantineError) as error:
        yield QuarantineLook(str(quarantine.directory), "", None, 0, 0, reason_text(error))


def _names_below(place: Place) -> list[str]:
    with opened(place) as directory:
        return sorted(_names(directory))


def _look(place: Place) -> QuarantineLook:
    try:
        total, manifest = contents(place), _manifest(place)
    except (OSError, QuarantineError) as error:
        return QuarantineLook(str(place.directory), "", None, 0, 0, reason_text(error))
    until_ms = manifest.get("until_ms")
    return QuarantineLook(
        directory=str(place.directory),
        run_key=str(manifest.get("run_key", "")),
        until_ms=until_ms if isinstance(until_ms, int) else None,
        files=total.files,
        size_bytes=total.size_bytes,
    )


def _manifest(place: Place) -> dict[str, object]:
    """Return the contents of a run's manifest, or nothing if it is torn or missing."""
    with suppress(FileNotFoundError, ValueError), opened(place) as directory:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(MANIFEST, flags, dir_fd=directory), "rb") as file:
            manifest = json.loads(file.read(_LONGEST_MANIFEST_BYTES))
            return manifest if isinstance(manifest, dict) else {}
    return {}
