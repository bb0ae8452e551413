"""agent: serves segments of stores to Spark executors that don't see the disk. It never writes to a store."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from storage_engine.cli.options.store_argument import managed_store
from storage_engine.cli.options.stores_file import find_named
from storage_engine.cli.output.output import say
from storage_engine.cli.shell.shared_options import command
from storage_engine.cli.shell.values import NamedPath, host_and_port, parse_speed
from storage_engine.core.clock import clock_ms

if TYPE_CHECKING:
    from storage_engine.model.store import FileFacts
    from storage_engine.retention.store.managed_store import ManagedStore

_FILE = NamedPath(dir_okay=False, exists=True)


@command()
@click.argument("words", metavar="STORE", nargs=-1, required=True)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    callback=host_and_port,
    required=True,
    help="Where drivers and executors connect.",
)
@click.option(
    "--token-file", type=_FILE, help=("File of a token that drivers have too; only its owner may read it.")
)
@click.option("--tls-cert", type=_FILE, help="Certificate of this agent, as PEM.")
@click.option("--tls-key", type=_FILE, help="Key of the certificate, if the key is in another file.")
@click.option(
    "--client-ca",
    type=_FILE,
    help=("Certificate authority of the drivers, as PEM; each driver then needs a certificate."),
)
@click.option(
    "--plain",
    is_flag=True,
    help=("Let other hosts connect without TLS, for example because a sidecar adds it."),
)
@click.option(
    "--lease",
    "lease_seconds",
    metavar="SECONDS",
    # The kernel counts a wait in milliseconds, with 31 bits.
    type=click.IntRange(1, 24 * 86_400),
    default=3600,
    show_default=True,
    help="Forget a run that makes no request for this long.",
)
@click.option(
    "--connections",
    metavar="N",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Most connections at a time: one for each core of the cluster, and one for each driver.",
)
@click.option(
    "--archive-bytes-per-second",
    metavar="SIZE",
    callback=parse_speed,
    help="Limit for the speed of all runs together; without it or with 0, each run has only its own limit.",
)
def agent(
    words: tuple[str, ...],
    listen: tuple[str, int],
    token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    client_ca: Path | None,
    plain: bool,
    lease_seconds: int,
    connections: int,
    archive_bytes_per_second: int | None,
) -> int:
    """Serve segments of STORE to Spark executors that don't see its disk. The store's broker may run.

    There may be several stores. A driver with the token or a certificate names the files of a run, and its
    executors read only these. Nothing in a store is written. Ends on SIGTERM and SIGINT.
    """
    from storage_engine.lake.agent import Agent, AgentListening
    from storage_engine.lake.file.agent_files import read_token

    token = "" if token_file is None else read_token(token_file)
    listening = AgentListening(*listen, tls_cert, tls_key, client_ca, token, plain)
    listening.tls()
    served = [_find_store(word) for word in words]
    files = sum(len(tuple(_segment_files(store))) for store in served)
    server = Agent(
        {store.real_root: partial(_segment_files, store) for store in served},
        listening,
        lease_seconds=lease_seconds,
        connections=connections,
        bytes_per_second=archive_bytes_per_second or None,
        log=partial(say, err=True),
    )
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    threading.Thread(target=server.serve, daemon=True).start()
    roots = ", ".join(store.real_root for store in served)
    say(f"{files} files of segments of {roots} are served at {listen[0]}:{server.port}.")
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    server.close()
    return 0


def _find_store(word: str) -> ManagedStore:
    """Return a store by its path or name, without its running broker: only its files are read."""
    named = find_named(word)
    store = managed_store(Path(word)) if named is None else named.managed(None, None)
    return replace(store, live=None, engine=False)


def _segment_files(store: ManagedStore) -> Iterable[FileFacts]:
    from storage_engine.retention.store.broker_answers import take_glance
    from storage_engine.retention.store.brokers import open_store

    with closing(open_store(store)) as broker:
        snapshot = take_glance(broker, clock_ms(), store.broker)
    return (file for log in snapshot.logs for segment in log.segments for file in segment.files)
