"""init-lake: the one command that makes a lake."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from storage_engine.cli.options.options import check_either, of_lake, store_of_connection
from storage_engine.cli.options.store_argument import installed_broker
from storage_engine.cli.output.next_line import archive_command, say_next
from storage_engine.cli.output.output import print_json, say
from storage_engine.cli.shell.shared_options import command, json_option, wants_json
from storage_engine.cli.shell.values import NamedPath
from storage_engine.commands import Command
from storage_engine.exceptions import LakeMissingError, StorageEngineError
from storage_engine.lake.catalog.config import LakeConfig

if TYPE_CHECKING:
    from storage_engine.retention.store.managed_store import ManagedStore


@command("init-lake")
@of_lake(
    "--lake",
    "lake_dir",
    environment=True,
    type=NamedPath(file_okay=False),
    help="Directory for the lake, or a directory whose lake.json names catalog and warehouse.",
)
@of_lake(
    "--conn-id", environment=True, help="Airflow connection of a store. Its lake and second lake are made."
)
@click.option(
    "--broker-type",
    metavar="NAME",
    callback=installed_broker,
    help="The kind of broker whose segments the lake takes; default: the connection's, or the first store's.",
)
@click.option(
    "--allow-same-disk",
    is_flag=True,
    help="With --conn-id: the lake may be on a disk of the store's broker, although it can fill that disk.",
)
@json_option
def init_lake(
    lake_dir: Path | None, conn_id: str | None, broker_type: str | None, allow_same_disk: bool
) -> int:
    """Make a lake where there is none. An existing lake is left as it is.

    No other command makes a lake. Otherwise a new lake could replace the old one when its disk isn't mounted
    or its catalog is lost.
    """
    check_either(lake_dir, conn_id)
    if conn_id is not None and broker_type is not None:
        raise click.UsageError("--broker-type: the connection itself names the kind of broker (broker_type).")
    if allow_same_disk and conn_id is None:
        raise click.UsageError("--allow-same-disk: expected --conn-id, which names the store, found --lake.")
    configs = _configs(lake_dir, conn_id, broker_type)
    if conn_id is not None and not allow_same_disk:
        _check_disks(store_of_connection(conn_id))
    made = [_make(config, broker) for config, broker in configs]
    if wants_json():
        print_json("init-lake", {"lakes": made})
        return 0
    for lake in made:
        state = "made" if lake["made"] else "is there already"
        say(f"Lake {lake['lake_id']} {state}: {lake['location']}")
    if lake_dir is not None and not any(lake["copy_of"] for lake in made):
        from storage_engine.brokers import find_broker

        broker = made[0]["broker"]
        title = f" ({find_broker(broker).words.title})" if broker else ""
        kept = "" if broker else "; from then on it is for stores of that kind"
        say_next(
            archive_command(broker, lake_dir),
            f"It takes the sealed segments of STORE{title}, with proof{kept}",
        )
    elif lake_dir is not None:
        say_next(
            Command("lake info", f"--lake {quote(str(lake_dir))}"),
            "It is a copy; this command shows the lake that it was copied from",
        )
    else:
        say_next(Command("doctor"), "It looks at store, lakes and DAGs, and says what to do next")
    return 0


def _configs(
    lake_dir: Path | None, conn_id: str | None, broker_type: str | None
) -> list[tuple[LakeConfig, str]]:
    if conn_id is not None:
        store = store_of_connection(conn_id)
        return [(lake, store.broker) for lake in store.lakes]
    assert lake_dir is not None
    if not lake_dir.absolute().parent.is_dir():
        raise click.BadParameter(
            f"expected a directory {lake_dir.absolute().parent} to make the lake {lake_dir.name!r} in, found "
            "none. Make it, or mount its disk.",
            param_hint="--lake",
        )
    return [(LakeConfig.local(lake_dir), broker_type or "")]


def _check_disks(store: ManagedStore) -> None:
    """Refuse to make a lake on a disk of its store's broker. An existing lake may stay there.

    :raises BadInputError: a lake would be on such a disk.
    """
    from storage_engine.retention.store.brokers import open_store
    from storage_engine.retention.store.context import check_new_lake

    try:
        with closing(open_store(store)) as broker:
            data_paths = tuple(broker.data_paths)
    except StorageEngineError as error:
        say("Note: it is unknown whether the lake shares a disk with its store: ", error, err=True)
        return
    for config in store.lakes:
        if _is_missing(config):
            check_new_lake(store, config, data_paths)


def _is_missing(config: LakeConfig) -> bool:
    from storage_engine.lake.catalog.catalog import open_lake

    try:
        open_lake(config)
    except LakeMissingError:
        return True
    return False


def _make(config: LakeConfig, broker: str) -> dict[str, Any]:
    from storage_engine.lake.catalog.catalog import has_no_broker
    from storage_engine.lake.catalog.identity import copy_of, lake_id_of
    from storage_engine.lake.move.making import make_lake

    made = _is_missing(config)
    lake = make_lake(config, broker)
    segments = lake.segments()
    return {
        "lake_id": lake_id_of(segments),
        "copy_of": copy_of(segments),
        "location": lake.location,
        "broker": "" if has_no_broker(lake) else lake.broker,
        "made": made,
    }
