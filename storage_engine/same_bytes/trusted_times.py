"""Do the times of a file system tell that a file was written to? Asked of each mount, once a start.

Not by the kind of file system: one and the same says nothing of a write through a mapping with some mount
options, or below another. So it is tried, with a scratch file that never has a name where that can be: it may
lie beside a broker's segments then, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from storage_engine.core import durable
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.own_directory import own_directory
from storage_engine.core.untrusted import MALFORMED, read_file
from storage_engine.exceptions import BadInputError
from storage_engine.same_bytes import probe
from storage_engine.same_bytes.mounts import mount_line

NAME: Final = "trusted-times.json"
_SCRATCH: Final = "scratch"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PROBE_SECONDS: Final = 30.0
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Answers:
    """Answers of mounts since the machine's start.

    :param trusted: by mount.
    """

    boot_id: str
    trusted: Mapping[str, bool] = field(default_factory=dict)


_answers: dict[tuple[str, str], bool] = {}
"""Answers that this process knows, by start of the machine and mount: our directory may be read-only."""


def times_are_trusted(directory: str | os.PathLike[str], root: str | os.PathLike[str]) -> bool:
    """Return whether a later write to a settled file in a directory is seen by the file's times.

    :param directory: of segments.
    :param root: of their store; our directory there remembers the answer.
    :return: False where it can't be tried, too; that is tried again the next time.
    """
    with ExitStack() as held:
        try:
            fd = held.enter_context(durable.opened(directory, _DIRECTORY))
            boot_id, mount = _BOOT_ID.read_text().strip(), _mount(fd)
        except (OSError, ValueError):
            return False
        if (boot_id, mount) not in _answers:
            known = _remembered(root, boot_id).trusted.get(mount)
            answer = _try(fd, mount, root) if known is None else known
            if answer is None:
                return False
            _answers[boot_id, mount] = answer
            if known is None:
                _remember(root, boot_id, mount, answer)
        return _answers[boot_id, mount]


def known_trust(directory: str | os.PathLike[str], root: str | os.PathLike[str]) -> bool | None:
    """Return a mount's earlier answer; None: it was never asked, or not since the machine's start.

    Nothing is tried or written. The arguments are those of :func:`times_are_trusted`.
    """
    try:
        with durable.opened(directory, _DIRECTORY) as fd:
            boot_id, mount = _BOOT_ID.read_text().strip(), _mount(fd)
    except (OSError, ValueError):
        return None
    return _remembered(root, boot_id).trusted.get(mount)


def _mount(fd: int) -> str:
    """Return the identity of an open file's mount, which no other mount of this boot has: the kernel's line
    for it, with its options, and the file system's id.

    :raises OSError, ValueError: this system doesn't say.
    """
    if not (line := mount_line(fd)):
        raise ValueError("the kernel names no mount of it")
    return f"{line} {os.fstatvfs(fd).f_fsid}"


def _try(directory: int, mount: str, root: str | os.PathLike[str]) -> bool | None:
    """Return the answer of a directory's mount; None: it can't be asked."""
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
    """Open an empty file on the directory's mount: in our own directory where that is on it, otherwise
    without a name in the directory itself, where a broker refuses files that it doesn't know.

    :raises OSError: there can be none.
    """
    with ExitStack() as held:
        own = None
        with suppress(OSError):
            own = held.enter_context(own_directory(root, makes=True))
        if own is not None and _mount(own) != mount:
            own = None
        try:
            fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=own or directory)
        except OSError:
            if own is None:
                raise
            name = durable.temporary_name(_SCRATCH)
            with durable.create(name, dir_fd=own) as file:
                os.unlink(name, dir_fd=own)
                yield file.fileno()
            return
        held.callback(os.close, fd)
        yield fd


def _remembered(root: str | os.PathLike[str], boot_id: str) -> _Answers:
    with suppress(OSError, BadInputError, *MALFORMED), own_directory(root) as own:
        content = read_file(Path(NAME), _MAX_BYTES, follow_links=False, dir_fd=own)
        answers = from_jsonable(_Answers, json.loads(content), NAME)
        if answers.boot_id == boot_id:
            return answers
    return _Answers(boot_id)


def _remember(root: str | os.PathLike[str], boot_id: str, mount: str, answer: bool) -> None:
    """Write an answer down; without it the next process asks again."""
    answers = _Answers(boot_id, {**_remembered(root, boot_id).trusted, mount: answer})
    with suppress(OSError), own_directory(root, makes=True) as own:
        durable.write_file(NAME, json.dumps(to_jsonable(answers)).encode(), dir_fd=own, shared=True)
