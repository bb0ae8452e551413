"""Typed access to the extra fields of an Airflow connection. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any
from zoneinfo import ZoneInfo

from storage_engine.exceptions import BadInputError
from storage_engine.model.store_settings import Kind, StoreSetting


@dataclass(frozen=True, slots=True)
class Place:
    """Where a connection has a setting that is a key of a JSON field.

    :param inside: the JSON field.
    :param older: the field that older connections have it in; it is read behind the JSON field.
    :param usual: what older connections have there where nobody said anything.
    """

    inside: str
    older: str
    usual: str = ""


@dataclass(frozen=True, slots=True)
class Fields:
    """Typed access to a connection's extra fields.

    :param places: of settings that are keys of a JSON field, by their names. Any other is a field of its own.
    """

    conn_id: str
    extra: Mapping[str, Any]
    places: Mapping[str, Place] = field(default_factory=dict)

    def error(self, name: str, expected: str, found: object) -> BadInputError:
        return self._error(self.shown(name), expected, found)

    def value(self, name: str) -> Any:
        """Return a field's value; None where it is empty.

        :raises BadInputError: it has one at its old place and another one at its new.
        """
        place = self.places.get(name)
        if place is None:
            value = self.extra.get(name)
            return None if value == "" else value
        old = self.extra.get(place.older)
        old = None if old == "" else old
        new = self._inside(place.inside).get(name)
        if new is None or new == "":
            return old
        if not _says_the_same(old, new, place.usual):
            raise self._error(place.older, f"no value, as {place.inside} has {name} = {new}", old)
        return new

    def in_old_places(self) -> dict[str, dict[str, Any]]:
        """Return by JSON field and name what older connections have elsewhere and isn't usual there."""
        found: dict[str, dict[str, Any]] = {}
        for name, place in self.places.items():
            value = self.extra.get(place.older)
            if value not in (None, "", {}) and str(value).strip().lower() != place.usual:
                found.setdefault(place.inside, {})[name] = value
        return found

    def check_keys(self) -> None:
        """Make sure that JSON fields have no unknown key.

        :raises BadInputError: one has; names the nearest that is known.
        """
        for group in dict.fromkeys(place.inside for place in self.places.values()):
            known = [name for name, place in self.places.items() if place.inside == group]
            for name in known:
                # One that older connections never had as a field of its own would be heeded by nobody.
                if name != self.places[name].older and self.extra.get(name) not in (None, ""):
                    raise self._error(name, f"it inside {group}", "a field of its own")
            for key in self._inside(group):
                if key not in known:
                    near = get_close_matches(key, known, n=1)
                    expected = f"a setting such as {near[0]}" if near else f"one of {', '.join(known)}"
                    raise self._error(f"{group}.{key}", expected, "a setting that isn't known")

    def read(self, one: StoreSetting) -> Any:
        """Return a setting's value as its kind says; None where a text, number or choice is empty.

        :raises BadInputError: it is none of its kind.
        """
        match one.kind:
            case Kind.CHOICE:
                return self.choice(one.name, one.choices)
            case Kind.FLAG:
                return self.flag(one.name)
            case Kind.WHOLE_NUMBER:
                return self.number(one.name)
            case Kind.OBJECT:
                return self.mapping(one.name)
            case Kind.ZONE:
                return self.zone(one.name)
            case Kind.ADDRESS | Kind.ADDRESSES:
                return self.addresses(one.name, several=one.kind is Kind.ADDRESSES)
            case _:
                return self.text(one.name, required=one.required) or None

    def text(self, name: str, *, required: bool = False) -> str:
        value = self.value(name)
        if value is None:
            if required:
                raise self.error(name, "a value", value)
            return ""
        if not isinstance(value, str):
            raise self.error(name, "text", value)
        return value.strip()

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        value = self.text(name) or allowed[0]
        if value not in allowed:
            raise self.error(name, f"one of {', '.join(allowed)}", value)
        return value

    def flag(self, name: str) -> bool:
        """Return whether a box is ticked; texts are read as well, since a connection may come as a URI."""
        value = self.value(name)
        if value is None:
            return False
        if str(value).lower() not in ("true", "false"):
            raise self.error(name, "true or false", value)
        return str(value).lower() == "true"

    def number(self, name: str) -> int | None:
        """A whole number of at least 1; None where the field is empty."""
        value = self.value(name)
        if value is None:
            return None
        try:
            number = int(str(value))
        except ValueError:
            number = 0
        if number < 1:
            raise self.error(name, "a whole number above 0", value)
        return number

    def zone(self, name: str) -> str | None:
        """Return the name of an IANA time zone; None where the field is empty."""
        text = self.text(name)
        try:
            return ZoneInfo(text).key if text else None
        except (KeyError, OSError, ValueError):
            raise self.error(name, "an IANA time zone such as Asia/Shanghai", text) from None

    def addresses(self, name: str, *, several: bool = False) -> str:
        """Return what is ``host:port``, several separated by ``;`` where that may be; empty: nothing."""
        text = self.text(name)
        expected = "host:port, several separated by ;" if several else "host:port"
        for address in filter(None, text.split(";") if several else [text]):
            host, _, port = address.strip().rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
                raise self.error(name, f"{expected}, as in 10.0.0.1:10911", text)
        return text

    def mapping(self, name: str) -> dict[str, str]:
        """An object of texts; the form stores one as JSON text or as an object, so both are read."""
        found = self._object(self.shown(name), self.value(name))
        return {key: item if isinstance(item, str) else json.dumps(item) for key, item in found.items()}

    def _inside(self, group: str) -> dict[str, Any]:
        return self._object(group, self.extra.get(group))

    def _object(self, shown: str, value: Any) -> dict[str, Any]:
        if isinstance(value, str) and value.strip():
            try:
                value = json.loads(value)
            except ValueError:
                raise self._error(shown, "a JSON object", "something else") from None
        if not value:
            return {}
        if not isinstance(value, dict):
            raise self._error(shown, "a JSON object", type(value).__name__)
        return {str(key): item for key, item in value.items()}

    def shown(self, name: str) -> str:
        """Return where a person finds a setting's value: at its place, unless it stands at its old one."""
        place = self.places.get(name)
        if place is None:
            return name
        is_older = self.extra.get(place.older) not in (None, "") and name not in self._inside(place.inside)
        return place.older if is_older else f"{place.inside}.{name}"

    def _error(self, shown: str, expected: str, found: object) -> BadInputError:
        return BadInputError(
            f"connection {self.conn_id}: field {shown}: expected {expected}, found {found!r}."
        )


def _says_the_same(old: Any, new: Any, usual: str) -> bool:
    """Return whether an old place says nothing, or what the new one says.

    :param usual: what it has where nobody said anything; "": of a text or an object, where case counts.
    """
    before, now = (json.dumps(_parsed(value), sort_keys=True) for value in (old, new))
    if usual:
        before, now = before.lower(), now.lower()
    return before in (now, json.dumps(_parsed(usual)).lower(), "null", '""', "{}")


def _parsed(value: Any) -> Any:
    """Return what a value is where it came as text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value.strip()
