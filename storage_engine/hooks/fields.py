"""Typed access to the extra fields of an Airflow connection. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage_engine.exceptions import BadInputError


@dataclass(frozen=True, slots=True)
class Fields:
    """Typed access to a connection's extra fields."""

    conn_id: str
    extra: Mapping[str, Any]

    def error(self, name: str, expected: str, found: object) -> BadInputError:
        return BadInputError(
            f"connection {self.conn_id}: field {name}: expected {expected}, found {found!r}."
        )

    def text(self, name: str, *, required: bool = False) -> str:
        value = self.extra.get(name)
        if value is None or value == "":
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
        """Whether a box is ticked; texts are read as well, since a connection may come as a URI."""
        value = self.extra.get(name)
        if value is None or value == "":
            return False
        if str(value).lower() not in ("true", "false"):
            raise self.error(name, "true or false", value)
        return str(value).lower() == "true"

    def number(self, name: str, *, minimum: int = 1) -> int | None:
        """A whole number of at least 1, or 0 where that is the minimum; None where the field is empty."""
        value = self.extra.get(name)
        if value is None or value == "":
            return None
        try:
            number = int(str(value))
        except ValueError:
            number = minimum - 1
        if number < minimum:
            raise self.error(name, f"a whole number {'above 0' if minimum else 'of at least 0'}", value)
        return number

    def mapping(self, name: str) -> dict[str, str]:
        """An object of texts."""
        found = self.json_object(name)
        return {key: item if isinstance(item, str) else json.dumps(item) for key, item in found.items()}

    def json_object(self, name: str) -> dict[str, Any]:
        """An object; the form stores it as JSON text or as an object, so both are read."""
        value = self.extra.get(name)
        if isinstance(value, str) and value.strip():
            try:
                value = json.loads(value)
            except ValueError:
                raise self.error(name, "a JSON object", "something else") from None
        if not value:
            return {}
        if not isinstance(value, dict):
            raise self.error(name, "a JSON object", type(value).__name__)
        return {str(key): item for key, item in value.items()}
