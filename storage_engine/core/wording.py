"""Texts of numbers, times and names for people. The known name that is most similar to a mistyped name."""

from __future__ import annotations

import re
import traceback
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from difflib import get_close_matches
from functools import lru_cache
from pathlib import PurePath
from zoneinfo import available_timezones

from rich.filesize import pick_unit_and_suffix

from storage_engine.commands import Text

UNCHANGED = "hashed again, unchanged"
"""State of an archived segment whose files were touched, but have the same bytes."""
_BINARY_UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"]
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGTP]?)(i?)B?\s*", re.IGNORECASE)
_FIRST_DAY = date(1970, 1, 1)
_DURATIONS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


_CONTROLS = (
    "\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f"
    "\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff\\ufeff"
)
_UNPRINTABLE = re.compile(f"[\\n{_CONTROLS}]")
"""Control characters, characters that change the text's direction, and surrogates."""
_UNPRINTABLE_BUT_NEWLINE = re.compile(f"[{_CONTROLS}]")


def printable(text: str, *, keep: str = "") -> str:
    """Return an untrusted text with escapes in place of control characters and the like.

    Producers, consumers and anyone who writes to a store choose names, which could change the display.

    :param keep: characters that are kept, such as a newline.
    """

    def write_out(match: re.Match[str]) -> str:
        code = ord(match[0])
        return match[0] if match[0] in keep else f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"

    return _UNPRINTABLE.sub(write_out, text)


def printable_json(document: str) -> str:
    """Return the same JSON document with escapes of JSON for unprintable characters. Newlines stay."""
    return _UNPRINTABLE_BUT_NEWLINE.sub(lambda match: f"\\u{ord(match[0]):04x}", document)


def shorten(name: str, width: int) -> str:
    """Return a name in at most ``width`` characters, if needed without its middle. Most names differ at the
    ends.
    """
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: width - 1 - tail]}…{name[-tail:]}"


@lru_cache(maxsize=1024)
def bytes_text(size_bytes: int | None) -> str:
    """Return a size in binary units, which brokers use in their configuration; "" for None."""
    if size_bytes is None:
        return ""
    unit, suffix = pick_unit_and_suffix(size_bytes, _BINARY_UNITS, 1024)
    return f"{size_bytes} bytes" if unit == 1 else f"{size_bytes / unit:,.1f} {suffix}"


def parse_size(text: str) -> int | None:
    """Return the bytes of a text such as 10GiB, 500 MB or 4096; None for another text."""
    match = _SIZE.fullmatch(text)
    if match is None or (match[3] and not match[2]):
        return None
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGTP".index(unit.upper() or " "))


def exact_bytes_text(size_bytes: int) -> str:
    """Return a size as :func:`bytes_text` does, followed by the exact number of bytes."""
    text = bytes_text(size_bytes)
    return text if text.endswith("bytes") else f"{text} ({size_bytes} bytes)"


def time_text(timestamp_ms: int | None, zone: tzinfo = UTC) -> str:
    """Return a time to the second; "" for None. A time beyond the calendar is given in milliseconds.

    :param zone: the time zone of the text, such as that of deleteWhen. The text ends with Z or the offset.
    """
    if timestamp_ms is None:
        return ""
    try:
        if zone is UTC:
            # The dates are cached: a plan of many logs has tens of thousands of times within a few days.
            minutes, second = divmod(timestamp_ms // 1000, 60)
            hours, minute = divmod(minutes, 60)
            days, hour = divmod(hours, 24)
            return f"{_day_text(days)} {hour:02}:{minute:02}:{second:02}Z"
        moment = datetime.fromtimestamp(timestamp_ms // 1000, zone)
    except (ValueError, OverflowError, OSError):  # an mtime can be any number
        return f"{timestamp_ms} ms after 1970"
    text = moment.isoformat(sep=" ", timespec="seconds")
    return f"{text.removesuffix('+00:00')}Z" if text.endswith("+00:00") else text


@lru_cache(maxsize=1024)
def _day_text(days: int) -> str:
    """:raises OverflowError: the date, in days since 1970, is beyond the calendar."""
    return (_FIRST_DAY + timedelta(days=days)).isoformat()


def duration_text(duration_ms: int | None) -> str:
    """Return a duration in its two largest units; "" for None."""
    if duration_ms is None:
        return ""
    left_seconds, parts = duration_ms // 1000, []
    for seconds, unit in _DURATIONS:
        if left_seconds >= seconds:
            parts.append(f"{left_seconds // seconds} {unit}")
            left_seconds %= seconds
    return " ".join(parts[:2]) or "0 s"


def count_text(count: int, thing: str) -> str:
    """Return a number with a noun, in the plural if needed. ``thing`` is the noun's singular."""
    if count == 1:
        return f"{count} {thing}"
    ends_in_ies = thing.endswith("y") and thing[-2:-1] not in ("a", "e", "o", "u")
    return f"{count} {thing[:-1]}ies" if ends_in_ies else f"{count} {thing}s"


def store_text(name: str, broker: str, root: str) -> str:
    """Return the first line of an output about a store: the store's name, broker and path."""
    return f"Store {name} ({broker}, {root})"


def paths_text(paths: Sequence[str]) -> str:
    """Return a short text on similar files: the first file, the number of further files, the last file."""
    first, *more = paths
    return f"{first} and {len(more)} more, the last {PurePath(more[-1]).name}" if more else first


def times_text(timestamps_ms: Collection[int]) -> str:
    """Return the common time of several things, or the first and the last of their times."""
    texts = list(dict.fromkeys(time_text(timestamp_ms) for timestamp_ms in sorted(timestamps_ms)))
    return texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"


def reason_text(error: BaseException) -> str:
    """Return the text of an error. For an OSError it has the file, but no error number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return Text(error)


def lock_advice(cause: str) -> str:
    """Return the advice for SQLite's error that a file is locked; "" for another error."""
    if "database is locked" not in cause:
        return ""
    return (
        "Another process kept a lock on this file for longer than this one waited. Wait for that process, "
        "or find it with fuser -v FILE and end it. Then run the same again."
    )


def unexpected_text(error: Exception) -> str:
    """Return the text of an unforeseen error: its class, its message, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return Text(f"{type(error).__name__}: ", error, place)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to a word, in any case of letters; None if none is similar.

    The last part of a name with slashes also matches: ``Shanghai`` for ``Asia/Shanghai``.
    """
    names = sorted(known)
    folded = word.casefold()
    by_part = {name.rpartition("/")[2].casefold(): name for name in reversed(names)}
    by_name = {name.casefold(): name for name in reversed(names)}
    for candidates in (by_name, by_part):
        if folded in candidates:
            return candidates[folded]
    similar = get_close_matches(folded, [*by_name, *by_part], n=1)
    return (by_name | by_part)[similar[0]] if similar else None


def meant_zone(word: str) -> str:
    """Return :func:`did_you_mean` for the time zones of the IANA database."""
    # Etc/GMT+8 is eight hours west of Greenwich, which a person who writes UTC+8 doesn't mean.
    return did_you_mean(word, (zone for zone in available_timezones() if not zone.startswith("Etc/")))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question with the most similar known name, for the end of an error; "" if none is similar.

    The question begins with a space.
    """
    name = nearest(word, known)
    return f" Did you mean {name}?" if name else ""
