"""Files' times as proof that nothing was written: trusted mounts, open mappings, and settled files.

The kind of a file system doesn't say whether a file's times show writes. With some mount options, or below
another file system, the same kind doesn't show a write through a mapping. So this is tested once for each
mount and start of the machine, with a scratch file. Where possible the scratch file never has a name, so that
it may be beside a broker's segments.

Mounts, and processes that may write to a file through a mapping, are read from /proc (Linux). A process that
can't be inspected counts as one that may write. A file is identified by its inode, whatever name or mount a
process opened it by. The device isn't compared: btrfs and overlays show another device in ``maps`` than in
``stat``. A wrong match only costs time.

A file is settled when its times include all earlier writes, so that each later write changes them. A broker
writes its log through a mapping. The kernel changes a file's times at the first write to a clean page, and
not at later writes before that page is clean again. So a file is flushed until no write came during a flush.
Before each flush its times must be so old that a later write can't have the same times.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Final

from storage_engine.core import durable
from storage_engine.core.durable import opened, own_directory
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.untrusted import MALFORMED, read_file
from storage_engine.exceptions import BadInputError, ChangedUnderUsError
from storage_engine.model.store import FileFacts
from storage_engine.same_bytes import probe

_MOUNTS: Final = Path("/proc/self/mountinfo")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "lustre", "afs"})


@dataclass(frozen=True, slots=True)
class Mount:
    """:param mount_id: id that is unique since this start of the machine.
    :param point: path where it is mounted.
    :param kind: kind of its file system, such as ext4 or fuse.s3fs.
    :param options: options of the mount and of the file system.
    """

    mount_id: str
    point: str
    kind: str
    options: frozenset[str]

    @property
    def is_memory(self) -> bool:
        """Return whether a power loss deletes everything on the mount."""
        return self.kind in _MEMORY

    @property
    def is_volatile(self) -> bool:
        """Return whether the mount ignores fsync, and files on it keep their times when written to."""
        return self.kind == "overlay" and "volatile" in self.options

    @property
    def is_network(self) -> bool:
        """Return whether other machines may use the file system."""
        return self.kind in _NETWORK

    @property
    def is_fuse(self) -> bool:
        """Return whether a process in user space serves the file system."""
        return self.kind.startswith("fuse") and self.kind != "fuseblk"

    @property
    def is_read_only(self) -> bool:
        return "ro" in self.options


def parse_mount(line: str) -> Mount | None:
    """Parse a line of mountinfo (proc_pid_mountinfo(5)). None: the line isn't valid."""
    fields = line.split()
    if "-" not in fields[6:]:
        return None
    dash = fields.index("-", 6)
    if len(fields) < dash + 4:
        return None
    options = frozenset((*fields[5].split(","), *fields[dash + 3].split(",")))
    point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4])
    return Mount(fields[0], point, fields[dash + 1], options)


def mount_of(directory: str | os.PathLike[str]) -> Mount | None:
    """Return a directory's mount. None: this system doesn't say, or the directory can't be opened."""
    try:
        with opened(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as fd:
            return parse_mount(mount_line(fd))
    except OSError:
        return None


def mount_line(fd: int) -> str:
    """Return the kernel's line on the mount of an open file. "" if there is no such line.

    :raises OSError: this system doesn't say.
    """
    info = Path(f"/proc/self/fdinfo/{fd}").read_text()
    mount_id = next((line.split()[1] for line in info.splitlines() if line.startswith("mnt_id:")), "")
    with _MOUNTS.open(encoding="utf-8", errors="surrogateescape") as mounts:
        return next((line.strip() for line in mounts if line.split(None, 1)[0] == mount_id), "")


_PROC: Final = Path("/proc")
_WRITABLE: Final = re.compile(rb"^\S+ .w.s \S+ \S+ (\d+) +(/.*)$", re.MULTILINE)
"""Pattern for the inode and path of a mapping that is writable and shared (proc_pid_maps(5))."""


@dataclass(frozen=True, slots=True)
class Writers:
    """Processes that have files mapped shared and writable.

    :param by_path: one process id for each file, by the file's path.
    :param unknown: why further processes may have the files mapped; "" if every process was inspected.
    """

    by_path: Mapping[str, int] = field(default_factory=dict)
    unknown: str = ""


def mapped_for_writing(files: Iterable[FileFacts], except_pids: Collection[int] = ()) -> Writers:
    """Find the processes that have these files mapped shared and writable.

    :param except_pids: processes that are left out, because they are allowed to have the files mapped.
    """
    listed = tuple(files)
    by_inode: dict[int, list[str]] = {}
    for file in listed:
        by_inode.setdefault(file.inode, []).append(file.path)
    by_path = {os.path.realpath(file.path): file.path for file in listed}
    try:
        pids = sorted(int(path.name) for path in _PROC.iterdir() if path.name.isdecimal())
    except OSError as error:
        return Writers(unknown=f"no process can be looked into ({_PROC}: {error.strerror})")
    writers: dict[str, int] = {}
    hidden = []
    for pid in pids:
        if pid in except_pids:
            continue
        try:
            maps = (_PROC / str(pid) / "maps").read_bytes()
        except (FileNotFoundError, ProcessLookupError):  # it ended
            continue
        except OSError:
            hidden.append(pid)
            continue
        for inode, path in _WRITABLE.findall(maps):
            for name in (*by_inode.get(int(inode), ()), *filter(None, (by_path.get(os.fsdecode(path)),))):
                writers.setdefault(name, pid)
    return Writers(writers, _unknown(pids, hidden))


def _unknown(pids: Collection[int], hidden: Collection[int]) -> str:
    if hidden:
        first = f"process {min(hidden)}"
        others = f" and {len(hidden) - 1} more" if len(hidden) > 1 else ""
        return f"this process may not see what {first}{others} mapped"
    # The first process is there as long as the others are.
    return "" if 1 in pids else f"{_PROC} doesn't show the processes of other users"


NAME: Final = "trusted-times.json"
_SCRATCH: Final = "scratch"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PROBE_SECONDS: Final = 30.0
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Answers:
    """Test results of mounts since the machine's start.

    :param trusted: whether the times can be trusted, by mount.
    """

    boot_id: str
    trusted: Mapping[str, bool] = field(default_factory=dict)


_answers: dict[tuple[str, str], bool] = {}
"""Results that this process knows, by start of the machine and mount. They are also kept here because our
directory may be read-only.
"""


def times_are_trusted(directory: str | os.PathLike[str], root: str | os.PathLike[str]) -> bool:
    """Return whether a later write to a settled file in a directory always changes the file's times.

    :param directory: a directory of segments.
    :param root: the store's root; our directory there stores the answer.
    :return: also False if the directory's mount can't be tested. The next call then tests it again.
    """
    with ExitStack() as stack:
        try:
            fd = stack.enter_context(durable.opened(directory, _DIRECTORY))
            boot_id, mount = _BOOT_ID.read_text().strip(), _mount(fd)
        except (OSError, ValueError):
            return False
        if (boot_id, mount) not in _answers:
            remembered = _read_answers(root, boot_id).trusted.get(mount)
            answer = _try(fd, mount, root) if remembered is None else remembered
            if answer is None:
                return False
            _answers[boot_id, mount] = answer
            if remembered is None:
                _remember(root, boot_id, mount, answer)
        return _answers[boot_id, mount]


def known_trust(directory: str | os.PathLike[str], root: str | os.PathLike[str]) -> bool | None:
    """Return a mount's earlier answer. None: the mount was not tested since the machine's start.

    Nothing is tested or written. The arguments are as for :func:`times_are_trusted`.
    """
    try:
        with durable.opened(directory, _DIRECTORY) as fd:
            boot_id, mount = _BOOT_ID.read_text().strip(), _mount(fd)
    except (OSError, ValueError):
        return None
    return _read_answers(root, boot_id).trusted.get(mount)


def _mount(fd: int) -> str:
    """Return the kernel's line for an open file's mount, and the file system's id.

    Until the machine's next start, no other mount has this line together with this id.

    :raises OSError, ValueError: this system doesn't name the mount.
    """
    if not (line := mount_line(fd)):
        raise ValueError("the kernel names no mount of it")
    return f"{line} {os.fstatvfs(fd).f_fsid}"


def _try(directory: int, mount: str, root: str | os.PathLike[str]) -> bool | None:
    """Test a directory's mount and return the answer. None: it can't be tested."""
    with (
        suppress(OSError, ValueError, subprocess.SubprocessError),
        _scratch_file(directory, mount, root) as fd,
    ):
        status = subprocess.run(
            [sys.executable, "-I", probe.__file__, str(fd)],
            pass_fds=(fd,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PROBE_SECONDS,
            check=False,
        ).returncode
        return {probe.MOVED: True, probe.NOT_MOVED: False}.get(status)
    return None


@contextmanager
def _scratch_file(directory: int, mount: str, root: str | os.PathLike[str]) -> Iterator[int]:
    """Open an empty file on the directory's mount. If our own directory is on that mount, the file is there.
    Otherwise it is in the given directory without a name, because a broker refuses unknown files there.

    :raises OSError: such a file isn't possible.
    """
    with ExitStack() as stack:
        own_fd = None
        with suppress(OSError):
            own_fd = stack.enter_context(own_directory(root, makes=True))
        if own_fd is not None and _mount(own_fd) != mount:
            own_fd = None
        try:
            fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=own_fd or directory)
        except OSError:
            if own_fd is None:
                raise
            name = durable.temporary_name(_SCRATCH)
            with durable.create(name, dir_fd=own_fd) as file:
                os.unlink(name, dir_fd=own_fd)
                yield file.fileno()
            return
        stack.callback(os.close, fd)
        yield fd


def _read_answers(root: str | os.PathLike[str], boot_id: str) -> _Answers:
    with suppress(OSError, BadInputError, *MALFORMED), own_directory(root) as own_fd:
        content = read_file(Path(NAME), _MAX_BYTES, follow_links=False, dir_fd=own_fd)
        answers = from_jsonable(_Answers, json.loads(content), NAME)
        if answers.boot_id == boot_id:
            return answers
    return _Answers(boot_id)


def _remember(root: str | os.PathLike[str], boot_id: str, mount: str, answer: bool) -> None:
    """Store an answer. If that fails, the next process tests again."""
    answers = _Answers(boot_id, {**_read_answers(root, boot_id).trusted, mount: answer})
    with suppress(OSError), own_directory(root, makes=True) as own_fd:
        durable.write_file(NAME, json.dumps(to_jsonable(answers)).encode(), dir_fd=own_fd, shared=True)


_ROUNDS: Final = 10
_FINE_SECONDS: Final = 0.02
"""A margin greater than one step of the kernel's clock for files, which is at most 10 ms."""
_COARSE_SECONDS: Final = 2.0
"""Margin for times of whole seconds: the coarsest file systems count in steps of two seconds."""
_SECOND_NS: Final = 1_000_000_000


def settle(path: str | os.PathLike[str]) -> FileFacts:
    """Flush a file until its facts no longer change, and return them.

    A file that no process writes to and whose pages are clean costs one fsync without work.

    :raises ChangedUnderUsError: another process keeps writing to it.
    :raises OSError: the file can't be opened or flushed.
    """
    with opened(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC) as fd:
        for _ in range(_ROUNDS):
            before = FileFacts.of_stat(path, os.fstat(fd))
            # Before the flush: a page that it has cleaned may be written to while it goes on with others.
            if (wait_seconds := until_distinct_seconds(before, time.time_ns())) > 0:
                time.sleep(wait_seconds)
            os.fsync(fd)
            if FileFacts.of_stat(path, os.fstat(fd)) == before:
                return before
    raise ChangedUnderUsError(
        f"{os.fspath(path)}: expected a file that no process writes to any more, found that it was written "
        f"to during each of {_ROUNDS} looks at it. Nothing was committed or deleted. Find out which "
        "process writes to a sealed segment and stop it, then run the same again."
    )


def until_distinct_seconds(facts: FileFacts, now_ns: int) -> float:
    """Return how many seconds it takes until a new write can't get the same times as the file has now. 0 or
    less: no wait is needed.

    A future time, such as one set by a hold, is as distinct as a past time.
    """
    coarse = facts.ctime_ns % _SECOND_NS == 0
    distance_ns = min(abs(now_ns - facts.ctime_ns), abs(now_ns - facts.mtime_ns))
    return (_COARSE_SECONDS if coarse else _FINE_SECONDS) - distance_ns / _SECOND_NS


_BLOCK_BYTES: Final = 1 << 20

Spend = Callable[[int], None]
"""Waits until this many more bytes may be read."""


def paced_sha256(file: FileIO, spend: Spend) -> str:
    """Return an open file's SHA-256 from its position to its end, and drop its pages from the cache.

    :param spend: called after each block with its number of bytes.
    :raises OSError: the file can't be read.
    """
    digest = hashlib.sha256()
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
        spend(len(block))
    # A broker reads its own pages through its mapping, which keeps them.
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest()
