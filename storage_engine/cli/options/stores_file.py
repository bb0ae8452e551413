"""stores.toml: names of stores. Each has a lake, a broker and a policy, under the keys that a connection has.

The file decides about lakes, brokers and ``archive: off``, so it must be as safe as the gate itself. A file
that others may write is refused, as ssh does.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage_engine.cli.options.options import journal_of
from storage_engine.core.host import ANY_HOST
from storage_engine.core.wording import did_you_mean
from storage_engine.exceptions import BadInputError

if TYPE_CHECKING:
    from storage_engine.model.broker.live import LiveBroker
    from storage_engine.retention.store.managed_store import ManagedStore

VARIABLE = "STORAGE_ENGINE_STORES"
"""Environment variable with the file's path instead of the usual places; empty for no file."""
FILE = Path("storage-engine") / "stores.toml"
SECRET_KEY = "STORAGE_ENGINE_SECRET_KEY"
"""Environment variable with a broker's secret key. It is no option: other users can see a command line."""
_ACCESS_KEY = "access_key"
_OF_AIRFLOW = {"agent", "broker_conn_id", "queue", "spark_conn_id", "spark_from"}
"""Keys of a connection that have no meaning at a shell."""
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class NamedStore:
    """A store in the file of stores. Its fields have the keys of a connection."""

    name: str
    file: Path
    fields: Mapping[str, Any]

    @property
    def source(self) -> str:
        return f"{self.file}: store {self.name}"

    def path(self, key: str) -> Path | None:
        """Return a directory that the file names; None if it names none.

        :raises BadInputError: the value is no absolute path.
        """
        value = self.fields.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value.startswith("/"):
            described = "; for an object store, name a directory with a lake.json" if "lake" in key else ""
            raise BadInputError(
                f"{self.source}: {key}: expected an absolute path of a directory, found {value!r}. Nothing "
                f"was changed. Write the whole path, from /{described}."
            )
        return Path(value)

    def managed(self, lake_dir: Path | None, second_lake_dir: Path | None) -> ManagedStore:
        """Return the store as the file describes it, with these lakes.

        :raises BadInputError: a key is unknown, or a value can't be used. The error names it.
        """
        from storage_engine.hooks.connection import Defaults, managed_store
        from storage_engine.lake.catalog.config import LakeConfig

        if useless := sorted(_OF_AIRFLOW & self.fields.keys()):
            raise BadInputError(
                f"{self.source}: expected keys that have a meaning without Airflow, found {useless[0]}. "
                "Nothing was changed. Remove it."
            )
        extra = {key: value for key, value in self.fields.items() if key != _ACCESS_KEY}
        extra.pop("second_lake", None)
        base = (lake_dir or Path()).absolute()
        extra["lake"] = str(base)
        if second_lake_dir is not None:
            extra["second_lake"] = str(second_lake_dir.absolute())
        defaults = Defaults(
            home=str(base), journal_url=journal_of(base), lake=str(base), report_dir=str(base / "reports")
        )
        store = managed_store(self.name, extra, None, defaults, source=self.source)
        if lake_dir is None:
            store = replace(store, journal_url="", lake=LakeConfig.local(base))
        return replace(store, host=store.host or ANY_HOST, live=self._add_keys(store))

    def _add_keys(self, store: ManagedStore) -> LiveBroker | None:
        access_key = self.fields.get(_ACCESS_KEY)
        if access_key is None:
            return store.live
        secret_key = os.environ.get(SECRET_KEY, "")
        if store.live is None or not isinstance(access_key, str) or not secret_key:
            fault = "no running broker" if store.live is None else f"no secret key in {SECRET_KEY}"
            raise BadInputError(
                f"{self.source}: {_ACCESS_KEY}: expected a running broker, and the access key's secret key "
                f"in the environment, found {fault if isinstance(access_key, str) else 'no text'}. Nothing "
                f"was changed. Set {SECRET_KEY}, or remove the key."
            )
        return replace(store.live, access_key=access_key, secret_key=secret_key)


def stores_file() -> Path | None:
    """Return the path of the file of stores: the variable's, the user's or the machine's; None without one.

    An empty variable means no file. The working directory is never searched.

    :raises BadInputError: the variable names a missing file, or a relative path.
    """
    named = os.environ.get(VARIABLE)
    if named is not None:
        if not named:
            return None
        if not Path(named).is_absolute() or not os.path.lexists(named):
            raise BadInputError(
                f"{VARIABLE}: expected the absolute path of a file of stores, found {named!r}. Nothing was "
                "changed. Correct it, or set it to nothing."
            )
        return Path(named)
    places = (_own_file(), Path("/etc") / FILE)
    return next((path for path in places if path.is_absolute() and os.path.lexists(path)), None)


def _own_file() -> Path:
    config = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config")
    # A user without a home has no file of their own.
    with suppress(RuntimeError):
        config = config.expanduser()
    return config / FILE


def add_store(name: str, fields: Mapping[str, str]) -> Path:
    """Add a store to the file of stores. Without such a file, make the user's own. Return the file's path.

    :raises BadInputError: the name is invalid or in use, a field is unusable, or the file can't be written.
    """
    from storage_engine.core.durable import make_dirs, write_file

    file = stores_file() or _own_file()
    if os.environ.get(VARIABLE) == "" or not file.is_absolute():
        raise BadInputError(
            f"{name}: expected a file of stores to add it to, found {VARIABLE} empty, or no home "
            f"directory of this user. Nothing was changed. Set {VARIABLE} to the path of a file."
        )
    # A command reads a word with a leading hyphen as an option. A bad table makes the whole file unusable.
    is_word = not ("/" in name or name.startswith("-")) and name.isprintable() and bool(name.strip())
    if not is_word or name in (".", "..") or name in named_stores():
        raise BadInputError(
            f"{file}: expected a new name without a slash, found {name!r}. Nothing was changed. Choose "
            "another name, or edit the file."
        )
    for key, value in fields.items():
        if not value.isprintable():
            raise BadInputError(
                f"{file}: {name}: {key}: expected printable text, as TOML requires, found {value!r}. Nothing "
                "was changed. Make a link with a printable path, and name that link."
            )
    NamedStore(name, file, fields).managed(Path(fields["lake"]), None)
    before = file.read_text() if file.exists() else ""
    # A string in JSON is also a string in TOML.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items()]
    table = "\n".join([f"[{json.dumps(name, ensure_ascii=False)}]", *lines, ""])
    make_dirs(file.parent)
    write_file(file.resolve(), f"{before.rstrip()}\n\n{table}".lstrip().encode())
    return file


def named_stores() -> dict[str, NamedStore]:
    """Return the stores of the file by their names; empty if there is no file.

    :raises BadInputError: others may write the file, it is no TOML, or a store is no table or has no root.
    """
    file = stores_file()
    if file is None:
        return {}
    # Imported only if there is a file.
    import tomllib

    from storage_engine.core.untrusted import read_file

    _check_owner(file)
    try:
        tables = tomllib.loads(read_file(file, _MAX_BYTES).decode())
    except (OSError, ValueError) as error:
        raise BadInputError(
            f"{file}: expected a file of stores in TOML, found {error}. Nothing was changed. Correct it."
        ) from None
    stores = {}
    for name, fields in tables.items():
        if "/" in name or not name.strip() or not isinstance(fields, dict) or "root" not in fields:
            raise BadInputError(
                f"{file}: {name}: expected a table with root, under a name without a slash, found "
                "another entry. Nothing was changed. "
                f'Write [{name.replace("/", "-")}] and below it root = "/path/of/the/store".'
            )
        stores[name] = NamedStore(name, file, fields)
    return stores


def find_named(word: str) -> NamedStore | None:
    """Return the store that a word on a command line names; None if the word is a path.

    :param word: the word as it was typed. A word with a slash is a path, and so are "." and "..".
    :raises BadInputError: the word is both a name and an existing path; or it is neither, and the file has
        names.
    """
    if "/" in word or word in ("", ".", ".."):
        return None
    stores = named_stores()
    is_path = os.path.lexists(word)
    if word in stores and is_path:
        raise BadInputError(
            f"{word}: expected either a store of {stores[word].file} or a path, found both. Nothing was "
            f"changed. Write ./{word} for the path in this directory, or rename one of them."
        )
    if stores and word not in stores and not is_path:
        file = next(iter(stores.values())).file
        raise BadInputError(
            f"{word}: expected a store of {file} ({', '.join(sorted(stores))}) or a path, found neither."
            f"{did_you_mean(word, stores)} Nothing was changed."
        )
    return stores.get(word)


def _check_owner(file: Path) -> None:
    """:raises BadInputError: a user other than this one and root may write or replace the file."""
    # Whoever may write a parent directory can replace the file, or a link to it.
    for path in dict.fromkeys((file, *file.parents, *file.resolve().parents)):
        try:
            status = path.stat()
        except OSError as error:
            raise BadInputError(
                f"{path}: expected a file of stores that can be read, found {error.strerror}. Nothing was "
                "changed."
            ) from error
        is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_sticky
        if status.st_uid not in (0, os.geteuid()) or others_write:
            raise BadInputError(
                f"{path}: expected that only you or root may write it, because it decides about deletions, "
                f"found owner {status.st_uid} and mode {stat.S_IMODE(status.st_mode):o}. Nothing was "
                f"changed. chmod go-w {path}, as its owner."
            )
