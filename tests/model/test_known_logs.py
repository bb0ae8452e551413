"""Whether two identities may be of one log."""

from __future__ import annotations

import pytest

from storage_engine.model.store import may_be_one


@pytest.mark.parametrize(
    ("log_id", "other_id", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("", "b", True),
        ("named:c/a", "named:c/b", True),
        ("named:c/a", "b", True),
        ("named:c/a", "", True),
    ],
)
def test_names_tell_no_two_logs_apart(log_id: str, other_id: str, expected: bool) -> None:
    assert may_be_one(log_id, other_id) is expected
    assert may_be_one(other_id, log_id) is expected
