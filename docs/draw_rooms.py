"""Draw docs/rooms.svg: the packages of storage_engine as rooms, and who imports whom as arrows.

An arrow that follows from others is left out.

Usage: python docs/draw_rooms.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import permutations
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "rooms.svg"
PACKAGE = "storage_engine"

FLOORS = {
    "Airflow": ("operators", "sensors", "triggers", "hooks"),
    "Shell and projects": ("cli", "project"),
    "Jobs": ("spark", "quality", "lake_server"),
    "Engine": ("retention",),
    "Lake and pages": ("lake", "pages"),
    "Brokers": ("brokers", "rocketmq"),
    "Files": ("shield", "same_bytes"),
    "Data": ("model",),
}
"""Rooms by floor, from the top; what all share (core, arrow, modules that are no package) is left out."""

Arrow = tuple[str, str]
"""Who imports, and what."""

UP: set[Arrow] = {("cli", "hooks")}
"""The one import that ``lint-imports`` lets point up: ``--conn-id`` looks a connection up."""

WIDTH, FLOOR_HEIGHT, LABEL_WIDTH = 960, 92, 150
ROOM_WIDTH, ROOM_HEIGHT = 150, 44


@dataclass(frozen=True, slots=True)
class Room:
    """:param x: of its left side, ``y`` of its top; pixels."""

    name: str
    floor: int
    x: int
    y: int


def rooms() -> dict[str, Room]:
    """Return the rooms by name, spread over the width of their floor."""
    found = {}
    for floor, names in enumerate(FLOORS.values()):
        share = (WIDTH - LABEL_WIDTH) // len(names)
        for column, name in enumerate(names):
            x = LABEL_WIDTH + column * share + (share - ROOM_WIDTH) // 2
            found[name] = Room(name, floor, x, 20 + floor * FLOOR_HEIGHT)
    return found


def imports(graph: grimp.ImportGraph, names: Sequence[str]) -> set[Arrow]:
    """Return who imports whom."""
    return {
        (importer, imported)
        for importer, imported in permutations(names, 2)
        if graph.direct_import_exists(
            importer=f"{PACKAGE}.{importer}", imported=f"{PACKAGE}.{imported}", as_packages=True
        )
    }


def without_detours(arrows: set[Arrow]) -> list[Arrow]:
    """Return the arrows that don't follow from others: of a → b → c and a → c, the last one does.

    :param arrows: without a circle.
    """

    def leads(start: str, end: str) -> bool:
        return any(one == end or leads(one, end) for begin, one in arrows if begin == start)

    return sorted(
        (start, end)
        for start, end in arrows
        if not any(leads(other, end) for begin, other in arrows if begin == start and other != end)
    )


def path_of(importer: Room, imported: Room) -> str:
    """Return an arrow's curve: down, or beside where both rooms are on one floor, or up."""
    if importer.floor == imported.floor:
        right = importer.x < imported.x
        start = importer.x + (ROOM_WIDTH if right else 0)
        end = imported.x + (0 if right else ROOM_WIDTH)
        y = importer.y + ROOM_HEIGHT // 2
        return f"M{start},{y} C{start},{y + 40} {end},{y + 40} {end},{y}"
    down = importer.floor < imported.floor
    start_y = importer.y + (ROOM_HEIGHT if down else 0)
    end_y = imported.y + (0 if down else ROOM_HEIGHT)
    start_x, end_x = importer.x + ROOM_WIDTH // 2, imported.x + ROOM_WIDTH // 2
    middle = (start_y + end_y) // 2
    # Around the rooms between: an arrow over several floors bends outwards.
    between = abs(imported.floor - importer.floor) - 1
    bend = (85 + 25 * between if between else 0) * (-1 if start_x < WIDTH // 2 else 1)
    return f"M{start_x},{start_y} C{start_x + bend},{middle} {end_x + bend},{middle} {end_x},{end_y}"


def draw() -> str:
    """Return the picture as SVG."""
    graph = grimp.build_graph(PACKAGE, include_external_packages=False, cache_dir=None)
    there = rooms()
    found = imports(graph, list(there))
    height = 20 + len(FLOORS) * FLOOR_HEIGHT + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="14">',
        "<title>Rooms of storage_engine, and who imports whom</title>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#55606e"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for floor, label in enumerate(FLOORS):
        y = 20 + floor * FLOOR_HEIGHT
        lines.append(
            f'<rect x="8" y="{y - 12}" width="{WIDTH - 16}" height="{ROOM_HEIGHT + 24}" rx="8" '
            f'fill="#f3f5f8"/><text x="20" y="{y + 27}" fill="#55606e">{escape(label)}</text>'
        )
    lines += [
        f'<path d="{path_of(there[importer], there[imported])}" fill="none" stroke="#55606e"{dashes} '
        f'marker-end="url(#head)"><title>{importer} imports {imported}</title></path>'
        for (importer, imported), dashes in [
            *((arrow, "") for arrow in without_detours(found - UP)),
            *((arrow, ' stroke-dasharray="4 4"') for arrow in sorted(found & UP)),
        ]
    ]
    for room in there.values():
        centre = room.x + ROOM_WIDTH // 2
        lines.append(
            f'<rect x="{room.x}" y="{room.y}" width="{ROOM_WIDTH}" height="{ROOM_HEIGHT}" rx="6" '
            f'fill="#ffffff" stroke="#2b6cb0"/><text x="{centre}" y="{room.y + 27}" text-anchor="middle" '
            f'fill="#1a202c">{escape(room.name)}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(draw())
