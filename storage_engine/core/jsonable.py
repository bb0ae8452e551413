"""Conversion of dataclasses to JSON and back, for other processes (XCom, journal, job request)."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from storage_engine.commands import Text, commands_in
from storage_engine.exceptions import BadInputError

T = TypeVar("T")
_PLAIN = frozenset({str, int, float, bool, type(None)})


def to_jsonable(value: Any) -> Any:
    """Convert dataclasses, enums, tuples and mappings to values that :mod:`json` can write."""
    return _convert(value, str)


def to_recorded(value: Any) -> Any:
    """Convert like :func:`to_jsonable`, for the journal: texts keep the commands that they name."""
    return _convert(value, _parts)


def _convert(value: Any, convert_text: Callable[[str], Any]) -> Any:
    """:param convert_text: converts an instance of a subclass of str, such as :class:`Text`."""
    cls: Any = type(value)
    if cls in _PLAIN:
        return value
    if (names := _field_names(cls)) is not None:
        return {name: _convert(getattr(value, name), convert_text) for name in names}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return convert_text(value)
    if isinstance(value, Mapping):
        return {str(key): _convert(item, convert_text) for key, item in value.items()}
    if isinstance(value, (tuple, list, frozenset, set)):
        return [_convert(item, convert_text) for item in value]
    return value


def _parts(text: str) -> str | list[str | list[str]]:
    return text.to_json() if isinstance(text, Text) and commands_in(text) else str(text)


def jsonable_fields(value: Any) -> dict[str, Any]:
    """Convert a dataclass to a JSON object."""
    cls: Any = type(value)
    return {name: to_jsonable(getattr(value, name)) for name in _field_names(cls) or ()}


def from_jsonable(cls: type[T], data: Any, where: str = "") -> T:
    """Build a ``cls`` from the result of :func:`to_jsonable` or :func:`to_recorded`.

    :raises BadInputError: a key is unknown or missing, or a value has the wrong type. The error has the key.
    """
    value: T = _build(cls, data, where or cls.__name__)
    return value


def filled(cls: type[T], source: object, **more: Any) -> T:
    """Build a ``cls`` from the attributes of another object, or the values of a mapping, with the same names.

    :param more: values that take precedence.
    :raises TypeError: a field without a default has no value.
    """
    names = [field.name for field in dataclasses.fields(cls) if field.name not in more]  # type: ignore[arg-type]
    if isinstance(source, Mapping):
        return cls(**{name: source[name] for name in names if name in source}, **more)
    return cls(**{name: getattr(source, name) for name in names if hasattr(source, name)}, **more)


@cache
def _field_names(cls: type) -> tuple[str, ...] | None:
    """Return the names of a dataclass's fields; None for another class."""
    return tuple(field.name for field in dataclasses.fields(cls)) if dataclasses.is_dataclass(cls) else None


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _build(expected: Any, data: Any, where: str) -> Any:
    origin, args = get_origin(expected), get_args(expected)
    if expected is Any:
        return data
    if origin in (types.UnionType, Union):
        if data is None and types.NoneType in args:
            return None
        (inner,) = (arg for arg in args if arg is not types.NoneType)
        return _build(inner, data, where)
    if origin is tuple:
        _require(isinstance(data, (list, tuple)), "a list", data, where)
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_build(args[0], item, f"{where}[{i}]") for i, item in enumerate(data))
        _require(len(data) == len(args), f"{len(args)} items", data, where)
        return tuple(
            _build(arg, item, f"{where}[{i}]") for i, (arg, item) in enumerate(zip(args, data, strict=True))
        )
    if origin is not None and issubclass(origin, Mapping):
        _require(isinstance(data, Mapping), "an object", data, where)
        return {str(key): _build(args[1], item, f"{where}.{key}") for key, item in data.items()}
    if dataclasses.is_dataclass(expected):
        return _build_dataclass(expected, data, where)
    if issubclass(expected, tuple):  # a named one
        return expected(*_build(types.GenericAlias(tuple, tuple(_hints(expected).values())), data, where))
    if issubclass(expected, Enum):
        try:
            return expected(data)
        except ValueError:
            allowed = ", ".join(repr(member.value) for member in expected)
            raise BadInputError(f"{where}: expected one of {allowed}, found {data!r}") from None
    if expected is str and isinstance(data, list):
        parts = [part if isinstance(part, list) else [part] for part in data]
        are_texts = all(0 < len(part) < 3 and all(isinstance(item, str) for item in part) for part in parts)
        _require(bool(parts) and are_texts, "a text, or the parts of one", data, where)
        return Text.from_json(data)
    if expected is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    _require(
        isinstance(data, expected) and (expected is bool or not isinstance(data, bool)),
        f"a value of type {expected.__name__}",
        data,
        where,
    )
    return data


def _build_dataclass(cls: Any, data: Any, where: str) -> Any:
    _require(isinstance(data, Mapping), "an object", data, where)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    unknown = sorted(set(data) - set(fields))
    _require(not unknown, f"only the keys {', '.join(fields)}", ", ".join(unknown), where)
    values = {key: _build(_hints(cls)[key], item, f"{where}.{key}") for key, item in data.items()}
    missing = [
        name
        for name, field in fields.items()
        if name not in values and field.default is field.default_factory is dataclasses.MISSING
    ]
    _require(not missing, f"the keys {', '.join(missing)}", "none of them", where)
    return cls(**values)


def _require(holds: bool, expected: str, value: Any, where: str) -> None:
    if not holds:
        raise BadInputError(f"{where}: expected {expected}, found {value!r}")
