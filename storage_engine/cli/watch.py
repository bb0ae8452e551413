"""watch: mend what holds rest on as soon as somebody touches it, where the disks are."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType

import click

from storage_engine.cli.airflow_connection import store_of_connection
from storage_engine.cli.options import lake_option, managed_store
from storage_engine.cli.output import say
from storage_engine.exceptions import BadInputError
from storage_engine.retention.host import check_host
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.retention.store_watch import HostWatch


@click.command()
@click.argument("stores", nargs=-1, type=click.Path(path_type=Path))
@lake_option(required=False)
@click.option(
    "--conn-id",
    "conn_ids",
    metavar="ID",
    multiple=True,
    help="Airflow connection of a store on this host; repeatable.",
)
def watch(stores: tuple[Path, ...], lake_dir: Path | None, conn_ids: tuple[str, ...]) -> int:
    """Watch what the holds on STORES rest on, and mend it at once, until it is told to end.

    One process a host is enough for all stores of its disks, as the user whose brokers own them. It looks
    twice a second, and at once where the file system tells of changes (inotify): times that somebody has
    changed are set again, and removed segments are replaced in the fence. What it mends is printed, and
    recorded in the journal. It asks no broker and renews no hold: a pipeline has to, as without it.

    Ends with exit code 0 on SIGTERM and SIGINT. --lake says where the journal of STORES is.
    """
    managed = _managed(stores, lake_dir, conn_ids)
    ends = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ends.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    host = HostWatch(say)
    for one in managed:
        host.add(one)
    ends.wait()
    host.end()
    return 0


def _managed(
    stores: tuple[Path, ...], lake_dir: Path | None, conn_ids: tuple[str, ...]
) -> list[ManagedStore]:
    """
    :raises click.UsageError: no store, or not where its journal is.
    :raises BadInputError: a store that is another host's, or that no broker runs on.
    """
    if not (stores or conn_ids):
        raise click.UsageError("Expected STORE with --lake DIRECTORY, or --conn-id ID; found neither.")
    if bool(stores) != (lake_dir is not None):
        missing = "--lake with it" if stores else "STORE with it"
        raise click.UsageError(f"{'STORE' if stores else '--lake'}: expected {missing}, found none.")
    managed = [managed_store(store, lake_dir) for store in stores]
    for conn_id in conn_ids:
        store = store_of_connection(conn_id)
        if store.live is None:
            raise BadInputError(
                f"{conn_id}: expected a store beside its running broker (mode), found a stopped broker's, "
                "which has no hold to watch."
            )
        check_host(store.root, store.host, None)
        managed.append(store)
    return managed
