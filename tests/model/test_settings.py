"""Each setting is described once; the page has what the table says."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.model.policy import ArchiveWhen, Policy
from storage_engine.model.settings import Setting, read_settings, settings_of

PAGE = Path(__file__).parents[2] / "docs" / "retention.md"


def _refuse(name: str, expected: str, found: object) -> BadInputError:
    return BadInputError(f"{name}: expected {expected}, found {found!r}")


def _row(one: Setting) -> str:
    values = ", ".join(one.choices) or one.expected.removeprefix("a whole number ")
    return f"| `{one.name}` | {values} | {one.default_text or 'none'} | {one.help} |"


def test_the_page_says_what_the_table_does() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    missing = [row for one in settings_of(Policy) if (row := _row(one)) not in rows]
    assert not missing, "put these lines into docs/retention.md:\n" + "\n".join(missing)


def test_numbers_may_be_text_and_empty_is_the_default() -> None:
    read = read_settings(
        Policy, {"archive_when": "seal", "undo_window_hours": "24", "lag_policy": "", "shield": None}, _refuse
    )
    assert read == Policy(archive_when=ArchiveWhen.SEAL, undo_window_hours=24)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"undo_window_hours": 0}, "undo_window_hours: expected a whole number from 1 to 720, found 0"),
        (
            {"undo_window_hours": "1.5"},
            "undo_window_hours: expected a whole number from 1 to 720, found '1.5",
        ),
        ({"undo_window_hours": True}, "undo_window_hours: expected a whole number from 1 to 720, found True"),
        ({"archive_bytes_per_second": -1}, "archive_bytes_per_second: expected a whole number of at least 0"),
        ({"archive": "Off"}, "archive: expected one of required, off, found 'Off'"),
        ({"archive": []}, "archive: expected one of required, off"),
        ({"lag": "block"}, "lag: expected one of archive, lag_policy"),
        ({"shield_mode": "on"}, "shield_mode: expected a setting such as shield"),
    ],
)
def test_what_is_no_value_is_named(values: dict[str, object], said: str) -> None:
    with pytest.raises(BadInputError) as raised:
        read_settings(Policy, values, _refuse)
    assert str(raised.value).startswith(said)
