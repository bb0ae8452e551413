from __future__ import annotations

import errno
import re
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

import storage_engine
from storage_engine.cli.shell.values import moment_ms
from storage_engine.core.wording import (
    bytes_text,
    count_text,
    duration_text,
    exact_bytes_text,
    reason_text,
    shorten,
    time_text,
)


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


@pytest.mark.parametrize(
    ("count", "thing", "text"),
    [(1, "directory", "1 directory"), (2, "directory", "2 directories"), (0, "day", "0 days")],
)
def test_one_thing_is_in_the_singular(count: int, thing: str, text: str) -> None:
    assert count_text(count, thing) == text


def test_a_long_name_keeps_both_its_ends() -> None:
    name = "%RETRY%" + "g" * 200 + "/7"
    shown = shorten(name, 26)
    assert len(shown) == 26
    assert shown.startswith("%RETRY%")
    assert shown.endswith("/7")
    assert shorten("orders/0", 26) == "orders/0"


def test_the_exact_size_is_beside_a_rounded_one_only() -> None:
    assert exact_bytes_text(1023) == "1023 bytes"
    assert exact_bytes_text(6000) == "5.9 KiB (6000 bytes)"


SHANGHAI = ZoneInfo("Asia/Shanghai")
MOMENT_MS = round(datetime(2026, 11, 20, 13, 14, 57, 999_000, UTC).timestamp() * 1000)


def test_a_moment_is_told_in_utc_or_with_the_offset_of_its_zone() -> None:
    assert time_text(None) == ""
    assert time_text(MOMENT_MS) == "2026-11-20 13:14:57Z"
    assert time_text(MOMENT_MS, SHANGHAI) == "2026-11-20 21:14:57+08:00"
    assert time_text(MOMENT_MS, ZoneInfo("Europe/London")) == time_text(MOMENT_MS)


@pytest.mark.parametrize("moment", [2**62, -(2**62)])
def test_a_moment_beyond_the_calendar_is_still_told(moment: int) -> None:
    assert time_text(moment, SHANGHAI) == f"{moment} ms after 1970"


def test_an_option_takes_the_moment_at_which_all_begins() -> None:
    assert moment_ms("1970-01-01T00:00Z", None, option="--from-time") == 0


@pytest.mark.parametrize("zone", [None, SHANGHAI])
def test_options_take_the_times_that_are_printed(zone: ZoneInfo | None) -> None:
    printed = time_text(MOMENT_MS) if zone is None else time_text(MOMENT_MS, zone)
    assert moment_ms(printed, "America/New_York", option="--at") == MOMENT_MS - 999


DATA = {
    "lake/restore/export.py",
    "lake/gc/trash.py",
    "console/stores.py",
    "retention/monitor/notifying.py",
    "cli/simulate.py",
    "rocketmq/engine/dispatch/index_writer.py",
}
"""Values of exported rows and of what programs are told, names of directories and files, whole
days: no text of a moment for a person."""


def test_no_module_has_a_format_of_times_of_its_own() -> None:
    root = Path(storage_engine.__file__).parent
    formats = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if re.search(r"strftime|\.isoformat\(|:%Y|gmtime|localtime\(", path.read_text())
    }
    assert formats == {"core/wording.py"} | DATA


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/a/file"), "/a/file: No space left on device"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (OSError("AWS Error ACCESS_DENIED"), "AWS Error ACCESS_DENIED"),
        (ValueError("no number"), "no number"),
    ],
)
def test_a_reason_names_the_file_and_no_number(error: Exception, text: str) -> None:
    assert reason_text(error) == text
