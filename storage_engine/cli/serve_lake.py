"""serve-lake: consumers of Kafka read archived records, at their original offsets."""

from __future__ import annotations

import asyncio
import signal
from contextlib import closing, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from storage_engine.cli.options.options import lake_option
from storage_engine.cli.output.output import say
from storage_engine.cli.shell.shared_options import command
from storage_engine.cli.shell.values import NamedPath, host_and_port, size_bytes
from storage_engine.core.extras import SERVER
from storage_engine.core.wording import count_text
from storage_engine.exceptions import BadInputError
from storage_engine.lake.catalog.config import LakeConfig

if TYPE_CHECKING:
    from storage_engine.lake_server.archived_partitions import Archive

_POSITIONS = "consumer-positions.json"


def _parse_addresses(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[tuple[str, int], ...]:
    addresses = (
        host_and_port(context, parameter, word.strip()) for word in (text.split(",") if text else ())
    )
    return tuple(address for address in addresses if address is not None)


@command()
@lake_option()
@click.option(
    "--kafka",
    "address",
    metavar="HOST:PORT",
    callback=host_and_port,
    default="127.0.0.1:9092",
    show_default=True,
    help="Where consumers connect.",
)
@click.option(
    "--advertised",
    metavar="HOST:PORT",
    callback=host_and_port,
    help="Address at which consumers should connect, if it differs (advertised.listeners).",
)
@click.option(
    "--upstream",
    metavar="BROKERS",
    callback=_parse_addresses,
    help="Brokers of the lake's cluster, HOST:PORT separated by commas: newer records come from them.",
)
@click.option(
    "--upstream-ca",
    type=NamedPath(dir_okay=False),
    help="Certificate authority of the brokers, as PEM; with it, the cluster is asked by TLS.",
)
@click.option(
    "--upstream-login",
    type=NamedPath(dir_okay=False),
    help="File with sasl.mechanism, sasl.username and sasl.password, if the cluster demands a login.",
)
@click.option(
    "--groups",
    type=click.Choice(["own", "upstream"]),
    default="own",
    show_default=True,
    help="Where groups commit: to a file of this server, or to the cluster's own coordinators.",
)
@click.option(
    "--give-back-groups",
    is_flag=True,
    help="Commit positions of stopped groups from the file to the cluster, and end.",
)
@click.option("--cluster", metavar="ID", help="Id of the cluster; needed only if the lake has several.")
@click.option(
    "--holes",
    type=click.Choice(["refuse", "skip"]),
    default="refuse",
    show_default=True,
    help="At offsets that no receipt has: refuse, so that consumers stop there, or skip to the next records.",
)
@click.option(
    "--cache",
    "cache_bytes",
    metavar="SIZE",
    default="2G",
    show_default=True,
    callback=size_bytes,
    help="Disk space in TMPDIR for decoded batches, which are kept for the next consumer.",
)
@click.option(
    "--positions",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"File of groups' committed positions; default: {_POSITIONS} in the lake's directory.",
)
@click.option("--tls-cert", type=NamedPath(dir_okay=False), help="Certificate of this server, as PEM.")
@click.option(
    "--tls-key", type=NamedPath(dir_okay=False), help="Key of the certificate, if the key is in another file."
)
@click.option(
    "--users", type=click.Path(dir_okay=False, path_type=Path), help="File of users and their read rights."
)
@click.option("--set-user", metavar="NAME", help="Set a user's password in --users, and end.")
@click.option(
    "--topics",
    metavar="NAMES",
    help="Topics that this user may read: names separated by commas; * stands for any text.",
)
@click.option("--insecure", is_flag=True, help="Let other hosts connect without TLS.")
def serve_lake(
    lake_dir: Path,
    address: tuple[str, int],
    advertised: tuple[str, int] | None,
    upstream: tuple[tuple[str, int], ...],
    upstream_ca: Path | None,
    upstream_login: Path | None,
    groups: str,
    give_back_groups: bool,
    cluster: str | None,
    holes: str,
    cache_bytes: int,
    positions: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    users: Path | None,
    set_user: str | None,
    topics: str | None,
    insecure: bool,
) -> int:
    """Serve archived records to Kafka consumers, at their original offsets. Nothing is restored first.

    Start a consumer with this server's address: it reads on from its position, with --upstream up to the live
    end. Nothing can be written: producers are refused, and groups commit to a file of this server. Records
    that enter the lake meanwhile are served within seconds. Ends on SIGTERM and SIGINT.
    """
    SERVER.require("serve-lake")
    import pyarrow as pa

    from storage_engine.lake.catalog.catalog import open_lake
    from storage_engine.lake_server.archive_reader import LakeReader
    from storage_engine.lake_server.group_answers import CommittedPositions, give_back
    from storage_engine.lake_server.server import Listening, serve
    from storage_engine.lake_server.upstream import Upstream, read_login, trusting
    from storage_engine.lake_server.users import read_users

    if set_user is not None:
        _keep_user(set_user, users, topics)
        return 0
    needs_cluster = bool(give_back_groups or upstream_ca or upstream_login)
    _check_cluster(groups, users, is_named=bool(upstream), is_needed=needs_cluster)
    listening = Listening(
        *address, advertised, tls_cert, tls_key, insecure, None if users is None else read_users(users)
    )
    listening.tls()
    upstream_tls = trusting(upstream_ca) if upstream_ca else None
    login = read_login(upstream_login) if upstream_login else None
    if "jemalloc" in pa.supported_memory_backends():
        # jemalloc returns free memory so late that the next row group uses it without clearing it again.
        pa.set_memory_pool(pa.jemalloc_memory_pool())
    lake = open_lake(LakeConfig.local(lake_dir))
    reader = LakeReader(lake, cluster, cache_bytes=cache_bytes, skip_holes=holes == "skip")
    for log in reader.archive.unnamed:
        say(f"{log} isn't served: its receipts contain no topic id.", err=True)

    async def run() -> int:
        serving = asyncio.current_task()
        assert serving is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
        behind = Upstream(upstream, reader.archive.cluster, upstream_tls, login) if upstream else None
        with suppress(asyncio.CancelledError), closing(behind) if behind else nullcontext():
            if give_back_groups and behind is not None:
                return 0 if await give_back(reader.archive, behind, kept, say) else 1
            await serve(
                reader,
                kept,
                listening,
                partial(say, err=True),
                lambda port: _say_started(lake.location, reader.archive, f"{address[0]}:{port}"),
                upstream=behind,
                are_groups_upstream=groups == "upstream",
            )
        return 0

    with closing(CommittedPositions(positions or lake_dir / _POSITIONS)) as kept, closing(reader):
        return asyncio.run(run())


def _check_cluster(groups: str, users: Path | None, *, is_named: bool, is_needed: bool) -> None:
    """:raises BadInputError: options need a cluster but none is named, or options contradict each other."""
    if not is_named and (is_needed or groups == "upstream"):
        raise BadInputError(
            "serve-lake: expected --upstream BROKERS with these options, found none. Nothing was started "
            "or changed. Name brokers of the lake's cluster."
        )
    if groups == "upstream" and users is not None:
        raise BadInputError(
            "serve-lake --groups upstream: expected no --users with it, found a file: all users would "
            "commit to the cluster with this server's rights. Nothing was started. Leave out one of the "
            "two options."
        )


def _keep_user(name: str, users: Path | None, topics: str | None) -> None:
    from storage_engine.lake_server.users import set_user

    if users is None or not topics:
        raise BadInputError(
            "serve-lake: expected --users FILE and --topics NAMES with --set-user, found that at least one "
            "of the two is missing. Nothing was changed."
        )
    password = click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
    set_user(users, name, password, topics.split(","))


def _say_started(lake: str, archive: Archive, address: str) -> None:
    partitions = sum(map(len, archive.topics.values()))
    say(
        f"{lake}: {count_text(partitions, 'partition')} of {count_text(len(archive.topics), 'topic')} of "
        f"cluster {archive.cluster} {'is' if partitions == 1 else 'are'} served at {address}."
    )
