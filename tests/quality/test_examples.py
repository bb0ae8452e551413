"""A row that breaks a rule, as a person reads it."""

from __future__ import annotations

from storage_engine.quality.expectation_rules import example_text


def test_a_row_is_said_in_words_and_never_by_what_stands_for_nothing() -> None:
    values = {"expected_bytes": 323_455, "found_bytes": -1, "expected_sha256": "ab", "found_sha256": ""}
    assert example_text("data/x.parquet", values.items()) == (
        "data/x.parquet: expected bytes 323455, found bytes none (no such file), expected sha256 ab, "
        "found sha256 none (not read)"
    )
    nothing = [("found_bytes", None), ("end_offset", float("nan")), ("name", None)]
    assert example_text("x", nothing) == "x: found bytes none (no such file), end offset none, name none"
    assert example_text("consumequeue/a/0", [("first_offset", -1), ("floor", 0)]) == (
        "consumequeue/a/0: first offset none, floor 0"
    )
