"""Settings as fields of a dataclass, each described once: for the shell, for connections and for the docs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

from storage_engine.exceptions import BadInputError

_DESCRIPTION = "setting"

Refuse = Callable[[str, str, object], BadInputError]
"""Makes an error of a setting's name, what was expected and what was found."""


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    :param kind: ``int``, ``tuple`` of several paths, or the enum whose values may be chosen.
    :param default: None: there is none, and ``help`` explains that.
    :param minimum: of a number.
    :param maximum: of a number; None: no bound.
    :param label: of its field in the connection's form; "": the form has none.
    """

    name: str
    kind: type
    default: Any
    help: str
    minimum: int
    maximum: int | None
    label: str = ""

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that may be chosen; empty: it has others."""
        return tuple(member.value for member in self.kind) if issubclass(self.kind, Enum) else ()

    @property
    def expected(self) -> str:
        """Return the permitted values, in words."""
        if self.kind is tuple:
            return "one absolute path, or a list of them"
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.maximum is not None:
            return f"a whole number from {self.minimum} to {self.maximum}"
        return "a whole number above 0" if self.minimum else "a whole number of at least 0"

    @property
    def default_text(self) -> str:
        """The default for a person; empty: there is none."""
        if self.default is None or self.kind is tuple:
            return ""
        return str(self.default.value if isinstance(self.default, Enum) else self.default)

    def read(self, value: object, refuse: Refuse) -> Any:
        """Return the value of a setting; numbers may come as text, as in a connection's URI.

        :raises BadInputError: it is no such value.
        """
        value = value.strip() if isinstance(value, str) else value
        if value is None or value == "":
            return self.default
        if self.kind is tuple:
            return self._paths(value, refuse)
        if self.choices:
            if value not in self.choices:
                raise refuse(self.name, self.expected, value)
            return self.kind(value)
        try:
            number = int(str(value))
        except ValueError:
            raise refuse(self.name, self.expected, value) from None
        if number < self.minimum or (self.maximum is not None and number > self.maximum):
            raise refuse(self.name, self.expected, value)
        return number

    def _paths(self, value: object, refuse: Refuse) -> tuple[str, ...]:
        """Return absolute paths: tasks are not started where a person is."""
        paths = tuple(value) if isinstance(value, list | tuple) else (value,)
        if not all(isinstance(path, str) and path.startswith("/") for path in paths):
            raise refuse(self.name, self.expected, value)
        return paths


def setting(default: Any, help: str, *, minimum: int = 1, maximum: int | None = None, label: str = "") -> Any:
    """Declare a field of a dataclass as a setting."""
    description = {"help": help, "minimum": minimum, "maximum": maximum, "label": label}
    return dataclasses.field(default=default, metadata={_DESCRIPTION: description})


def settings_of(cls: type) -> tuple[Setting, ...]:
    """Return the settings that a dataclass declares, in its order."""
    hints = get_type_hints(cls)
    return tuple(
        Setting(field.name, _kind(hints[field.name]), field.default, **field.metadata[_DESCRIPTION])
        for field in dataclasses.fields(cls)
    )


def _kind(hint: Any) -> type:
    if get_origin(hint) is tuple:
        return tuple
    kinds = [kind for kind in (get_args(hint) or (hint,)) if kind is not type(None)]
    (kind,) = kinds
    return kind  # type: ignore[no-any-return]
