"""Typed access to the extra fields of an Airflow connection. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zoneinfo import ZoneInfo

from storage_engine.core.nearest import meant, meant_zone
from storage_engine.exceptions import BadInputError
from storage_engine.model.settings.store_settings import Kind, StoreSetting

PAGE = "connection"
"""Of the documentation, about all fields."""
ABSOLUTE_PATH = "an absolute path, which begins with /"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a connection has a setting that is a key of a JSON field.

    :param inside: the JSON field.
    :param field: the field of its own that may have it instead.
    :param usual: what that field has where nobody said anything.
    :param in_form: whether the form has that field; older connections alone have others.
    """

    inside: str
    field: str
    usual: str = ""
    in_form: bool = False


@dataclass(frozen=True, slots=True)
class Fields:
    """Typed access to a connection's extra fields.

    :param source: what has the fields, for messages, such as ``connection orders``.
    :param places: of settings that are keys of a JSON field, by their names. Any other is a field of its own.
    """

    source: str
    extra: Mapping[str, Any]
    places: Mapping[str, Place] = field(default_factory=dict)

    def error(self, name: str, expected: str, found: object, hint: str = "") -> BadInputError:
        return self._error(self.shown(name), expected, found, hint)

    def value(self, name: str) -> Any:
        """Return a field's value; None where it is empty.

        :raises BadInputError: its own field has one, and the JSON field another one.
        """
        place = self.places.get(name)
        if place is None:
            value = self.extra.get(name)
            return None if value == "" else value
        own = self.extra.get(place.field)
        own = None if own == "" else own
        inside = self._inside(place.inside).get(name)
        if inside is None or inside == "":
            return own
        if not _says_the_same(own, inside, place.usual):
            raise self._error(place.field, f"no value, as {place.inside} has {name} = {inside}", own)
        return inside

    def in_old_places(self) -> dict[str, dict[str, Any]]:
        """Return by JSON field and name what older connections have elsewhere and isn't usual there."""
        found: dict[str, dict[str, Any]] = {}
        for name, place in self.places.items():
            value = self.extra.get(place.field)
            unsaid = value in (None, "", {}) or str(value).strip().lower() == place.usual
            if not unsaid and not place.in_form:
                found.setdefault(place.inside, {})[name] = value
        return found

    def check_keys(self, known: Sequence[str]) -> None:
        """Make sure that neither the connection nor its JSON fields have an unknown key.

        A setting under a wrong name would be heeded by nobody.

        :param known: the fields that a connection may have, besides those of ``places``.
        :raises BadInputError: one has; names the nearest that is known.
        """
        fields = [*known, *(place.field for place in self.places.values())]
        for name in self.extra:
            place = self.places.get(name)
            if name not in fields and self.extra[name] not in (None, ""):
                if place is None:
                    raise self._unknown(name, fields)
                raise self._error(name, f"{place.field}, or {name} inside {place.inside}", name)
        for group in dict.fromkeys(place.inside for place in self.places.values()):
            inside = [name for name, place in self.places.items() if place.inside == group]
            for key in self._inside(group):
                if key not in inside:
                    raise self._unknown(f"{group}.{key}", inside)

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
            case Kind.PATH:
                return self.path(one.name, required=one.required) or None
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

    def path(self, name: str, *, required: bool = False) -> str:
        """Return an absolute path: tasks are not started where a person is; empty: there is none."""
        text = self.text(name, required=required)
        if text and not text.startswith("/"):
            raise self.error(name, ABSOLUTE_PATH, text)
        return text

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
            expected = "an IANA time zone such as Asia/Shanghai"
            raise self.error(name, expected, text, meant_zone(text)) from None

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
        """Return where a person finds a setting's value; of one that has none, where it is best put."""
        place = self.places.get(name)
        if place is None:
            return name
        is_inside = self._inside(place.inside).get(name) not in (None, "")
        has_own = self.extra.get(place.field) not in (None, "")
        return place.field if not is_inside and (has_own or place.in_form) else f"{place.inside}.{name}"

    def _unknown(self, shown: str, known: Sequence[str]) -> BadInputError:
        key = shown.rpartition(".")[2]
        hint = meant(key, known)
        expected = "a known name" if hint else f"one of {', '.join(sorted({*known}))}"
        return self._error(shown, expected, key, hint)

    def _error(self, shown: str, expected: str, found: object, hint: str = "") -> BadInputError:
        return BadInputError(
            f"{self.source}: field {shown}: expected {expected}, found {found!r}.{hint}",
            page=PAGE,
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
