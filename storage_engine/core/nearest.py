"""The known name that somebody most likely meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from zoneinfo import available_timezones


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
