"""What the console's page is made of: read once from the package, and never by a name from a request."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "static"
PAGE = "index.html"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
"""Stated here, since what a system says of them differs."""


@dataclass(frozen=True, slots=True)
class StaticFile:
    """:param media_type: with its charset, where it is text."""

    content: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class StaticFiles:
    """All files by name, such as ``app.js`` or ``words/en.js``.

    :param digest: of all of them; in an address it lets a browser keep what it has.
    """

    files: Mapping[str, StaticFile]
    digest: str

    @property
    def page(self) -> bytes:
        """Return the page, whose files are named by addresses that change when a file does."""
        text = self.files[PAGE].content.decode()
        return text.replace('"static/', f'"static/{self.digest}/').encode()


@cache
def static_files() -> StaticFiles:
    """Return the files that this release has."""
    paths = sorted(path for path in _FOLDER.rglob("*") if path.is_file())
    files = {path.relative_to(_FOLDER).as_posix(): _read(path) for path in paths}
    whole = hashlib.sha256()
    for name, file in files.items():
        whole.update(f"{name}\0{len(file.content)}\0".encode())
        whole.update(file.content)
    return StaticFiles(files, whole.hexdigest()[:16])


def _read(path: Path) -> StaticFile:
    media_type = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "text/plain"
    text = media_type.startswith("text/") or path.suffix == ".svg"
    return StaticFile(path.read_bytes(), f"{media_type}; charset=utf-8" if text else media_type)
