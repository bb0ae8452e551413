"""What a log may be called."""

from __future__ import annotations

import pytest

from storage_engine.model.store import MAX_NAME_BYTES, in_file_name, log_name_fault


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
        (".", "a path to a directory"),
        ("..", "a path to a directory"),
        ("a/b", "no / and no"),
        ("a\\b", "no / and no"),
        ("a\nb", "printable"),
        ("a\0b", "printable"),
        ("\x1b[31m", "printable"),
        ("\ud800", "printable"),
        ("right\u202eleft", "printable"),
        ("x" * (MAX_NAME_BYTES + 1), "at most 260 bytes"),
        ("ä" * 131, "at most 260 bytes in UTF-8, found 262"),
        (7, "text, found int"),
        (None, "text, found NoneType"),
    ],
)
def test_any_other_name_is_refused(name: object, fault: str) -> None:
    assert fault in log_name_fault(name)


def test_a_short_name_is_a_part_of_a_files_name_as_it_is() -> None:
    assert in_file_name("x" * 148, 148) == "x" * 148
    assert in_file_name("a/b", 148) == "a_b"


def test_longer_names_are_shortened_and_no_two_of_them_alike() -> None:
    names = [f"{'x' * 249}-{number}" for number in range(12)] + ["ä" * 130, "x" * 149]
    shortened = [in_file_name(name, 148) for name in names]
    # A log may be called what another's name is shortened to.
    again = [in_file_name(name, 148) for name in shortened]
    every = {*names, *shortened, *again}
    assert len(every) == 3 * len(names)
    assert max(len(name.encode()) for name in (*shortened, *again)) <= 148
    assert shortened[0].startswith("x" * 115 + "~")
