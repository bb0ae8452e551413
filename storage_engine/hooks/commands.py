"""Commands that a task's errors and notices name, with the task's connection as their argument."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from airflow.providers.common.compat.sdk import AirflowException

from storage_engine.core.next_commands import first_named, with_arguments
from storage_engine.exceptions import StorageEngineError
from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.place import own_directory


def with_connection(text: str, storage_engine_conn_id: str) -> str:
    """Give each command that a text names without arguments those that stand for a connection.

    A text about the second lake names its directory; where that has none, the text stays as it is.
    """
    said: dict[str, object] = {"conn_id": storage_engine_conn_id}
    if with_arguments(text, said) == text:
        return text
    # What the connection itself lacks is another error; its commands are named all the same.
    with suppress(StorageEngineError, AirflowException):
        lakes = StorageEngineHook(storage_engine_conn_id).managed_store.lakes
        directories = [own_directory(lake) for lake in lakes]
        if first_named(text, [_place(*lake) for lake in zip(lakes, directories, strict=True)]) == 1:
            said = {**said, "lake_dir": directories[1]} if directories[1] is not None else {}
    return with_arguments(text, said)


@contextmanager
def commands_named(storage_engine_conn_id: str) -> Iterator[None]:
    """Do the same with what is raised inside; it stays the same error."""
    try:
        yield
    except (StorageEngineError, AirflowException) as error:
        error.args = (with_connection(str(error), storage_engine_conn_id), *error.args[1:])
        raise


def _place(lake: LakeConfig, directory: object) -> str:
    """Return what texts about a lake, its tables and its catalog have in common."""
    return lake.location if directory is None else f"{directory}/"
