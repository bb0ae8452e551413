"""Figures and names as a person reads them, and the known name that a mistyped one is nearest to."""

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
"""State of an archived segment whose files were touched since."""
_BINARY_UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"]
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGTP]?)(i?)B?\s*", re.IGNORECASE)
_FIRST_DAY = date(1970, 1, 1)
_DURATIONS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


_CONTROLS = (
    "\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f"
    "\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff\\ufeff"
)
_UNPRINTABLE = re.compile(f"[\\n{_CONTROLS}]")
"""Controls, as of terminals; what turns the direction of text; halves of characters."""
_UNPRINTABLE_BUT_NEWLINE = re.compile(f"[{_CONTROLS}]")


def printable(text: str, *, keep: str = "") -> str:
    """Return a text whose control characters, and others that change how the rest is shown, are written out.

    Producers, consumers and whoever writes to a store choose names.

    :param keep: characters that stay, such as a newline.
    """

    def written_out(found: re.Match[str]) -> str:
        code = ord(found[0])
        return found[0] if found[0] in keep else f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"

    return _UNPRINTABLE.sub(written_out, text)


def printable_json(document: str) -> str:
    """Return the same JSON document with such characters as JSON's own escapes; newlines are its layout."""
    return _UNPRINTABLE_BUT_NEWLINE.sub(lambda it: f"\\u{ord(it[0]):04x}", document)


def shortened(name: str, width: int) -> str:
    """A long name without its middle: what tells names apart is mostly at their ends.

    :param width: of the result at most, in characters.
    """
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: width - 1 - tail]}…{name[-tail:]}"


@lru_cache(maxsize=1024)
def bytes_text(size_bytes: int | None) -> str:
    """A size in binary units, as brokers configure theirs; empty for None."""
    if size_bytes is None:
        return ""
    unit, suffix = pick_unit_and_suffix(size_bytes, _BINARY_UNITS, 1024)
    return f"{size_bytes} bytes" if unit == 1 else f"{size_bytes / unit:,.1f} {suffix}"


def parse_size(text: str) -> int | None:
    """Return a size such as 10GiB, 500 MB or 4096 in bytes; None: it is none."""
    match = _SIZE.fullmatch(text)
    if match is None or (match[3] and not match[2]):
        return None
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGTP".index(unit.upper() or " "))


def exact_bytes_text(size_bytes: int) -> str:
    """The same, with the exact number of bytes beside it."""
    text = bytes_text(size_bytes)
    return text if text.endswith("bytes") else f"{text} ({size_bytes} bytes)"


def time_text(timestamp_ms: int | None, zone: tzinfo = UTC) -> str:
    """A moment to the second; empty for None, and in milliseconds where no calendar goes so far.

    :param zone: another one only for a time that is meant in it, as deleteWhen is; its offset is shown then.
    """
    if timestamp_ms is None:
        return ""
    try:
        if zone is UTC:
            # A plan of many logs names tens of thousands of moments, and those of few days.
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
    """Return a date by its days since 1970.

    :raises OverflowError: no calendar goes so far.
    """
    return (_FIRST_DAY + timedelta(days=days)).isoformat()


def duration_text(duration_ms: int | None) -> str:
    """A duration by its two largest units; empty for None."""
    if duration_ms is None:
        return ""
    left, parts = duration_ms // 1000, []
    for seconds, unit in _DURATIONS:
        if left >= seconds:
            parts.append(f"{left // seconds} {unit}")
            left %= seconds
    return " ".join(parts[:2]) or "0 s"


def count_text(count: int, thing: str) -> str:
    """A number of things, in the singular where there is one."""
    if count == 1:
        return f"{count} {thing}"
    ends_in_ies = thing.endswith("y") and thing[-2:-1] not in ("a", "e", "o", "u")
    return f"{count} {thing[:-1]}ies" if ends_in_ies else f"{count} {thing}s"


def store_text(name: str, broker: str, root: str) -> str:
    """Return how the head of an output names its store: what it is called, its kind and where it lies."""
    return f"Store {name} ({broker}, {root})"


def paths_text(paths: Sequence[str]) -> str:
    """Files of one kind in a few words: the first, how many more, and the last of them."""
    first, *more = paths
    return f"{first} and {len(more)} more, the last {PurePath(more[-1]).name}" if more else first


def times_text(timestamps_ms: Collection[int]) -> str:
    """A timestamp that several things have, or from which to which they go."""
    texts = list(dict.fromkeys(time_text(timestamp_ms) for timestamp_ms in sorted(timestamps_ms)))
    return texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"


def reason_text(error: BaseException) -> str:
    """Return the text of an error; of an error of the system: its file, and no number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return Text(error)


def lock_advice(cause: str) -> str:
    """Return the advice for SQLite's error that a file is locked; "": the error is another one."""
    if "database is locked" not in cause:
        return ""
    return (
        "Another process holds a lock of this file for longer than was waited: wait for it, or find it with "
        "fuser -v FILE and end it. Then run the same again."
    )


def unexpected(error: Exception) -> str:
    """An error that nobody has foreseen: its kind, its words, and the line that it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return Text(f"{type(error).__name__}: ", error, place)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known name that a word is most like, whatever its case; None: none is like it.

    A name with slashes is meant by its last part, too, as ``Asia/Shanghai`` by ``Shanghai``.
    """
    names = sorted(known)
    wanted = word.casefold()
    by_part = {name.rpartition("/")[2].casefold(): name for name in reversed(names)}
    by_name = {name.casefold(): name for name in reversed(names)}
    for candidates in (by_name, by_part):
        if wanted in candidates:
            return candidates[wanted]
    found = get_close_matches(wanted, [*by_name, *by_part], n=1)
    return (by_name | by_part)[found[0]] if found else None


def meant_zone(word: str) -> str:
    """Return the same for a time zone of the IANA database."""
    # Etc/GMT+8 is eight hours west of Greenwich: nobody who writes UTC+8 means it.
    return meant(word, (zone for zone in available_timezones() if not zone.startswith("Etc/")))


def meant(word: str, known: Iterable[str]) -> str:
    """Return the question that ends an error about an unknown name, with a space before it; "": none fits."""
    near = nearest(word, known)
    return f" Did you mean {near}?" if near else ""
