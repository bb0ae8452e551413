"""Log directories that a real Kafka 4.1.0 broker wrote, with what Kafka's own classes read from them.

``clean-stop.jsonl.gz`` has an object a line; its ``t`` says what Kafka's class read. ``records`` of a
batch is a digest of its records, as :func:`digest_of` makes it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parent / "fixtures" / "kafka"


def unpack(target: Path) -> Path:
    """Unpack the node below a directory. :return: its directory, with ``server.properties``."""
    with tarfile.open(FIXTURES / "clean-stop.tar.xz") as archive:
        archive.extractall(target, filter="data")
    properties = target / "server.properties"
    properties.write_text(properties.read_text().replace("@DIR@", str(target)))
    return target


@cache
def truth() -> Mapping[str, tuple[dict[str, Any], ...]]:
    """Return what Kafka's classes read, by kind."""
    found: dict[str, list[dict[str, Any]]] = {}
    with gzip.open(FIXTURES / "clean-stop.jsonl.gz", "rt") as lines:
        for line in lines:
            row = json.loads(line)
            found.setdefault(row["t"], []).append(row)
    return {kind: tuple(rows) for kind, rows in found.items()}


def digest_of(records: Iterable[Mapping[str, Any]]) -> str:
    """Return a digest of records: offset, time in ms, key and value by their SHA-256, headers in hex."""
    lines = [
        json.dumps(
            [
                record["offset"],
                record["timestamp_ms"],
                _digest(record["key"]),
                _digest(record["value"]),
                [[h["key"], None if h["value"] is None else h["value"].hex()] for h in record["headers"]],
            ],
            separators=(",", ":"),
        )
        for record in records
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _digest(value: bytes | None) -> str | None:
    return None if value is None else hashlib.sha256(value).hexdigest()[:16]
