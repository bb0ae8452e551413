"""What a table says of file access, places and classes is never followed, and locks nobody out."""

from __future__ import annotations

import gzip
import os
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.locations import SimpleLocationProvider

from storage_engine.exceptions import LakeIdentityError, LakeUnavailableError
from storage_engine.lake.archive.archive import SegmentJob, archive_all
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import MARK_NAME
from storage_engine.lake.catalog.own_tables import followed_properties, ignored_properties
from storage_engine.lake.catalog.tables import missing_properties
from storage_engine.lake.durable_io import DurableFileIO, local_path, may_open
from storage_engine.lake.gc.garbage import collect
from storage_engine.lake.move.describing import describe
from storage_engine.lake.move.moving import relocate
from storage_engine.lake.move.rebuilding import rebuild
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.verify.reproof import reprove
from storage_engine.lake.verify.verify import verify
from storage_engine.model.report.validation import Status, VerifyLevel
from tests.rounds import ALL, later
from tests.stock_engine import set_location, set_properties, stock_table

MakeJobs = Callable[..., tuple[SegmentJob, ...]]

LOADED: list[str] = []
"""Names of classes below that something made an instance of."""


class Intruder(SimpleLocationProvider):
    """A class that a table names."""

    def __init__(self, *arguments: Any) -> None:
        LOADED.append("location provider")
        super().__init__(*arguments)


class IntrudingFileIO(DurableFileIO):
    """The same for file access."""

    def __init__(self, *arguments: Any) -> None:
        LOADED.append("file access")
        super().__init__(*arguments)


HERE = "tests.lake.catalog.test_own_tables"

DOCUMENTED = {
    # Iceberg's read, write, table behavior and compatibility properties.
    "read.split.target-size": "1",
    "read.split.metadata-target-size": "1",
    "read.split.planning-lookback": "1",
    "read.split.open-file-cost": "1",
    "read.parquet.vectorization.enabled": "false",
    "read.parquet.vectorization.batch-size": "1",
    "read.orc.vectorization.enabled": "true",
    "read.orc.vectorization.batch-size": "1",
    "write.format.default": "orc",
    "write.delete.format.default": "avro",
    "write.parquet.row-group-size-bytes": "1",
    "write.parquet.page-size-bytes": "1",
    "write.parquet.page-row-limit": "1",
    "write.parquet.dict-size-bytes": "1",
    "write.parquet.compression-codec": "none-such",
    "write.parquet.compression-level": "99",
    "write.parquet.bloom-filter-enabled.column.body": "true",
    "write.parquet.bloom-filter-max-bytes": "1",
    "write.parquet.bloom-filter-fpp.column.body": "0.5",
    "write.parquet.stats-enabled.column.store_id": "false",
    "write.avro.compression-codec": "none-such",
    "write.avro.compression-level": "99",
    "write.orc.stripe-size-bytes": "1",
    "write.orc.compression-codec": "none-such",
    "write.location-provider.impl": "com.example.Provider",
    "write.py-location-provider.impl": f"{HERE}.Intruder",
    "write.metadata.compression-codec": "gzip",
    "write.metadata.metrics.max-inferred-column-defaults": "0",
    "write.metadata.metrics.default": "everything",
    "write.metadata.metrics.column.store_id": "everything",
    "write.target-file-size-bytes": "one",
    "write.delete.target-file-size-bytes": "one",
    "write.distribution-mode": "range",
    "write.delete.distribution-mode": "range",
    "write.wap.enabled": "true",
    "write.summary.partition-limit": "many",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "1",
    "write.spark.fanout.enabled": "true",
    "write.object-storage.enabled": "true",
    "write.object-storage.partitioned-paths": "false",
    "write.object-storage.path": "file://{away}/objects",
    "write.folder-storage.path": "file://{away}/folder",
    "write.data.path": "file://{away}/data",
    "write.metadata.path": "file://{away}/metadata",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.delete.isolation-level": "none-such",
    "write.delete.granularity": "file",
    "commit.retry.num-retries": "50",
    "commit.retry.min-wait-ms": "1",
    "commit.retry.max-wait-ms": "one",
    "commit.retry.total-timeout-ms": "one",
    "commit.status-check.num-retries": "1",
    "commit.manifest.target-size-bytes": "one",
    "commit.manifest.min-count-to-merge": "one",
    "commit.manifest-merge.enabled": "maybe",
    "history.expire.max-snapshot-age-ms": "1",
    "history.expire.min-snapshots-to-keep": "one",
    "history.expire.max-ref-age-ms": "1",
    "compatibility.snapshot-id-inheritance.enabled": "true",
    "gc.enabled": "false",
    "schema.name-mapping.default": "{{",
    "encryption.key-id": "key",
    # How PyIceberg opens files.
    "py-io-impl": f"{HERE}.IntrudingFileIO",
    "io-impl": "com.example.IO",
    "warehouse": "file://{away}/warehouse",
    "uri": "http://{trap}",
    "s3.endpoint": "http://{trap}",
    "s3.proxy-uri": "http://{trap}",
    "s3.access-key-id": "theirs",
    "s3.secret-access-key": "theirs",
    "s3.session-token": "theirs",
    "s3.region": "theirs",
    "s3.resolve-region": "true",
    "s3.anonymous": "true",
    "s3.role-arn": "theirs",
    "s3.signer": "S3V4RestSigner",
    "s3.signer.uri": "http://{trap}",
    "s3.signer.endpoint": "sign",
    "s3.retry-strategy-impl": f"{HERE}.Intruder",
    "s3.connect-timeout": "one",
    "s3.request-timeout": "one",
    "s3.force-virtual-addressing": "true",
    "client.region": "theirs",
    "client.access-key-id": "theirs",
    "client.role-arn": "theirs",
    "gcs.service.host": "http://{trap}",
    "gcs.oauth2.token": "theirs",
    "adls.connection-string": "theirs",
    "adls.account-host": "{trap}",
    "hdfs.host": "{trap}",
    "buffer-size": "one",
    "DEFAULT_SCHEME": "hdfs",
    "DEFAULT_NETLOC": "{trap}",
}
"""A value of each that would break something, or lead it elsewhere, if it was followed."""

METRICS = "write.metadata.metrics."

SETS = [pytest.param(dict(DOCUMENTED), id="all")] + [
    pytest.param({key: value}, id=key, marks=pytest.mark.again) for key, value in DOCUMENTED.items() if ALL
]


@contextmanager
def trap() -> Iterator[tuple[str, Callable[[], int]]]:
    """A host that nobody configured: its address, and how many have connected to it."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        server.setblocking(False)

        def connected() -> int:
            count = 0
            while True:
                try:
                    server.accept()[0].close()
                except BlockingIOError:
                    return count
                count += 1

        yield f"127.0.0.1:{server.getsockname()[1]}", connected


def files_below(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def check(config: LakeConfig, count: int) -> None:
    """Make sure that a lake has so many segments, all sound."""
    lake = open_lake(config)
    assert len(receipts(lake, "store-1")) == count
    (report,) = verify(lake, VerifyLevel.BYTES)
    assert report.overall is Status.OK, report


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts every fsync."""
    counted = [0]
    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)

        def count(descriptor: int, real: Callable[[int], None] = real) -> None:
            counted[0] += 1
            real(descriptor)

        monkeypatch.setattr(os, name, count)
    return counted


@pytest.mark.parametrize("properties", SETS)
def test_a_documented_property_changes_no_sync_no_place_and_no_host(
    properties: dict[str, str],
    filled: Callable[[int], Lake],
    segments: list[Path],
    make_jobs: MakeJobs,
    tmp_path: Path,
    syncs: list[int],
) -> None:
    away = tmp_path / "away"
    lake = filled(1)
    counts = []
    for hostile in (False, True):
        if hostile:
            with trap() as (host, connected):
                values = {key: value.replace("{away}", str(away)) for key, value in properties.items()}
                set_properties(
                    lake.config, {key: value.replace("{trap}", host) for key, value in values.items()}
                )
                LOADED.clear()
                theirs = files_below(away)
                # The first commit sets right what other engines go by.
                archive_all(open_lake(lake.config), make_jobs(lake, segments[1]))
                assert connected() == 0
            lake = open_lake(lake.config)
        path = segments[2] if hostile else segments[0]
        before = syncs[0]
        archive_all(lake, make_jobs(lake, path, store_id=f"store-{2 + hostile}"))
        counts.append(syncs[0] - before)
    assert counts[0] == counts[1] > 0
    assert files_below(away) == theirs
    assert LOADED == []
    check_all_sound(lake)
    for table in lake.tables():
        assert table.metadata_location.startswith(f"{lake.config.properties['warehouse']}/")
        found = stock_table(lake.config, table.name()[-1]).properties
        # What others have set is still there, but for what they and older releases go by.
        assert missing_properties(found) == {}
        assert {**properties, **missing_properties({})}.keys() <= found.keys()
    named = {name for _, names in describe(lake.config).ignored for name in names}
    assert named == set(ignored_properties(properties)) - missing_properties({}).keys()


@pytest.mark.parametrize("mode", ["none", "truncate(1)", *later("counts", "truncate(16)", "full")])
def test_statistics_that_others_ask_for_keep_nobody_from_writing(
    mode: str, filled: Callable[[int], Lake], segments: list[Path], make_jobs: MakeJobs
) -> None:
    lake = filled(1)
    for table in lake.every_table():
        wanted = {f"{METRICS}column.{field.name}": mode for field in table.schema().fields}
        set_properties(lake.config, {f"{METRICS}default": mode, **wanted}, table.name()[-1])
    archive_all(open_lake(lake.config), make_jobs(lake, segments[1]))
    check(lake.config, 2)


def check_all_sound(lake: Lake) -> None:
    for report in verify(lake, VerifyLevel.BYTES):
        assert report.overall is Status.OK, report


def test_metadata_that_another_engine_puts_elsewhere_is_read_there_and_ours_written_here(
    filled: Callable[[int], Lake], segments: list[Path], make_jobs: MakeJobs, tmp_path: Path
) -> None:
    lake = filled(1)
    set_properties(lake.config, {"write.metadata.path": f"file://{tmp_path}/meta"})
    assert len(files_below(tmp_path / "meta")) == 2
    check(lake.config, 1)
    with pytest.raises(LakeUnavailableError, match="commit of storage-engine brings the metadata back"):
        collect(open_lake(lake.config), grace_ms=0, delete=False)
    assert describe(lake.config).refused == ""
    assert not relocate(lake.config).changed
    rebuild(lake.config, {})
    check(lake.config, 1)
    archive_all(open_lake(lake.config), make_jobs(lake, segments[1]))
    check(lake.config, 2)
    assert len(files_below(tmp_path / "meta")) == 2
    # It goes on there, after ours.
    set_properties(lake.config, {"number": "1"})
    set_properties(lake.config, {"number": "2"})
    assert len(files_below(tmp_path / "meta")) == 6
    check(lake.config, 2)
    collect(open_lake(lake.config), grace_ms=0, delete=True)
    rebuild(lake.config, {})
    check(lake.config, 2)


@pytest.mark.again
def test_metadata_that_another_engine_has_compressed_is_read(
    filled: Callable[[int], Lake], segments: list[Path], make_jobs: MakeJobs, tmp_path: Path
) -> None:
    lake = filled(1)
    set_properties(lake.config, {"write.metadata.compression-codec": "gzip"})
    for name in ("segments", "messages"):
        location = stock_table(lake.config, name).metadata_location
        path = local_path(location)
        assert path is not None
        compressed = path.with_name(path.name.replace(".metadata.json", ".gz.metadata.json"))
        compressed.write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        with sqlite3.connect(tmp_path / "lake" / "catalog.db") as catalog:
            catalog.execute(
                "UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = ?",
                (f"file://{compressed}", name),
            )
    check(lake.config, 1)
    assert not relocate(lake.config).changed
    rebuild(lake.config, {})
    archive_all(open_lake(lake.config), make_jobs(lake, segments[1]))
    check(lake.config, 2)


def test_data_that_another_engine_puts_elsewhere_is_read_there(
    filled: Callable[[int], Lake], segments: list[Path], make_jobs: MakeJobs, tmp_path: Path
) -> None:
    lake = filled(2)
    set_properties(lake.config, {"write.data.path": f"file://{tmp_path}/elsewhere"}, "messages")
    table = stock_table(lake.config, "messages")
    rows = table.scan().to_arrow()
    table.overwrite(rows)
    assert files_below(tmp_path / "elsewhere")
    lake = open_lake(lake.config)
    reprove(lake, "store-1", receipts(lake, "store-1"))
    check(lake.config, 2)
    assert not relocate(lake.config).changed
    rebuild(lake.config, {})
    theirs = files_below(tmp_path / "elsewhere")
    archive_all(open_lake(lake.config), make_jobs(lake, segments[2]))
    check(lake.config, 3)
    assert files_below(tmp_path / "elsewhere") == theirs


@pytest.mark.parametrize("where", ["away/segments", *later("lake/warehouse/storage_engine/other")])
def test_a_table_that_another_engine_gave_a_location_goes_on_where_its_mark_is(
    where: str, filled: Callable[[int], Lake], segments: list[Path], make_jobs: MakeJobs, tmp_path: Path
) -> None:
    lake = filled(1)
    for name in ("segments", "messages"):
        set_location(lake.config, name, f"file://{tmp_path}/{where}-{name}")
    check(lake.config, 1)
    archive_all(open_lake(lake.config), make_jobs(lake, segments[1]))
    check(lake.config, 2)
    for name in ("segments", "messages"):
        assert not [file for file in files_below(Path(f"{tmp_path}/{where}-{name}")) if "json" not in file]
    info = describe(lake.config)
    assert (info.refused, {names[0] for _, names in info.ignored}) == ("", {"location"})
    # The cure.
    assert relocate(lake.config).changed
    assert describe(lake.config).ignored == ()
    check(lake.config, 2)
    archive_all(open_lake(lake.config), make_jobs(lake, segments[2]))
    check(lake.config, 3)


@pytest.mark.parametrize("lost", ["mark", "catalog"])
def test_a_location_that_no_mark_of_this_catalog_speaks_for_is_no_lake_s(
    lost: str, filled: Callable[[int], Lake], tmp_path: Path
) -> None:
    lake = filled(1)
    for name in ("segments", "messages"):
        set_location(lake.config, name, f"file://{tmp_path}/away/{name}")
        mark = local_path(f"{lake.config.properties['warehouse']}/storage_engine/{name}/{MARK_NAME}")
        assert mark is not None
        if lost == "mark":
            mark.unlink()
        else:
            mark.write_text(mark.read_text().replace("catalog.db", "another.db"))
    with pytest.raises(LakeIdentityError, match="lake relocate"):
        open_lake(lake.config)


def test_a_copied_warehouse_is_not_taken_for_one_whose_table_was_given_a_location(
    filled: Callable[[int], Lake], segments: list[Path], make_jobs: MakeJobs, tmp_path: Path
) -> None:
    """The same catalog, beside a copy of the warehouse: its marks name this catalog, too."""
    lake = filled(1)
    os.system(f"cp -a {tmp_path}/lake/warehouse {tmp_path}/copy")
    config = lake.config.with_properties({"warehouse": f"file://{tmp_path}/copy"})
    with pytest.raises(LakeIdentityError, match="plain copy"):
        open_lake(config)
    archive_all(lake, make_jobs(lake, segments[1]))
    with pytest.raises(LakeIdentityError, match="plain copy"):
        open_lake(config)


@pytest.mark.parametrize("scheme", ["hdfs", "gs", "s3"])
def test_a_kind_of_storage_that_nobody_configured_is_not_opened(
    scheme: str, filled: Callable[[int], Lake]
) -> None:
    lake = filled(1)
    with trap() as (host, connected):
        location = f"{scheme}://{host}/bucket/x.metadata.json"
        for use in (lake.segments().io.new_input, lake.segments().io.new_output, lake.segments().io.delete):
            with pytest.raises(LakeUnavailableError, match="expected a file in storage that the lake's"):
                use(location)
        assert connected() == 0


def test_what_is_configured_may_be_opened() -> None:
    local, s3 = {"warehouse": "file:///lake"}, {"warehouse": "s3://lake/w"}
    assert may_open(local, "/lake/x")
    assert not may_open(local, "s3://lake/w")
    assert may_open({**local, "s3.endpoint": "http://store"}, "s3://lake/w")
    assert may_open(s3, "s3a://another/w")
    assert not may_open({"warehouse": "hdfs://one/w"}, "hdfs://another/w")
    assert may_open({"warehouse": "hdfs://one/w"}, "hdfs://one/x")
    assert may_open({"hdfs.host": "one", "hdfs.port": "8020"}, "hdfs://one:8020/x")
    # A REST catalog's warehouse is a name.
    assert may_open({"warehouse": "prod"}, "gs://lake/w")


def test_statistics_are_asked_for_in_words_that_iceberg_knows() -> None:
    column = "write.metadata.metrics.column.log_id"
    assert followed_properties({column: "truncate(64)"})[column] == "truncate(64)"
    assert column not in followed_properties({column: "truncate(-1)"})
    assert ignored_properties({column: "truncate(-1)", "storage-engine.x": "1"}) == (column,)
