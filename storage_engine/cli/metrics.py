"""metrics: the journal's figures of stores, for Prometheus. Nothing here looks at a store or changes it."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from storage_engine.cli.options.options import conn_id_option, lake_and_journal, lake_option
from storage_engine.cli.options.stores_file import named_stores
from storage_engine.cli.output.output import say
from storage_engine.cli.shell.shared_options import command
from storage_engine.cli.shell.values import NamedPath, host_and_port
from storage_engine.commands import Command
from storage_engine.core.clock import clock_ms
from storage_engine.core.extras import METRICS as METRICS_EXTRA
from storage_engine.core.host import is_loopback
from storage_engine.core.wording import count_text
from storage_engine.exceptions import BadInputError, JournalUnavailableError, StorageEngineError

if TYPE_CHECKING:
    from storage_engine.console.metrics import MetricSample
    from storage_engine.journal.reading.queries import JournalReader

TEXTFILE = "storage_engine.prom"


@command()
@click.argument("names", metavar="[NAME]", nargs=-1)
@lake_option(required=False)
@conn_id_option
@click.option(
    "--listen",
    metavar="HOST:PORT",
    callback=host_and_port,
    help="Serve metrics to Prometheus here until stopped.",
)
@click.option(
    "--textfile",
    type=NamedPath(file_okay=False, exists=True),
    help=f"Write {TEXTFILE} into this directory of node_exporter, once.",
)
@click.option("--tls-cert", type=NamedPath(dir_okay=False, exists=True), help="Certificate of this server.")
@click.option("--tls-key", type=NamedPath(dir_okay=False, exists=True), help="Its key.")
@click.option("--insecure", is_flag=True, help="Let other hosts connect without TLS.")
def metrics(
    names: tuple[str, ...],
    lake_dir: Path | None,
    conn_id: str | None,
    listen: tuple[str, int] | None,
    textfile: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    insecure: bool,
) -> int:
    """Serve the journal's figures of stores to Prometheus: levels, retention, lag, runs, proofs, alarms.

    NAME is a store's name, and there may be several. Without a name, all stores of the journal are served. A
    scrape only reads the journal, so a store that hangs doesn't stop it. Unknown values have no sample.
    """
    METRICS_EXTRA.require("metrics")
    if (listen is None) == (textfile is None):
        raise click.UsageError("Expected either --listen HOST:PORT or --textfile DIRECTORY.")
    if listen is not None and not (tls_cert or insecure or is_loopback(listen[0])):
        raise BadInputError(
            f"metrics: expected TLS where other hosts connect, found none for {listen[0]}. Nothing was "
            "started. Give --tls-cert and --tls-key, or --insecure if everybody who can connect may read "
            "the metrics."
        )
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("Expected both --tls-cert and --tls-key, or neither.")
    collector = Collector(_readers(lake_dir, conn_id), names)
    if textfile is not None:
        return _write(collector, textfile / TEXTFILE)
    assert listen is not None
    collector.check()
    return _serve(collector, listen, tls_cert, tls_key)


def _readers(lake_dir: Path | None, conn_id: str | None) -> tuple[JournalReader, ...]:
    """Return a reader for each journal that a call names."""
    from storage_engine.journal.reading.queries import JournalReader

    if lake_dir is None and conn_id is None and (named := named_stores()):
        urls = [store.managed(store.path("lake"), None).journal_url for store in named.values()]
    else:
        urls = [lake_and_journal(lake_dir, conn_id)[1]]
    if not any(urls):
        raise BadInputError(
            "metrics: expected a store with a lake in the file of stores, found none. Nothing was "
            "started. Add a lake to a store, or name a lake by --lake or --conn-id."
        )
    return tuple(JournalReader(url) for url in dict.fromkeys(urls) if url)


@dataclass(frozen=True, slots=True)
class Collector:
    """Answers Prometheus' library at each scrape, for the named stores, or for all if none is named."""

    readers: tuple[JournalReader, ...]
    stores: tuple[str, ...]

    def check(self) -> None:
        """Make sure that every named store exists, and that no two stores have the same name.

        :raises BadInputError: a store doesn't exist, or two journals have stores with the same name.
        :raises JournalUnavailableError: a journal can't be read.
        """
        from storage_engine.console.metrics import name_of

        names = [
            name_of(summary) for reader in self.readers for summary in reader.summaries(None, clock_ms())
        ]
        expected = self.stores or tuple(names)
        for name in expected:
            if names.count(name) != 1:
                names_text = ", ".join(sorted({*names})) or "none"
                raise BadInputError(
                    f"store {name}: expected one of this name in the journals, found {names.count(name)} "
                    f"(they have {names_text}). Nothing was started. Name others, or rename one of them: ",
                    Command("move"),
                    ".",
                )

    def collect(self) -> Iterator[Any]:
        """Yield each metric with its samples. A journal that can't be read doesn't hide other journals."""
        from prometheus_client.core import GaugeMetricFamily

        from storage_engine.console.metrics import METRICS, PREFIX

        readable = GaugeMetricFamily(
            f"{PREFIX}journal_readable",
            "1: the journal answered; 0: it did not, and nothing is known of its stores.",
            labels=["journal"],
        )
        families = {
            name: GaugeMetricFamily(
                PREFIX + name, text, labels=["store", "path"] if name.startswith("disk_") else ["store"]
            )
            for name, text in METRICS.items()
        }
        samples = {reader: self._samples(reader) for reader in self.readers}
        counts = Counter(
            (sample.metric, sample.store, sample.path)
            for values in samples.values()
            for sample in values or ()
        )
        # Since the start a second store may have got the same name. Then it is unknown whose a figure is.
        twice = {store for (_, store, _), count in counts.items() if count > 1}
        for name in sorted(twice):
            say(
                f"store {name}: expected one of this name, found several: no samples of them are served",
                err=True,
            )
        for reader, values in samples.items():
            readable.add_metric([reader.name], float(values is not None))
            for sample in values or ():
                if sample.store in twice:
                    continue
                families[sample.metric].add_metric(
                    [sample.store, *([sample.path] if sample.path else [])], sample.value
                )
        yield readable
        yield from families.values()

    def _samples(self, reader: JournalReader) -> Sequence[MetricSample] | None:
        from storage_engine.console.metrics import read_samples

        try:
            return list(read_samples(reader, self.stores or None, clock_ms()))
        except StorageEngineError as error:
            say(error, err=True)
            return None


def _write(collector: Collector, file: Path) -> int:
    """Write the figures once. If a journal can't be read, the file says so and contains no old figures."""
    from prometheus_client import CollectorRegistry, write_to_textfile

    registry = CollectorRegistry()
    registry.register(collector)
    code = 0
    try:
        collector.check()
    except JournalUnavailableError:
        # collect() prints the reason for each journal.
        code = 1
    write_to_textfile(str(file), registry)
    return code


def _serve(collector: Collector, listen: tuple[str, int], tls_cert: Path | None, tls_key: Path | None) -> int:
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(collector)
    host, port = listen
    try:
        server, thread = start_http_server(
            port,
            host,
            registry,
            certfile=None if tls_cert is None else str(tls_cert),
            keyfile=None if tls_key is None else str(tls_key),
        )
    except OSError as error:
        raise BadInputError(
            f"metrics: expected to listen at {host}:{port}, found {error.strerror or error}. "
            "Nothing was started. Name another address by --listen."
        ) from error
    scheme = "http" if tls_cert is None else "https"
    of = count_text(len(collector.readers), "journal")
    say(f"Metrics of {of}: {scheme}://{host}:{server.server_port}/metrics")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    server.shutdown()
    thread.join()
    return 0
