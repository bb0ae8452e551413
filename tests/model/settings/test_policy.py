from __future__ import annotations

import pytest

from storage_engine.model.settings.policy import GENTLE_BYTES_PER_SECOND, Policy, archive_limit


@pytest.mark.parametrize(
    ("said", "beside", "emergency", "limit"),
    [
        (None, True, False, GENTLE_BYTES_PER_SECOND),
        (None, False, False, None),
        (0, True, False, None),
        (0, False, False, None),
        (7, True, False, 7),
        (7, False, False, 7),
        (7, False, True, 7),
        (None, True, True, None),
        (7, True, True, None),
    ],
)
def test_archiving_is_gentle_beside_a_broker_but_in_an_emergency(
    said: int | None, beside: bool, emergency: bool, limit: int | None
) -> None:
    policy = Policy(archive_bytes_per_second=said)
    assert archive_limit(policy, beside=beside, emergency=emergency) == limit
