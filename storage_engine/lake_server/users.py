"""Users who may read, in a file without passwords, and the logins of clients.

Kafka's clients log in by PLAIN or SCRAM (RFC 5802). Both are checked against the same salted keys.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypeVar

from scramp import ScramException, ScramMechanism

from storage_engine.commands import Command
from storage_engine.core.durable import write_file
from storage_engine.exceptions import BadInputError, StorageEngineError

T = TypeVar("T")

PLAIN: Final = "PLAIN"
SCRAM: Final = "SCRAM-SHA-256"
MECHANISMS: Final = (PLAIN, SCRAM)
_OTHERS_MAY = 0o077
_KEYS = ("salt", "stored_key", "server_key")
_UNKNOWN_SALT = b"\0" * 16


class LoginError(StorageEngineError):
    """A client hasn't proven that it is the user whom it names."""


@dataclass(frozen=True, slots=True)
class User:
    """A user who may read topics.

    :param topics: names of the readable topics. ``*`` matches any characters.
    """

    name: str
    topics: tuple[str, ...]
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def may_read(self, topic: str) -> bool:
        return any(fnmatchcase(topic, pattern) for pattern in self.topics)


def read_users(path: Path) -> Mapping[str, User]:
    """Read a file of users.

    :raises BadInputError: the file is missing, has other content, or can be read by others than its owner.
    """
    try:
        check_private(path)
        text = path.read_bytes()
    except OSError as error:
        raise BadInputError(
            f"{path}: expected a file of users, found none that can be read: {error.strerror}. Nothing was "
            "started. Make it: ",
            Command("serve-lake", "--users FILE --set-user NAME"),
        ) from error
    try:
        content: Any = json.loads(text)
        return {name: _parse_user(name, entry) for name, entry in content.items()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BadInputError(
            f"{path}: expected users with their keys and topics, found something else: {error}. Nothing was "
            "started. Move the file away, and set the users again with --set-user."
        ) from error


def check_private(path: Path) -> None:
    """Raise BadInputError if others than its owner may read a file, or OSError if its mode is unreadable."""
    mode = path.stat().st_mode
    if mode & _OTHERS_MAY:
        raise BadInputError(
            f"{path}: expected a file that only its owner can read, found mode {mode & 0o777:03o}. Nothing "
            f"was started. Run chmod 600 {path}, and set its passwords again."
        )


def set_user(path: Path, name: str, password: str, topics: Sequence[str]) -> None:
    """Add a user to a file, or give a user a new password and new topics."""
    users = dict(read_users(path)) if path.exists() else {}
    users[name] = User(name, tuple(topics), *ScramMechanism(SCRAM).make_auth_info(password))
    content = {
        user.name: {
            "topics": user.topics,
            "salt": _text(user.salt),
            "stored_key": _text(user.stored_key),
            "server_key": _text(user.server_key),
            "iterations": user.iterations,
        }
        for user in users.values()
    }
    write_file(path, json.dumps(content, indent=1).encode() + b"\n")


class Login:
    """The login of one client.

    :param users: the server's users; None if each client may read all topics.
    """

    def __init__(self, users: Mapping[str, User] | None) -> None:
        self._users = users
        self.user: User | None = None
        self._mechanism = ""
        self._scram: Any = None
        self._name = ""

    @property
    def is_done(self) -> bool:
        return self._users is None or self.user is not None

    def visible(self, topics: Mapping[str, T]) -> Mapping[str, T]:
        """Return the topics that the client may read."""
        if self.user is None:
            return topics if self._users is None else {}
        return {name: topic for name, topic in topics.items() if self.user.may_read(name)}

    def begin(self, mechanism: str) -> bool:
        """Begin a login, and return whether the client may continue with this mechanism."""
        self._mechanism, self._scram, self.user = mechanism, None, None
        return self._users is not None and mechanism in MECHANISMS

    def go_on(self, message: bytes) -> bytes:
        """Return the answer to the client's next message.

        :raises LoginError: the client can't prove that it is the user whom it names.
        """
        try:
            return self._check_plain(message) if self._mechanism == PLAIN else self._scram_step(message)
        except (ScramException, ValueError, LookupError) as error:
            raise LoginError(
                "expected a known user and the right password, found another user or password"
            ) from error

    def _check_plain(self, message: bytes) -> bytes:
        _, name, password = message.decode().split("\0")
        user = (self._users or {}).get(name)
        # An unknown user takes as long as a known one.
        salt, iterations = (user.salt, user.iterations) if user else (_UNKNOWN_SALT, None)
        stored_key = ScramMechanism(SCRAM).make_auth_info(password, iterations, salt)[1]
        if user is None or not hmac.compare_digest(stored_key, user.stored_key):
            raise LookupError(name)
        self.user = user
        return b""

    def _scram_step(self, message: bytes) -> bytes:
        if self._mechanism != SCRAM:
            raise LookupError(self._mechanism)
        if self._scram is None:
            self._scram = ScramMechanism(SCRAM).make_server(self._find_keys)
            self._scram.set_client_first(message.decode())
            return str(self._scram.get_server_first()).encode()
        self._scram.set_client_final(message.decode())
        answer = str(self._scram.get_server_final()).encode()
        self.user = (self._users or {})[self._name]
        return answer

    def _find_keys(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        self._name = name
        user = (self._users or {})[name]
        return user.salt, user.stored_key, user.server_key, user.iterations


def _parse_user(name: str, entry: Any) -> User:
    salt, stored_key, server_key = (base64.b64decode(entry[key]) for key in _KEYS)
    topics = tuple(map(str, entry["topics"]))
    return User(name, topics, salt, stored_key, server_key, int(entry["iterations"]))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
