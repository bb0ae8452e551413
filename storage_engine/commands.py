"""Texts that keep their commands as separate parts. The code that shows a text adds the arguments, because
the code that makes it doesn't know by which names a person calls a lake or store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import SupportsIndex

_LAKE_OR_CONNECTION = ("lake info", "lake relocate", "lake promote")
_LAKE_AND_CONNECTION = ("lake rebuild", "gc --undo")
_LAKE_ALONE = "verify --level bytes --renew"
_STORE_OR_CONNECTION = ("stamp --new", "stamp", "adopt", "move NAME")
_BOTH_LAKES = ("archive", "clean --manual", "clean", "verify")
_STORE_WITH_LAKE = (*_BOTH_LAKES, "hold", "unmanage", "shield")
_STORE_ALONE = ("lag", "doctor")
"""Commands that need no lake and have no option --name. doctor also accepts a lake or a connection."""
_SOME_CONNECTION = "--conn-id ID"
_REASON = ("lake promote", "stamp --new", "stamp", "adopt")


@dataclass(frozen=True, slots=True)
class Command:
    """A shell command that a text names.

    :param words: its name, with the words that choose its action: ``lake rebuild``, ``clean --manual``.
    :param given: arguments as typed. A command that has such arguments gets no others.
    """

    words: str
    given: str = ""

    def __str__(self) -> str:
        return f"storage-engine {self.words} {self.given}".rstrip()


@dataclass(frozen=True, slots=True)
class Arguments:
    """Known names of a store and its lakes, for a text that is shown.

    :param places: the places of the first and second lake, as texts name them. A text is about the lake that
        it names first.
    :param store_options: options for each command on the store.
    :param is_named: whether ``store`` is a name that also stands for the store's lakes, unless
        ``has_own_lake``.
    """

    store: str | None = None
    lake_dir: str | None = None
    second_lake_dir: str | None = None
    conn_id: str | None = None
    places: tuple[str, ...] = ()
    store_options: tuple[str, ...] = ()
    is_named: bool = False
    has_own_lake: bool = False


Part = str | Command | BaseException
"""Parts of a text. For an error its message is used."""


class Text(str):
    """A text that keeps the commands that it names. As a string it has them without arguments.

    ``+``, ``Text(…)`` and :func:`join_texts` keep the commands. ``str`` and f-strings lose them.
    """

    parts: tuple[str | Command, ...]

    def __new__(cls, *parts: object) -> Text:
        flat: list[str | Command] = []
        for part in parts:
            # The text of some classes of errors isn't their first argument.
            is_text = isinstance(part, BaseException) and part.args[:1] == (str(part),)
            value = part.args[0] if isinstance(part, BaseException) and is_text else part
            if isinstance(value, Text):
                flat += value.parts
            else:
                flat.append(part if isinstance(part, Command) else str(part))
        text = super().__new__(cls, "".join(map(str, flat)))
        text.parts = tuple(flat)
        return text

    def __add__(self, other: str) -> Text:
        return Text(self, other)

    def __radd__(self, other: str) -> Text:
        return Text(other, self)

    def __reduce__(self) -> tuple[type[Text], tuple[str | Command, ...]]:
        return Text, self.parts

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        """Return a part of the text, with the commands that are wholly inside it."""
        if not isinstance(key, slice) or key.step is not None:
            return super().__getitem__(key)
        start, stop, _ = key.indices(len(self))
        inner: list[str | Command] = []
        for part in self.parts:
            length = len(str(part))
            whole = start <= 0 and stop >= length
            inner.append(part if whole else str(part)[max(0, start) : max(0, stop)])
            start, stop = start - length, stop - length
        return Text(*inner)

    def removesuffix(self, suffix: str, /) -> str:
        return self[: len(self) - len(suffix)] if self.endswith(suffix) else self

    def partition(self, separator: str, /) -> tuple[str, str, str]:
        at = self.find(separator)
        if at < 0:
            return self, "", ""
        return self[:at], separator, self[at + len(separator) :]

    def without(self, words: str) -> Text:
        """Return the text without these words, wherever they are in it."""
        before, match, rest = self.partition(words)
        return Text(before, Text(rest).without(words)) if match else self

    def each(self, change: Callable[[str], str]) -> Text:
        """Return the text with the parts between its commands changed."""
        return Text(*(part if isinstance(part, Command) else change(part) for part in self.parts))

    def cut(self, most: int) -> str:
        """Return the text with at most this many characters. Its middle is left out."""
        if len(self) <= most:
            return self
        half = most // 2 - 50
        return Text(self[:half], f" … ({len(self) - 2 * half} characters left out) … ", self[-half:])

    def to_json(self) -> list[str | list[str]]:
        """Return the parts as JSON values, for another process."""
        return [part if isinstance(part, str) else [part.words, part.given] for part in self.parts]

    @classmethod
    def from_json(cls, parts: Iterable[str | list[str]]) -> Text:
        """Return the text from the result of :meth:`to_json`."""
        return cls(*(part if isinstance(part, str) else Command(*part) for part in parts))


def join_texts(separator: str, texts: Iterable[str]) -> str:
    """Return texts joined with a separator, as ``str.join`` does. Their commands are kept."""
    parts = [part for text in texts for part in (separator, text)]
    return Text(*parts[1:])


def commands_in(text: str) -> tuple[Command, ...]:
    """Return the commands that a text names, in order. A plain string has none."""
    parts: Sequence[str | Command] = text.parts if isinstance(text, Text) else ()
    return tuple(part for part in parts if isinstance(part, Command))


def with_arguments(text: str, arguments: Arguments) -> str:
    """Return a text as a plain string in which each command has its known arguments."""
    if not isinstance(text, Text):
        return text
    about = _pick_arguments(text, arguments)
    return "".join(part if isinstance(part, str) else render_command(part, about) for part in text.parts)


def then(text: str, arguments: Arguments) -> list[str]:
    """Return the commands that a text names, each with its known arguments."""
    about = _pick_arguments(text, arguments)
    return [render_command(command, about) for command in commands_in(text)]


def _pick_arguments(text: str, arguments: Arguments) -> Arguments:
    """Return the known arguments, with the lake that a text is about as their lake.

    Return no arguments if no option names that lake.
    """
    matches = [(text.find(place), -len(place), number) for number, place in enumerate(arguments.places)]
    if min((item for item in matches if item[0] >= 0), default=(0, 0, 0))[2] != 1:
        return arguments
    if arguments.second_lake_dir is None:
        # No option names the second lake.
        return Arguments()
    return replace(arguments, lake_dir=arguments.second_lake_dir, second_lake_dir=None)


def render_command(command: Command, arguments: Arguments) -> str:
    """Return a command as typed, with its known arguments."""
    if command.given:
        is_named = command.given.endswith(_SOME_CONNECTION) and arguments.conn_id is not None
        text = str(command)
        return f"{text.removesuffix('ID')}{_quote(str(arguments.conn_id))}" if is_named else text
    name = "move NAME" if command.words.startswith("move ") else command.words
    words = _argument_words(name, arguments)
    if not words:
        return str(command)
    reason = " --reason TEXT" if name in _REASON else ""
    return f"{command} {' '.join(map(_quote, words))}{reason}"


def _argument_words(name: str, arguments: Arguments) -> list[str]:
    """Return a command's arguments, or an empty list if they aren't known."""
    lake = [] if arguments.lake_dir is None else ["--lake", arguments.lake_dir]
    connection = [] if arguments.conn_id is None else ["--conn-id", arguments.conn_id]
    if name in _LAKE_AND_CONNECTION:
        return [*lake, *connection]
    if name in _LAKE_OR_CONNECTION:
        return lake or connection
    if name == "init-lake":
        return connection or lake
    if name == _LAKE_ALONE:
        return lake
    if connection and name in (*_STORE_OR_CONNECTION, "doctor"):
        return connection
    needs_lake = name in (*_STORE_OR_CONNECTION, *_STORE_WITH_LAKE)
    if arguments.store is None or not ((needs_lake and (lake or arguments.is_named)) or name in _STORE_ALONE):
        return []
    lakes = lake if name != "lag" else []
    if arguments.second_lake_dir and name in _BOTH_LAKES:
        lakes = [*lakes, "--second-lake", arguments.second_lake_dir]
    words = [arguments.store, *([] if arguments.is_named and not arguments.has_own_lake else lakes)]
    if name in _STORE_OR_CONNECTION:
        return words
    options = list(arguments.store_options)
    if name in _STORE_ALONE and "--name" in options:
        at = options.index("--name")
        del options[at : at + 2]
    return [*words, *options]


def _quote(word: str) -> str:
    """Return a word quoted for a shell, so that its end can't be mistaken for the end of a sentence."""
    quoted = quote(word)
    return f"'{word}'" if quoted == word and word.endswith((".", ",", ":")) else quoted
