"""A segment's further files as its receipt has them: what they are and, byte for byte, what is in them.

The receipt's ``files`` is a JSON list with an object for each, sorted by name. ``content`` is the file,
compressed by zlib, in base64. Whoever reads it believes nothing: sizes, hashes and names are checked.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from storage_engine.core.jsonable import from_jsonable
from storage_engine.exceptions import BadInputError, ReceiptError, StoreLayoutError
from storage_engine.model.store.store import FileFacts

MAX_COMPANION_BYTES: Final = 1 << 20
"""Of one segment's companions together: receipts are read whole, and often."""

_LONGEST_NAME_BYTES: Final = 255


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a further file, but for what is in it.

    :param name: within the segment's directory.
    """

    name: str
    size_bytes: int
    sha256: str
    device: int
    inode: int
    mtime_ns: int
    ctime_ns: int


@dataclass(frozen=True, slots=True)
class Companion(_Known):
    """A further file of a segment, as it was when it was proven."""

    content: bytes = field(repr=False)

    @classmethod
    def of(cls, facts: FileFacts, content: bytes) -> Companion:
        """Return the companion that these facts and bytes are of."""
        return cls(
            name=Path(facts.path).name,
            size_bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            device=facts.device,
            inode=facts.inode,
            mtime_ns=facts.mtime_ns,
            ctime_ns=facts.ctime_ns,
            content=content,
        )

    def facts_in(self, directory: Path) -> FileFacts:
        """Return what the file's facts were, by the directory that it was in."""
        path = str(directory / self.name)
        return FileFacts(path, self.device, self.inode, self.size_bytes, self.mtime_ns, self.ctime_ns)


def companions_text(companions: Iterable[Companion]) -> str | None:
    """Return what a receipt says of a segment's companions; None: there are none."""
    rows = [
        {**asdict(one), "content": base64.b64encode(zlib.compress(one.content)).decode()}
        for one in sorted(companions, key=lambda one: one.name)
    ]
    return json.dumps(rows, separators=(",", ":")) if rows else None


def read_companions(text: str | None) -> tuple[Companion, ...]:
    """Return the companions that :func:`companions_text` was given.

    :raises ReceiptError: it made no such text; says what is wrong with it.
    """
    if text is None:
        return ()
    try:
        rows = json.loads(text, object_pairs_hook=_each_key_once)
        if not isinstance(rows, list) or not rows:
            raise ValueError(f"expected a list of files, found {_shown(rows)}")
        companions = tuple(_read(row) for row in rows)
        names = [one.name for one in companions]
        if sorted(set(names)) != names:
            raise ValueError(f"expected each file once and by name, found {', '.join(map(repr, names))}")
        if (total := sum(one.size_bytes for one in companions)) > MAX_COMPANION_BYTES:
            raise ValueError(f"expected at most {MAX_COMPANION_BYTES} bytes in all, found {total}")
    except (ValueError, RecursionError, BadInputError) as error:
        raise ReceiptError(f"its files are not sound: {error}") from error
    return companions


def files_fault(text: str | None) -> str:
    """Return why what a receipt says of its segment's companions can't be believed; "" when it can."""
    try:
        read_companions(text)
    except ReceiptError as error:
        return str(error)
    return ""


def check_size(own: FileFacts, companions: Iterable[FileFacts]) -> None:
    """Make sure that a receipt can have these files.

    :param own: the segment's own file.
    :raises StoreLayoutError: they are too long.
    """
    files = list(companions)
    total = sum(file.size_bytes for file in files)
    if total > MAX_COMPANION_BYTES:
        largest = max(files, key=lambda file: file.size_bytes)
        raise StoreLayoutError(
            f"{largest.path}: expected at most {MAX_COMPANION_BYTES} bytes in the companions of segment "
            f"{own.path}, found {total}, of which this one has {largest.size_bytes}. Nothing was archived. "
            "Find out why it is so long; the segment stays as long as it is."
        )


def _read(row: Any) -> Companion:
    said = from_jsonable(_Said, row, "file")
    if not _is_name(said.name):
        raise ValueError(f"expected the name of a file in the segment's directory, found {_shown(said.name)}")
    if not 0 <= said.size_bytes <= MAX_COMPANION_BYTES:
        raise ValueError(f"{said.name}: expected 0 to {MAX_COMPANION_BYTES} bytes, found {said.size_bytes}")
    content = _inflated(said)
    if (sha256 := hashlib.sha256(content).hexdigest()) != said.sha256:
        raise ValueError(f"{said.name}: expected content with SHA-256 {_shown(said.sha256)}, found {sha256}")
    return Companion(**{**asdict(said), "content": content})


@dataclass(frozen=True, slots=True)
class _Said(_Known):
    """A companion as its object says it."""

    content: str


def _inflated(said: _Said) -> bytes:
    """Return the content, which takes no more memory than its size says, whatever it claims to be."""
    inflate = zlib.decompressobj()
    try:
        content = inflate.decompress(base64.b64decode(said.content, validate=True), said.size_bytes + 1)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"{said.name}: expected content of zlib in base64, found other: {error}") from error
    if len(content) != said.size_bytes or not inflate.eof or inflate.unused_data:
        raise ValueError(
            f"{said.name}: expected {said.size_bytes} bytes and nothing behind, found "
            f"{'more' if len(content) > said.size_bytes or inflate.unused_data else len(content)}"
        )
    return content


def _is_name(name: str) -> bool:
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:
        return False
    fits = 0 < len(encoded) <= _LONGEST_NAME_BYTES
    return fits and name not in (".", "..") and not {"/", "\0"} & set(name)


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"expected each key once, found {', '.join(key for key, _ in pairs)}")
    return found


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]} …"
