"""Which release a broker names, and which were tried."""

from __future__ import annotations

import pytest

from storage_engine.rocketmq.format.broker_config import is_tried, release_of


@pytest.mark.parametrize(
    ("ordinal", "release"),
    [
        (401, "4.9.4"),
        (407, "4.9.7"),
        (412, "5.0.0"),  # its snapshot
        (413, "5.0.0"),
        (441, "5.1.4"),
        (453, "5.2.0"),
        (479, "5.3.3"),
        (493, "5.4.0"),
        (515, "5.5.1"),
    ],
)
def test_a_release_is_known_by_the_number_in_its_brokers_answers(ordinal: int, release: str) -> None:
    assert release_of(ordinal) == release
    assert is_tried(release)


@pytest.mark.parametrize("ordinal", [0, 212, 391, 399, 533, 611, 612])
def test_a_release_that_nobody_tried_is_known_for_one(ordinal: int) -> None:
    assert release_of(ordinal)
    assert not is_tried(release_of(ordinal))
