"""The operator's world: stores with every segment that they ever sealed, lakes, backups, and what was done.

What happens in it happens by lines of shell, and what was done is the list of these lines: a history that
fails is a script.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.histories import broker
from tests.histories.children import Ended, in_child
from tests.histories.verbs import VERBS, held_by


class HistoryError(AssertionError):
    """A history that must not happen: something is lost, or a command ended with a traceback."""


@dataclass(eq=False, slots=True)
class Lake:
    """A lake's directory, or an empty one in its place.

    :param path: where it is now, relative to the world's root.
    :param home: where it is when it is mounted.
    :param warehouse_at: directory of the lake whose warehouse it shares; "": it has its own.
    :param is_mount_point: it is what an unmounted lake left.
    """

    path: str
    home: str
    warehouse_at: str = ""
    is_mount_point: bool = False


@dataclass(slots=True)
class Sealed:
    """A segment that was sealed in a store.

    :param archived_in: lakes in whose warehouse it is, by the word of a command that ended well.
    :param is_gone: it isn't on the store's disk any more.
    :param owed_by: who has to give it back then.
    :param backed_up_in: copies of these lakes that have it.
    """

    base_offset: int
    sha256: str
    archived_in: set[Lake] = field(default_factory=set)
    is_gone: bool = False
    owed_by: set[Lake] = field(default_factory=set)
    backed_up_in: set[Lake] = field(default_factory=set)

    @property
    def key(self) -> tuple[int, str]:
        return self.base_offset, self.sha256

    def copied(self) -> Sealed:
        return replace(
            self,
            archived_in=set(self.archived_in),
            owed_by=set(self.owed_by),
            backed_up_in=set(self.backed_up_in),
        )


@dataclass(eq=False, slots=True)
class Store:
    path: str
    segments: dict[tuple[int, str], Sealed] = field(default_factory=dict)

    def gone(self) -> list[Sealed]:
        return [segment for segment in self.segments.values() if segment.is_gone]


@dataclass(frozen=True, slots=True)
class Backup:
    """Catalog and journal of a lake as they were; those that were there."""

    lake: Lake
    directory: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A cleanup that was killed, and goes on with the same words."""

    store: Store
    lakes: tuple[Lake, ...]
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a line came to.

    :param text: what it said, most of all in its error.
    """

    done: bool
    killed: bool
    text: str
    answer: Any = None


class World:
    """
    :param root: an empty directory; it is made, and gone after :meth:`close`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True)
        for name in ("stores", "lakes", "away", "backups", "restored"):
            (root / name).mkdir()
        self.lines: list[str] = []
        self.counts: Counter[tuple[str, str]] = Counter()
        self.refusals: Counter[tuple[str, str]] = Counter()
        self.stores: list[Store] = []
        self.lakes: list[Lake] = []
        self.backups: list[Backup] = []
        self.interrupted: list[Interrupted] = []
        self.refused: tuple[str, tuple[str, ...]] = ("", ())
        self.numbers: Counter[str] = Counter()
        self._held: dict[tuple[int, int, str], frozenset[tuple[int, str]]] = {}

    def close(self) -> None:
        shutil.rmtree(self.root)

    def new_name(self, kind: str) -> str:
        """Return a name that nothing in this world has yet, such as ``lakes/2``."""
        self.numbers[kind] += 1
        return f"{kind}/{self.numbers[kind] - 1}"

    @property
    def mounted(self) -> list[Lake]:
        """The lakes' directories that an operator sees."""
        return [lake for lake in self.lakes if lake.path == lake.home]

    def path(self, name: str) -> Path:
        return self.root / name

    def holder(self, lake: Lake) -> Lake:
        """Return the lake whose directory has a lake's warehouse."""
        sharing = (one for one in self.lakes if lake.warehouse_at == one.path)
        return next(sharing, lake)

    def shell(self, line: str) -> None:
        """Do a plain line of shell, which has to work."""
        self.lines.append(line)
        done = subprocess.run(
            ["/bin/sh", "-euc", line], cwd=self.root, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise HistoryError(f"{line}: {done.stderr}")
        self._count(line.split()[0], "done")

    def verb(self, *words: str) -> Outcome:
        """Do one of :data:`tests.histories.verbs.VERBS` in a process of its own."""
        self.lines.append(f"h {shlex.join(words)}")
        ended = self._child(words, None)
        text = ended.answer if isinstance(ended.answer, str) else ""
        self._count(words[0], "refused" if text else "done", text)
        return Outcome(not text, False, text, ended.answer)

    def command(self, *words: str, kill: int | None = None) -> Outcome:
        """Run ``storage-engine`` with these words; with ``kill``, until before a durable operation."""
        ended = self._child(("storage-engine", *words), kill)
        kind = " ".join(words[:2]) if words[0] == "lake" else words[0]
        line = f"storage-engine {shlex.join(words)}"
        if ended.killed:
            self.lines.append(f"h kill {kill} {line}")
            self._count(kind, "killed")
            return Outcome(False, True, "")
        answer = ended.answer
        text = answer["err"] + answer["out"]
        done = answer["exit_code"] == 0
        if not done:
            self.refused = (text, words)
        self.lines.append(
            line if done else f"{line} || true  # {_first_line(answer['err'] or answer['out'])}"
        )
        self._count(kind, "done" if done else "refused", text)
        return Outcome(done, False, text, answer)

    def seen(self, used: Iterable[Lake] = (), *, let_go: bool = False) -> None:
        """Look at the stores after an operation.

        :param used: lakes on whose proof it may have deleted segments.
        :param let_go: it may have deleted others, too: a person decided that.
        """
        owed_by = {self.holder(lake) for lake in used}
        for store in self.stores:
            there = broker.segments(self.path(store.path))
            for segment in list(store.segments.values()):
                on_disk = there.get(segment.base_offset) == segment.sha256
                if on_disk or segment.is_gone:
                    continue
                if let_go and not segment.archived_in:
                    del store.segments[segment.key]
                    continue
                segment.is_gone = True
                segment.owed_by = set(segment.archived_in) if let_go else owed_by

    def sealed(self, store: Store) -> None:
        """Record what a store has sealed."""
        for base_offset, sha256 in broker.sealed(self.path(store.path)).items():
            store.segments.setdefault((base_offset, sha256), Sealed(base_offset, sha256))

    def archived(self, store: Store, lakes: Iterable[Lake]) -> None:
        """Record that all that a store has sealed is in one of these lakes."""
        for segment in store.segments.values():
            if not segment.is_gone:
                segment.archived_in |= {self.holder(lake) for lake in lakes}

    def backed_up(self, lake: Lake, copy: Lake) -> None:
        """Record that a copy has what a lake had."""
        for store in self.stores:
            for segment in store.segments.values():
                if self.holder(lake) in segment.owed_by | segment.archived_in:
                    segment.backed_up_in.add(copy)

    def burned(self, lake: Lake) -> None:
        """Let the copies of a lake that is gone for good owe what it owed; what they lack is lost with it."""
        for store in self.stores:
            for segment in list(store.segments.values()):
                segment.archived_in.discard(lake)
                segment.backed_up_in.discard(lake)
                if segment.owed_by == {lake} and not segment.backed_up_in:
                    del store.segments[segment.key]
                elif lake in segment.owed_by:
                    segment.owed_by = segment.owed_by - {lake} | segment.backed_up_in

    def check_bytes(self) -> None:
        """Make sure that the bytes of each segment that is gone are in a warehouse that owes them."""
        owed = [(store, segment) for store in self.stores for segment in store.gone()]
        if not owed:
            return
        holders = {lake for _, segment in owed for lake in segment.owed_by}
        there = {lake: self._held_below(lake) for lake in holders}
        for store, segment in owed:
            if not any(segment.key in there[lake] for lake in segment.owed_by):
                lakes = ", ".join(sorted(lake.path for lake in segment.owed_by)) or "no lake"
                raise HistoryError(
                    f"lost: segment {segment.base_offset} of {store.path} with SHA-256 {segment.sha256}: it "
                    f"isn't on disk, and no data file of {lakes} has it"
                )

    def script(self) -> str:
        """The history as a script that a person can run in the project's directory."""
        head = (
            "#!/bin/bash",
            "# Run it in the project's directory; it makes a directory of its own.",
            "set -eu",
            'export PATH="$PWD/.venv/bin:$PATH" PYTHONPATH="$PWD"',
            'h() { python -m tests.histories "$@"; }',
            'cd "$(mktemp -d)"; pwd; mkdir stores lakes away backups restored',
        )
        return "\n".join((*head, *self.lines)) + "\n"

    def _held_below(self, lake: Lake) -> set[tuple[int, str]]:
        """Segments that are whole in data files of a lake's warehouse, wherever they lie in it."""
        files: dict[tuple[int, int, str], str] = {}
        # Whose warehouse it shared may have moved away, and a new one been made in the place.
        for directory in filter(None, (lake.path, lake.warehouse_at)):
            for path in self.path(directory).rglob("*.parquet*"):
                if "messages" in path.parts:
                    stat = path.stat()
                    files[(stat.st_ino, stat.st_size, path.name)] = str(path)
        new = {key: path for key, path in files.items() if key not in self._held}
        if new:
            ended = in_child(lambda: held_by(list(new.values())))
            if ended.crash:
                raise HistoryError(ended.crash)
            for key, path in new.items():
                self._held[key] = frozenset((base, sha256) for base, sha256 in ended.answer[path])
        return {segment for key in files for segment in self._held[key]}

    def _child(self, words: tuple[str, ...], kill: int | None) -> Ended:
        root = self.root

        def work() -> Any:
            import os

            os.chdir(root)
            return VERBS[words[0]](*words[1:])

        ended = in_child(work, kill)
        if ended.crash:
            self.lines.append(f"{shlex.join(words)}  # {ended.crash.strip().splitlines()[-1]}")
            raise HistoryError(f"{shlex.join(words)}:\n{ended.crash}")
        return ended

    def _count(self, kind: str, how: str, text: str = "") -> None:
        self.counts[(kind, how)] += 1
        if how == "refused":
            self.refusals[(kind, _alike(_first_line(text), self.root))] += 1


def _alike(text: str, root: Path) -> str:
    """An error without what differs from one history to the next."""
    text = re.sub(rf"{root}/\S+", "PATH", text)
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32,}|\d+", "N", text)[:200]


def _first_line(text: str) -> str:
    lines = [line for line in text.splitlines() if "Error" in line or "expected" in line] or text.splitlines()
    return (lines[0] if lines else "")[:300]
