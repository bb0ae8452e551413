"""What a running broker of Kafka does to the files of a node, each by itself, as often as one likes."""

from __future__ import annotations

import uuid
from pathlib import Path

_SUFFIXES = ("log", "index", "timeindex", "txnindex", "snapshot")


class NodeActs:
    """
    :param logs: a log directory.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._turn = 0

    def expire(self) -> None:
        """Rename the files of a log's oldest segment that is closed (LogSegment#changeFileSuffixes)."""
        for log in self._in_turn():
            if len(files := sorted(log.glob("*.log"))) > 1:
                for suffix in _SUFFIXES:
                    path = files[0].with_suffix(f".{suffix}")
                    if path.exists():
                        path.rename(f"{path}.deleted")
                return

    def expire_many(self) -> None:
        """Do so with three segments of one log."""
        for _ in range(3):
            self._turn -= 1
            self.expire()

    def remove(self) -> None:
        """Remove what was renamed (UnifiedLog#deleteSegmentFiles, after file.delete.delay.ms)."""
        for path in (*self._logs.glob("*/*.deleted"), *self._logs.glob("*-delete/*")):
            path.unlink()
        for path in self._logs.glob("*-delete"):
            path.rmdir()

    def delete_topic(self) -> None:
        """Rename a log's directory (UnifiedLog#renameDir)."""
        for log in self._in_turn():
            log.rename(log.with_name(f"{log.name}.{uuid.uuid4().hex}-delete"))
            return

    def append(self) -> None:
        """Write a part of a batch behind a log's end."""
        for log in self._in_turn():
            with max(log.glob("*.log")).open("ab") as file:
                file.write(bytes(20))
            return

    def compact(self) -> None:
        """Put a copy in the place of a compacted log's first segments (UnifiedLog#replaceSegments)."""
        for log in self._logs.glob("compacted-*[0-9]"):
            first, second, *more = sorted(log.glob("*.log"))
            if more:
                swap = first.with_suffix(".log.swap")
                swap.write_bytes(first.read_bytes() + second.read_bytes())
                for suffix in _SUFFIXES:
                    path = second.with_suffix(f".{suffix}")
                    if path.exists():
                        path.rename(f"{path}.deleted")
                swap.rename(first)

    def start(self) -> None:
        """Begin as a broker does: the marker of a clean stop goes, and checkpoints are written anew."""
        (self._logs / ".kafka_cleanshutdown").unlink(missing_ok=True)
        for path in self._logs.glob("*-checkpoint"):
            new = path.with_name(f"{path.name}.tmp")
            new.write_bytes(path.read_bytes())
            new.rename(path)

    @property
    def all(self) -> tuple[str, ...]:
        return ("expire", "expire_many", "remove", "delete_topic", "append", "compact", "start")

    def _in_turn(self) -> list[Path]:
        """Return the logs, another one first each time."""
        self._turn += 1
        logs = sorted(path for path in self._logs.iterdir() if path.is_dir() and path.name[-1].isdigit())
        logs = [path for path in logs if "-delete" not in path.name and any(path.glob("*.log"))]
        place = self._turn % len(logs) if logs else 0
        return logs[place:] + logs[:place]
