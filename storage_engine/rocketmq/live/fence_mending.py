"""Repair of a fence between a pipeline's runs: sets changed mtimes again, and extends a fence that is short.

A watch reads the hold's record in the store's directory, and only makes files younger. So nothing is deleted
even if that record is out of date for a moment. If a directory of the log has no segments, the watch checks
whether the directory was emptied or its disk isn't mounted. A watch doesn't renew a hold, so the hold of a
dead pipeline still ends.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from storage_engine.commands import Command, Text
from storage_engine.core.clock import clock_ms
from storage_engine.core.durable import DIRECTORY, WATCH_WAIT_SECONDS
from storage_engine.core.wording import paths_text, time_text, times_text
from storage_engine.exceptions import (
    ChangedUnderUsError,
    GateRefusedError,
    StoreBusyError,
    StoreNotFoundError,
)
from storage_engine.model.hold import Drift, DriftKind, WatchLook
from storage_engine.rocketmq.format.layout import LOG
from storage_engine.rocketmq.hold import marker
from storage_engine.rocketmq.hold.heartbeat import Watching, silent_watch, watching
from storage_engine.rocketmq.hold.hold_state import (
    HoldState,
    SeenFile,
    SegmentGoneError,
    Touched,
    lock_settled,
    read_local,
    same_ms,
    set_mtime,
    write_settled,
)
from storage_engine.rocketmq.live.observe import list_files, mount_point
from storage_engine.same_bytes.own_acts import Acting, own_acts

LAST_FILES: Final = 3
"""Number of last files that a watch never fences, since it doesn't know the log's end. A broker writes to one
of them and creates the next two in advance (AllocateMappedFileService#putRequestAndReturnMappedFile).
"""

EXTEND_SECONDS: Final = 5.0
"""Interval at which a short fence is extended. A fence that lost segments is extended at once."""

RETRY_SECONDS: Final = 0.5
"""Pause after a failed attempt to set an mtime, which another program may have set at the same moment. With a
shorter pause, the watch could wake itself for ever, since an attempt may itself change the file.
"""
_REPORTED_AT: Final = 2
_MS_NS: Final = 1_000_000

Identity = tuple[int, int]
"""Device and inode of a directory."""


@dataclass(frozen=True, slots=True)
class FencedDirectory:
    """State of a directory of the log at one look.

    :param identity: device and inode; None if the directory doesn't exist.
    :param has_segments: whether it contains files of the log.
    :param has_lost: whether segments of the fence have vanished from it.
    :param mount_point: mount point of its file system; "" if unknown.
    """

    identity: Identity | None
    has_segments: bool
    has_lost: bool
    mount_point: str = ""


def is_mounted(directory: FencedDirectory, known: Identity | None, held_mount_point: str) -> bool:
    """Return whether a directory of the log is mounted. Only then is a missing file really gone. Pure.

    :param known: the directory's identity at the last look that saw all directories; None before such a look.
    :param held_mount_point: mount point of its file system at the last renewal of the hold; "" if unknown.
    """
    if directory.identity is None:
        return False
    if directory.has_segments or directory.identity == known:
        return True
    if held_mount_point:
        return directory.mount_point == held_mount_point
    return not directory.has_lost


class FenceKeeper:
    """Implements :class:`storage_engine.model.broker.kind.FenceWatch`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._directories: dict[Path, Identity] = {}
        """Directories of the log at the last look that saw all of them."""
        self._reported: set[tuple[int, int]] = set()
        self._was_away = False
        """Whether a look has found an unmounted directory after the last look that saw all directories."""
        self._last_look = WatchLook()
        self._mended = 0
        self._unset: dict[tuple[int, int], tuple[int, float]] = {}
        """Number of failures and time of the next attempt, for each file whose mtime couldn't be set."""
        self._extends_at = 0.0
        self._drift: list[Drift] = []

    @property
    def directories(self) -> tuple[Path, ...]:
        return tuple(self._directories)

    @property
    def last_look(self) -> WatchLook:
        return self._last_look

    def watching(self) -> AbstractContextManager[Watching | None]:
        return watching(self._root)

    def silent(self) -> str:
        return silent_watch(self._root)

    def look(self, now_ms: int) -> tuple[Drift, ...]:
        """See :meth:`storage_engine.model.broker.kind.FenceWatch.look`. A file on an unmounted disk
        isn't reported as gone.

        :raises StoreNotFoundError: a directory of the log isn't mounted; all others were checked.
        :raises GateRefusedError: the store is held, but has no record of the hold in its directory.
        """
        state = read_local(self._root)
        if state is None:
            self._refuse_without_hold(now_ms)
        is_held = state is not None and now_ms < state.ends_at_ms
        if state is not None and is_held:
            sees_all, unseen = self._look(state)
            if unseen:
                raise StoreNotFoundError(_unseen_text(unseen))
            if not sees_all:
                return self.left_over()
            state = read_local(self._root)
        standing = sum(map(_has_own_mtime, _list_fenced(state))) if state is not None and is_held else 0
        runs_out = state is not None and is_held and 2 * (state.ends_at_ms - now_ms) < state.lasts_ms
        runs_out_at_ms = state.ends_at_ms if state is not None and runs_out else 0
        # The time after the look, since the look doesn't protect a file that vanished during it.
        self._last_look = WatchLook(clock_ms(), standing, self._mended, runs_out_at_ms)
        return self.left_over()

    def left_over(self) -> tuple[Drift, ...]:
        """See ``FenceWatch.left_over``. The next look returns drift that isn't fetched here."""
        drift, self._drift = tuple(self._drift), []
        return drift

    def _look(self, state: HoldState) -> tuple[bool, list[Path]]:
        """Mend changes to a hold's fence.

        :return: whether the whole fence was checked, and the log's directories whose disks aren't mounted.
        """
        fenced = _list_fenced(state)
        if any(_is_touched(touched) and self._is_to_be_set(touched) for touched in fenced):
            self._mend()
        if not all(map(_is_there, fenced)):
            # A run may have moved the fence since, and released the segments that were fenced before.
            state = read_local(self._root) or state
            fenced = _list_fenced(state)
        missing = [touched for touched in fenced if not _is_there(touched)]
        self._reported &= set(map(_key, missing))
        identities = {path: _identity(path) for path in _log_paths(state)}
        present = {path: identity for path, identity in identities.items() if identity is not None}
        # True at the first look: files may have appeared since the fence was set.
        is_new = present != self._directories or self._was_away
        short = len(state.fence) < state.fence_count and time.monotonic() >= self._extends_at
        unfinished = any(_is_only_meant(touched) and self._is_to_be_set(touched) for touched in fenced)
        if not (missing or is_new or short or unfinished):
            return True, [path for path in identities if path not in present]
        files = list_files(tuple(sorted(present)))
        lost = {Path(touched.path).parent for touched in missing}
        full = {Path(file.path).parent for file in files}
        unseen = []
        for path, identity in identities.items():
            directory = FencedDirectory(identity, path in full, path in lost, mount_point(path))
            if not is_mounted(directory, self._directories.get(path), state.log_paths.get(str(path), "")):
                unseen.append(path)
        self._say_gone([touched for touched in missing if Path(touched.path).parent not in unseen], files)
        self._was_away |= bool(unseen)
        is_done = self._try_to_extend(files)
        if is_done and not unseen:
            self._directories, self._was_away = present, False
        return is_done, unseen

    def _refuse_without_hold(self, now_ms: int) -> None:
        held = marker.read_marker(self._root)
        if held is not None and held.ends_at_ms > now_ms:
            raise GateRefusedError(
                f"{self._root / DIRECTORY}: expected the hold of a store that is held until "
                f"{time_text(held.ends_at_ms)}, found none that is whole: a full disk had no room for "
                "it, or it was removed. Nothing was changed. Run ",
                Command("hold"),
                ", with some space.",
            )

    def _is_to_be_set(self, touched: Touched) -> bool:
        """Return whether an mtime may be set now: no attempt failed within :data:`RETRY_SECONDS`."""
        _, tries_again_at = self._unset.get(_key(touched), (0, 0.0))
        return time.monotonic() >= tries_again_at

    def _set_mtime(self, acts: Acting, touched: Touched) -> Touched | None:
        """Set a file's mtime. Return None if that fails; report the second failure if the file exists."""
        try:
            done = set_mtime(acts, touched)
        except SegmentGoneError:
            return None
        except (GateRefusedError, ChangedUnderUsError) as error:
            failures = self._unset.get(_key(touched), (0, 0.0))[0] + 1
            self._unset[_key(touched)] = (failures, time.monotonic() + RETRY_SECONDS)
            if failures == _REPORTED_AT:
                detail = Text(error, " The watch goes on with the others, and tries again.")
                self._drift.append(Drift(DriftKind.FENCE_NOT_MENDED, detail, log=LOG))
            return None
        self._unset.pop(_key(touched), None)
        return done

    def _mend(self) -> None:
        """Reread the hold, which may have changed. Set again each mtime that another program made older."""
        with lock_settled(self._root, wait_seconds=WATCH_WAIT_SECONDS), own_acts(self._root) as acts:
            state = read_local(self._root)
            mended: list[tuple[Touched, int]] = []
            for touched in () if state is None else _list_fenced(state):
                if not (_is_touched(touched) and self._is_to_be_set(touched)):
                    continue
                found_ns = _mtime_ns(touched)
                if self._set_mtime(acts, touched) is not None and found_ns is not None:
                    mended.append((touched, found_ns))
        if mended:
            self._mended += len(mended)
            paths = [touched.path for touched, _ in mended]
            expected = times_text([touched.mtime_ns // _MS_NS for touched, _ in mended])
            actual = times_text([found_ns // _MS_NS for _, found_ns in mended])
            self._say_mended(
                f"{paths_text(paths)}: expected the modification time {expected} that the hold set, found "
                f"{actual}: another program touched {_pronoun(paths)}. The watch has set it again."
            )

    def _say_gone(self, missing: Sequence[Touched], files: Sequence[SeenFile]) -> None:
        """Report each missing segment of the fence once, and the offset at which the log begins now."""
        paths = [touched.path for touched in missing if _key(touched) not in self._reported]
        self._reported |= set(map(_key, missing))
        if not paths:
            return
        self._mended += len(paths)
        text = "a segment" if len(paths) == 1 else f"{len(paths)} segments"
        begins = f"at offset {files[0].base_offset}" if files else "nowhere: no segment is there"
        self._say_mended(
            f"{paths_text(paths)}: expected {text} of the hold's fence, found {_pronoun(paths)} removed or "
            f"replaced; the log's files begin {begins}. The watch fences what is there. What was in "
            f"{_pronoun(paths)}, and what else is gone, is told by the next run."
        )

    def _try_to_extend(self, files: Sequence[SeenFile]) -> bool:
        """Extend the fence to its full number of segments. Return False if a run is changing the hold."""
        self._extends_at = time.monotonic() + EXTEND_SECONDS
        with suppress(StoreBusyError), marker.changing(self._root, wait_seconds=0):
            self._extend(files)
            return True
        return False

    def _extend(self, files: Sequence[SeenFile]) -> None:
        """Extend the fence, under the hold's lock."""
        with lock_settled(self._root, wait_seconds=WATCH_WAIT_SECONDS) as directory:
            state = read_local(self._root)
            if state is None or not (state.fence or (state.log_paths and state.fence_count)):
                return
            targets = wanted_fence(state, files, was_away=self._was_away)
            # Without a fenced file the mtimes are set to the end of the hold.
            lease_ns = max((item.mtime_ns for item in _list_fenced(state)), default=state.ends_at_ms * _MS_NS)
            by_offset = {touched.base_offset: touched for touched in state.touched}
            new = [_prolong(file, lease_ns, by_offset) for file in targets if not _is_known(by_offset, file)]
            # This process has the hold's lock, so the process that planned these mtimes was killed.
            new += [touched for touched in _list_fenced(state) if _is_only_meant(touched)]
            new = sorted(filter(self._is_to_be_set, new), key=_key)
            plan = _with_fence(state, by_offset | {touched.base_offset: touched for touched in new}, targets)
            if plan == state and not new:
                return
            write_settled(directory, plan)
            with own_acts(self._root) as acts:
                for touched in reversed(new):
                    done = self._set_mtime(acts, touched)
                    if done is not None:
                        by_offset[done.base_offset] = done
            done_so_far = _with_fence(state, by_offset, targets)
            if done_so_far != plan:
                write_settled(directory, done_so_far)

    def _say_mended(self, detail: str) -> None:
        detail = Text(detail, " Find out who does that, and stop it.")
        self._drift.append(Drift(DriftKind.FENCE_MENDED, detail, log=LOG))


def wanted_fence(state: HoldState, files: Sequence[SeenFile], *, was_away: bool) -> tuple[SeenFile, ...]:
    """Return the segments that the fence should have, from the files in the log's directories. Pure.

    A broker that can't delete files because their disk isn't mounted forgets them and continues with the next
    files. So after a disk was away, the broker's log may begin behind the oldest existing file. Then all
    files belong to the fence, until a run has asked the broker for its min offset.

    :param files: files of the log, sorted by base offset.
    :param was_away: a directory of the log was not mounted, or still isn't.
    """
    count = max(state.fence_count, 1)
    if was_away or len(state.fence) > count:
        count = len(files)
    start = max((state.min_offset, *(offset + 1 for offset in state.releasing)))
    behind = files[-LAST_FILES].base_offset if len(files) >= LAST_FILES else 0
    sealed = (f for f in files if f.base_offset < behind or f.end_offset <= state.max_offset)
    return tuple(file for file in sealed if file.base_offset >= start)[:count]


def _with_fence(state: HoldState, by_offset: Mapping[int, Touched], files: Sequence[SeenFile]) -> HoldState:
    """Return a hold whose fence consists of those of ``files`` that are touched (``by_offset``).

    If none is touched, the recorded fence stays, since its paths show where the log is.
    """
    fence = tuple(file.base_offset for file in files if _is_known(by_offset, file))
    return replace(
        state,
        touched=tuple(touched for _, touched in sorted(by_offset.items())),
        fence=fence or state.fence,
        fence_offset=fence[0] if fence else state.fence_offset,
    )


def _key(touched: Touched) -> tuple[int, int]:
    return touched.base_offset, touched.inode


def _list_fenced(state: HoldState) -> list[Touched]:
    return [touched for touched in state.touched if touched.base_offset in state.fence]


def _log_paths(state: HoldState) -> list[Path]:
    """Return the directories of the log, or those of the fence if an older release renewed the hold."""
    paths = state.log_paths or {str(Path(touched.path).parent) for touched in _list_fenced(state)}
    return sorted(map(Path, paths))


def _identity(directory: Path) -> Identity | None:
    try:
        stat = directory.stat()
    except FileNotFoundError:
        return None
    return stat.st_dev, stat.st_ino


def _unseen_text(paths: Sequence[Path]) -> str:
    return Text(
        f"{' and '.join(map(str, paths))}: expected segments of the held log there, found none: the "
        "disk isn't mounted, or the directory was moved. What lies elsewhere is fenced. Mount it. "
        "If they are gone for good, run ",
        Command("hold"),
        ".",
    )


def _prolong(file: SeenFile, lease_ns: int, by_offset: Mapping[int, Touched]) -> Touched:
    """Return a file with its new mtime.

    If the file is a copy that already has the hold's mtime, the recorded original mtime stays.
    """
    before = by_offset.get(file.base_offset)
    is_copy = before is not None and any(same_ms(file.mtime_ns, ns) for ns in before.possible_mtimes_ns)
    original_ns = before.original_mtime_ns if before is not None and is_copy else file.mtime_ns
    mtime_ns = max(file.mtime_ns, lease_ns)
    return Touched(
        file.base_offset, file.path, file.inode, original_ns, mtime_ns, before_mtime_ns=file.mtime_ns
    )


def _is_known(by_offset: Mapping[int, Touched], file: SeenFile) -> bool:
    touched = by_offset.get(file.base_offset)
    return touched is not None and touched.inode == file.inode


def _is_there(touched: Touched) -> bool:
    return _mtime_ns(touched) is not None


def _has_own_mtime(touched: Touched) -> bool:
    """Return whether a file exists with the mtime that the hold set, or a later one."""
    found_ns = _mtime_ns(touched)
    return found_ns is not None and (found_ns >= touched.mtime_ns or same_ms(found_ns, touched.mtime_ns))


def _mtime_ns(touched: Touched) -> int | None:
    """Return a file's mtime; None if the file is gone or was replaced."""
    try:
        stat = Path(touched.path).stat()
    except FileNotFoundError:
        return None
    return stat.st_mtime_ns if stat.st_ino == touched.inode else None


def _is_touched(touched: Touched) -> bool:
    """Return whether another program set an mtime earlier than the hold's. A later one protects, too."""
    found_ns = _mtime_ns(touched)
    if found_ns is None or found_ns >= touched.mtime_ns:
        return False
    return not any(same_ms(found_ns, ns) for ns in touched.possible_mtimes_ns)


def _is_only_meant(touched: Touched) -> bool:
    """Return whether the hold records a new mtime that was never set."""
    found_ns = _mtime_ns(touched)
    return touched.ctime_ns is None and found_ns is not None and found_ns < touched.mtime_ns


def _pronoun(paths: Sequence[str]) -> str:
    return "it" if len(paths) == 1 else "them"
