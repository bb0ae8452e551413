from __future__ import annotations

import pytest

from storage_engine.wording import bytes_text, duration_text, exact_bytes_text, shortened


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (None, ""),
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (6000, "5.9 KiB"),
        (1 << 20, "1.0 MiB"),
        (1 << 30, "1.0 GiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_sizes_are_in_the_units_that_brokers_are_configured_in(size_bytes: int | None, text: str) -> None:
    assert bytes_text(size_bytes) == text


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (None, ""),
        (0, "0 s"),
        (999, "0 s"),
        (121_099, "2 min 1 s"),
        (3_600_000, "1 h"),
        (252_715_000, "2 d 22 h"),
    ],
)
def test_durations_have_their_two_largest_units(duration_ms: int | None, text: str) -> None:
    assert duration_text(duration_ms) == text


def test_a_long_name_keeps_both_its_ends() -> None:
    name = "%RETRY%" + "g" * 200 + "/7"
    shown = shortened(name, 26)
    assert len(shown) == 26
    assert shown.startswith("%RETRY%")
    assert shown.endswith("/7")
    assert shortened("orders/0", 26) == "orders/0"


def test_the_exact_size_is_beside_a_rounded_one_only() -> None:
    assert exact_bytes_text(1023) == "1023 bytes"
    assert exact_bytes_text(6000) == "5.9 KiB (6000 bytes)"
