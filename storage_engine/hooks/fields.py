"""Typed access to the extra fields of an Airflow connection. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from storage_engine.exceptions import BadInputError

Place = tuple[str, str]
"""A key of a JSON field: the field's name and the key."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Typed access to a connection's extra fields.

    :param moved: by the name of a field that older connections have, where its value belongs now. It is read
        there first, then from its own name.
    :param usual: by such a name, what older connections have there where nobody said anything.
    """

    conn_id: str
    extra: Mapping[str, Any]
    moved: Mapping[str, Place] = field(default_factory=dict)
    usual: Mapping[str, str] = field(default_factory=dict)

    def error(self, name: str, expected: str, found: object) -> BadInputError:
        return self._error(self._shown(name), expected, found)

    def value(self, name: str) -> Any:
        """Return a field's value; None where it is empty.

        :raises BadInputError: it has one at its old place and another one at its new.
        """
        old = self.extra.get(name)
        old = None if old == "" else old
        if name not in self.moved:
            return old
        group, key = self.moved[name]
        new = self._inside(group).get(key)
        if new is None or new == "":
            return old
        said = "" if old in (None, {}) else str(old).strip().lower()
        if said not in ("", "{}", self.usual.get(name, "").lower(), str(new).lower()):
            raise self._error(name, f"no value, as {group} has {key} = {new}", old)
        return new

    def in_old_places(self) -> dict[Place, Any]:
        """Return the values that stand where older connections have them, by their new place."""
        found = {place: self.extra.get(name) for name, place in self.moved.items()}
        return {place: value for place, value in found.items() if value not in (None, "", {})}

    def check_keys(self) -> None:
        """Make sure that JSON fields have no unknown key.

        :raises BadInputError: one has; names the nearest that is known.
        """
        for group in dict.fromkeys(group for group, _ in self.moved.values()):
            known = [key for other, key in self.moved.values() if other == group]
            for key in self._inside(group):
                if key not in known:
                    near = get_close_matches(key, known, n=1)
                    expected = f"a setting such as {near[0]}" if near else f"one of {', '.join(known)}"
                    raise self._error(f"{group}.{key}", expected, "a setting that isn't known")

    def text(self, name: str, *, required: bool = False) -> str:
        value = self.value(name)
        if value is None:
            if required:
                raise self.error(name, "a value", value)
            return ""
        if not isinstance(value, str):
            raise self.error(name, "text", value)
        return value.strip()

    def choice(self, name: str, allowed: list[str]) -> str:
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

    def mapping(self, name: str) -> dict[str, str]:
        """An object of texts; the form stores one as JSON text or as an object, so both are read."""
        found = self._object(self._shown(name), self.value(name))
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

    def _shown(self, name: str) -> str:
        """Return where a person finds a field's value: at its new place, unless it stands at its old one."""
        if name not in self.moved:
            return name
        group, key = self.moved[name]
        return (
            name
            if self.extra.get(name) not in (None, "") and key not in self._inside(group)
            else f"{group}.{key}"
        )

    def _error(self, shown: str, expected: str, found: object) -> BadInputError:
        return BadInputError(
            f"connection {self.conn_id}: field {shown}: expected {expected}, found {found!r}."
        )
