"""Keep a fence whole between a pipeline's visits: set touched mtimes again, and replace what was removed.

It goes by the hold that lies with the store, and only ever makes files younger: nothing is deleted for what
it takes for true a moment too long. It doesn't renew a hold: a dead pipeline's ends all the same.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from storage_engine.exceptions import ChangedUnderUsError, GateRefusedError, StoreBusyError
from storage_engine.model.hold import Drift, DriftKind
from storage_engine.own_directory import WATCH_WAIT_SECONDS
from storage_engine.rocketmq.live import marker
from storage_engine.rocketmq.live.heartbeat import Watching, silent_watch, watching
from storage_engine.rocketmq.live.local_hold import read_local, settled, write_settled
from storage_engine.rocketmq.live.mtimes import SegmentGoneError, same_ms, set_mtime
from storage_engine.rocketmq.live.observe import list_files
from storage_engine.rocketmq.live.state import HoldState, SeenFile, Touched
from storage_engine.rocketmq.store import LOG
from storage_engine.same_bytes.own_acts import Acting, own_acts
from storage_engine.wording import paths_text, times_text

LAST_FILES: Final = 3
"""Never fenced by a watch, which doesn't ask how far the log goes: a broker writes to one of them and makes
the next two in advance (AllocateMappedFileService#putRequestAndReturnMappedFile)."""

EXTEND_SECONDS: Final = 5.0
"""A fence that has too few segments is looked at that often; one that lost some, at once."""

RETRY_SECONDS: Final = 0.5
"""An mtime that can't be set is tried again that often: somebody may only have set it at the same moment. Not
more often, since each try may itself be a change that wakes the watch."""
_SAID_AT: Final = 2
_MS_NS: Final = 1_000_000


class FenceKeeper:
    """Implements :class:`storage_engine.model.broker.FenceWatch`.

    :param root: the store's.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._directories: dict[Path, tuple[int, int]] = {}
        self._said_gone: set[tuple[int, int]] = set()
        self._unset: dict[tuple[int, int], tuple[int, float]] = {}
        """How often an mtime couldn't be set, and when it is tried again."""
        self._extends_at = 0.0
        self._found: list[Drift] = []

    @property
    def directories(self) -> tuple[Path, ...]:
        return tuple(self._directories)

    def watching(self) -> AbstractContextManager[Watching | None]:
        return watching(self._root)

    def silent(self) -> str:
        return silent_watch(self._root)

    def look(self, now_ms: int) -> tuple[Drift, ...]:
        """See :meth:`storage_engine.model.broker.FenceWatch.look`; what isn't mounted isn't gone."""
        state = read_local(self._root)
        if state is not None and now_ms < state.ends_at_ms and self._are_mounted(state):
            self._look(state)
        return self.left_over()

    def left_over(self) -> tuple[Drift, ...]:
        """See :meth:`storage_engine.model.broker.FenceWatch.left_over`; the next look gives it otherwise."""
        found, self._found = tuple(self._found), []
        return found

    def _look(self, state: HoldState) -> None:
        fenced = _fenced(state)
        if any(_is_touched(one) and self._is_to_be_set(one) for one in fenced):
            self._mend()
        gone = [one for one in fenced if not _is_there(one)]
        self._said_gone &= set(map(_key, gone))
        short = len(state.fence) < state.fence_count and time.monotonic() >= self._extends_at
        unfinished = any(_is_only_meant(one) and self._is_to_be_set(one) for one in fenced)
        if (gone or short or unfinished) and self._are_mounted(state):
            self._replace(gone)

    def _is_to_be_set(self, touched: Touched) -> bool:
        """Return whether an mtime is to be set now, as far as it couldn't be set a moment ago."""
        _, tries_again_at = self._unset.get(_key(touched), (0, 0.0))
        return time.monotonic() >= tries_again_at

    def _set_mtime(self, acts: Acting, touched: Touched) -> Touched | None:
        """Set one file's mtime; None: it is gone, or can't be set, which is said once it has failed twice."""
        try:
            done = set_mtime(acts, touched)
        except SegmentGoneError:
            return None
        except (GateRefusedError, ChangedUnderUsError) as error:
            failures = self._unset.get(_key(touched), (0, 0.0))[0] + 1
            self._unset[_key(touched)] = (failures, time.monotonic() + RETRY_SECONDS)
            if failures == _SAID_AT:
                detail = f"{error} The watch goes on with the others, and tries again."
                self._found.append(Drift(DriftKind.FENCE_NOT_MENDED, detail, log=LOG))
            return None
        self._unset.pop(_key(touched), None)
        return done

    def _are_mounted(self, state: HoldState) -> bool:
        """Return whether the log's directories are those that they were, or have a file of the fence."""
        there = {}
        for path in {Path(touched.path).parent for touched in _fenced(state)}:
            try:
                stat = path.stat()
            except OSError:
                return False
            there[path] = (stat.st_dev, stat.st_ino)
        known = {path: self._directories.get(path) for path in there}
        if there != known and not any(_is_there(one) for one in _fenced(state)):
            return False
        self._directories = there
        return True

    def _mend(self) -> None:
        """Set the mtimes again that somebody has made older, unless the hold has changed meanwhile."""
        with settled(self._root, wait_seconds=WATCH_WAIT_SECONDS), own_acts(self._root) as acts:
            state = read_local(self._root)
            mended: list[tuple[Touched, int]] = []
            for touched in () if state is None else _fenced(state):
                if not (_is_touched(touched) and self._is_to_be_set(touched)):
                    continue
                found_ns = _mtime_ns(touched)
                if self._set_mtime(acts, touched) is not None and found_ns is not None:
                    mended.append((touched, found_ns))
        if mended:
            paths = [touched.path for touched, _ in mended]
            expected = times_text([touched.mtime_ns // _MS_NS for touched, _ in mended])
            found = times_text([found_ns // _MS_NS for _, found_ns in mended])
            self._say_mended(
                f"{paths_text(paths)}: expected the modification time {expected} that the hold set, found "
                f"{found}: somebody touched {_them(paths)}. The watch has set it again."
            )

    def _replace(self, gone: list[Touched]) -> None:
        """Fence as many segments again as there were, unless a run is changing the hold just now."""
        paths = [one.path for one in gone if _key(one) not in self._said_gone]
        self._said_gone |= set(map(_key, gone))
        if paths:
            what = "a segment" if len(paths) == 1 else f"{len(paths)} segments"
            self._say_mended(
                f"{paths_text(paths)}: expected {what} of the hold's fence, found {_them(paths)} removed or "
                f"replaced. The watch fences others behind {_them(paths)}. What was in {_them(paths)} is "
                "told by the next run."
            )
        self._extends_at = time.monotonic() + EXTEND_SECONDS
        with suppress(StoreBusyError), marker.changing(self._root, wait_seconds=0):
            self._extend()

    def _extend(self) -> None:
        with settled(self._root, wait_seconds=WATCH_WAIT_SECONDS) as directory:
            state = read_local(self._root)
            if state is None or not state.fence:
                return
            files = list_files(tuple(sorted({Path(touched.path).parent for touched in _fenced(state)})))
            wanted = wanted_fence(state, files)
            lease_ns = max(touched.mtime_ns for touched in _fenced(state))
            known = {touched.base_offset: touched for touched in state.touched}
            new = [_lease(file, lease_ns) for file in wanted if not _is_known(known, file)]
            # Nobody is changing the hold: who meant to set these was killed.
            new += [touched for touched in _fenced(state) if _is_only_meant(touched)]
            new = sorted(filter(self._is_to_be_set, new), key=_key)
            meant = _with_fence(state, known | {touched.base_offset: touched for touched in new}, wanted)
            if meant == state and not new:
                return
            write_settled(directory, meant)
            with own_acts(self._root) as acts:
                for touched in reversed(new):
                    done = self._set_mtime(acts, touched)
                    if done is not None:
                        known[done.base_offset] = done
            done_so_far = _with_fence(state, known, wanted)
            if done_so_far != meant:
                write_settled(directory, done_so_far)

    def _say_mended(self, detail: str) -> None:
        detail = f"{detail} Find out who does that, and stop it."
        self._found.append(Drift(DriftKind.FENCE_MENDED, detail, log=LOG))


def wanted_fence(state: HoldState, files: tuple[SeenFile, ...]) -> tuple[SeenFile, ...]:
    """Return the segments that the fence belongs on, by what the log's directories have.

    :param files: of the log, by base offset.
    """
    start = max((state.min_offset, *(offset + 1 for offset in state.releasing)))
    behind = files[-LAST_FILES].base_offset if len(files) >= LAST_FILES else 0
    sealed = (f for f in files if f.base_offset < behind or f.end_offset <= state.max_offset)
    return tuple(file for file in sealed if file.base_offset >= start)[: max(state.fence_count, 1)]


def _with_fence(state: HoldState, known: Mapping[int, Touched], files: Sequence[SeenFile]) -> HoldState:
    """Return a hold with a fence on these segments, as far as they were touched.

    With none of them it stays what it was: that tells where the log is.

    :param known: what was touched, by base offset.
    """
    fence = tuple(file.base_offset for file in files if _is_known(known, file))
    return replace(
        state,
        touched=tuple(touched for _, touched in sorted(known.items())),
        fence=fence or state.fence,
        fence_offset=fence[0] if fence else state.fence_offset,
    )


def _key(touched: Touched) -> tuple[int, int]:
    return touched.base_offset, touched.inode


def _fenced(state: HoldState) -> list[Touched]:
    return [touched for touched in state.touched if touched.base_offset in state.fence]


def _lease(file: SeenFile, lease_ns: int) -> Touched:
    mtime_ns = max(file.mtime_ns, lease_ns)
    return Touched(
        file.base_offset, file.path, file.inode, file.mtime_ns, mtime_ns, before_mtime_ns=file.mtime_ns
    )


def _is_known(known: Mapping[int, Touched], file: SeenFile) -> bool:
    touched = known.get(file.base_offset)
    return touched is not None and touched.inode == file.inode


def _is_there(touched: Touched) -> bool:
    try:
        return Path(touched.path).stat().st_ino == touched.inode
    except FileNotFoundError:
        return False


def _mtime_ns(touched: Touched) -> int | None:
    """A file's mtime; None: it is gone, or another one by now."""
    try:
        found = Path(touched.path).stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns if found.st_ino == touched.inode else None


def _is_touched(touched: Touched) -> bool:
    """Return whether somebody has made a file older than the hold did; younger ones keep as well."""
    found_ns = _mtime_ns(touched)
    if found_ns is None or found_ns >= touched.mtime_ns:
        return False
    return not any(same_ms(found_ns, ours) for ours in touched.possible_mtimes_ns)


def _is_only_meant(touched: Touched) -> bool:
    """Return whether a file's mtime was to be set, and is older than that."""
    found_ns = _mtime_ns(touched)
    return touched.ctime_ns is None and found_ns is not None and found_ns < touched.mtime_ns


def _them(paths: Sequence[str]) -> str:
    return "it" if len(paths) == 1 else "them"
