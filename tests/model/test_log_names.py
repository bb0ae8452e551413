"""What a log may be called."""

from __future__ import annotations

import pytest

from storage_engine.model.log_names import MAX_NAME_BYTES, log_name_fault


@pytest.mark.parametrize(
    "name", ["commitlog", "orders-3", "a.b_c", "..x", "Aufträge 7", "x" * MAX_NAME_BYTES]
)
def test_a_name_that_can_be_stored_and_printed_is_taken(name: str) -> None:
    assert log_name_fault(name) == ""


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "at least one character"),
        (" ", "at least one character"),
        (".", "the way to a directory"),
        ("..", "the way to a directory"),
        ("a/b", "no / and no"),
        ("a\\b", "no / and no"),
        ("a\nb", "printable"),
        ("a\0b", "printable"),
        ("\x1b[31m", "printable"),
        ("\ud800", "printable"),
        ("right\u202eleft", "printable"),
        ("x" * (MAX_NAME_BYTES + 1), "at most 200 bytes"),
        ("ä" * 101, "at most 200 bytes in UTF-8, found 202"),
        (7, "text, found int"),
        (None, "text, found NoneType"),
    ],
)
def test_any_other_name_is_refused(name: object, fault: str) -> None:
    assert fault in log_name_fault(name)
