"""Hooks of MkDocs: the index that pages search from a disk, and each page's text beside it."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

_HEADING = re.compile(r'<h[12] id="([^"]+)">(.*?)<a class="headerlink".*?</h[12]>', re.DOTALL)
_TAG = re.compile(r"<[^>]+>")
_sections: list[dict[str, str]] = []


def on_pre_build(config: Any) -> None:
    """Begin a new index."""
    _sections.clear()


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Add a page's sections to the index, and let the keyboard scroll what is wide.

    :param html: the page's content.
    """
    _, *parts = _HEADING.split(html)
    for anchor, title, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        url = f"{page.file.url}#{anchor}"
        _sections.append({"page": page.title, "title": _plain(title), "url": url, "text": _plain(text)})
    return html.replace("<pre>", '<pre tabindex="0">').replace("<table>", '<table tabindex="0">')


def on_post_build(config: Any) -> None:
    """Write the index as a script, since a page that is opened from a disk may load no data; copy texts."""
    site = Path(config.site_dir)
    (site / "search_index.js").write_text(f"const SECTIONS = {json.dumps(_sections)};\n")
    for unused in site.glob("sitemap.xml*"):
        unused.unlink()
    docs = Path(config.docs_dir)
    for page in docs.rglob("*.md"):
        (site / page.relative_to(docs)).write_bytes(page.read_bytes())


def _plain(html: str) -> str:
    return " ".join(unescape(_TAG.sub(" ", html)).split())
