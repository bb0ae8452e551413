"""Each setting is described once; the page has what the table says."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.model.settings.policy import (
    ArchiveWhen,
    LagPolicy,
    Policy,
    Setting,
    ShieldMode,
    settings_of,
)

SETTINGS = {one.name: one for one in settings_of(Policy)}
PAGE = Path(__file__).parents[3] / "docs" / "retention.md"


def _refuse(name: str, expected: str, found: object) -> BadInputError:
    return BadInputError(f"{name}: expected {expected}, found {found!r}")


def _row(one: Setting) -> str:
    values = ", ".join(one.choices) or one.expected.removeprefix("a whole number ")
    return f"| `{one.name}` | {values} | {one.default_text or 'none'} | {one.help} |"


def test_the_page_says_what_the_table_does() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    missing = [row for one in settings_of(Policy) if (row := _row(one)) not in rows]
    assert not missing, "put these lines into docs/retention.md:\n" + "\n".join(missing)


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("archive_when", "seal", ArchiveWhen.SEAL),
        ("undo_window_hours", "24", 24),
        ("lag_policy", "", LagPolicy.WARN),
        ("shield", None, ShieldMode.AUTO),
        ("archive_bytes_per_second", 0, 0),
        ("undo_directories", "/undo", ("/undo",)),
        ("undo_directories", ["/a", "/b"], ("/a", "/b")),
    ],
)
def test_numbers_may_be_text_and_empty_is_the_default(name: str, value: object, read: object) -> None:
    assert SETTINGS[name].read(value, _refuse) == read


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("undo_window_hours", 0, "expected a whole number from 1 to 720, found 0"),
        ("undo_window_hours", "1.5", "expected a whole number from 1 to 720, found '1.5'"),
        ("undo_window_hours", True, "expected a whole number from 1 to 720, found True"),
        ("archive_bytes_per_second", -1, "expected a whole number of at least 0, found -1"),
        ("archive", "Off", "expected one of required, off, found 'Off'"),
        ("archive", [], "expected one of required, off, found []"),
        ("undo_directories", ["undo"], "expected one absolute path, or a list of them, found ['undo']"),
    ],
)
def test_what_is_no_value_is_named(name: str, value: object, said: str) -> None:
    with pytest.raises(BadInputError) as raised:
        SETTINGS[name].read(value, _refuse)
    assert str(raised.value) == f"{name}: {said}"
