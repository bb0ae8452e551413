"""An SVG picture as pixels, for where only these are taken. Needs the extra ``charts``."""

from __future__ import annotations

from typing import Final

from storage_engine.core.extras import CHARTS
from storage_engine.exceptions import StorageEngineError

_ZOOM: Final = 2
"""Pixels a unit of the picture, so that it is sharp on today's screens."""
_LETTER: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">'
    '<text y="15" font-family="{}">{}</text></svg>'
)
_FAMILIES: Final = (
    "DejaVu Sans",
    "Liberation Sans",
    "Noto Sans",
    "Arial",
    "Helvetica",
    "Open Sans",
    "Roboto",
    "Cantarell",
    "Noto Sans CJK SC",
    "WenQuanYi Zen Hei",
)
"""One of these is on nearly every machine that has a font; the picture's words are in the first that is."""


def png_of(svg: str) -> bytes:
    """Draw a picture with the fonts of this machine.

    :raises MissingExtraError: the extra isn't installed.
    :raises StorageEngineError: this machine has no font, so that its words would be missing.
    """
    CHARTS.require("A PNG")
    import resvg_py

    blank = resvg_py.svg_to_bytes(svg_string=_LETTER.format("", ""))
    shown = (
        name for name in _FAMILIES if resvg_py.svg_to_bytes(svg_string=_LETTER.format(name, "M")) != blank
    )
    family = next(shown, None)
    if family is None:
        raise StorageEngineError(
            f"PNG: expected one of the fonts {', '.join(_FAMILIES)} on this machine, found none, so that its "
            "words would be missing. Nothing was written. Install fonts-dejavu-core, or draw an SVG."
        )
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=_ZOOM, sans_serif_family=family))
