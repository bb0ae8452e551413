"""Lakes on real servers: the whole job, processes side by side, copies, and what is rebuilt of them.

Their data is in an S3 server, their catalog in PostgreSQL or an Iceberg REST catalog.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import NullPool, create_engine, inspect

from storage_engine.core import host
from storage_engine.exceptions import (
    CommitStateUnknownError,
    LakeIdentityError,
    LakeUnavailableError,
    StoreIdentityError,
)
from storage_engine.journal.journal import Journal
from storage_engine.lake.archive.archive import archive_all, segment_jobs
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import copy_of, lake_id_of
from storage_engine.lake.move.copying import copy_lake, promote
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.move.rebuilding import rebuild
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.verify.verify import verify
from storage_engine.model.report.validation import Status, VerifyLevel
from storage_engine.model.store import FileFacts, Lineages, Segment, SegmentState
from tests.integration.lake_cycle import (
    archive,
    archive_some,
    check_exactly_once,
    contents,
    expired_store,
    finish,
    plan,
)
from tests.integration.object_store import ObjectStore
from tests.integration.postgres import PASSWORD, Postgres, postgres
from tests.integration.rest_catalog import RestCatalog, rest_catalog
from tests.services.pools import pool_of_processes
from tests.services.restoring import restore

pytestmark = pytest.mark.integration

CatalogServer = Postgres | RestCatalog


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


@pytest.fixture(scope="module")
def other_database() -> Iterator[Postgres]:
    """A server that knows nothing of the lakes."""
    with postgres() as server:
        yield server


@pytest.fixture(scope="module", params=[pytest.param("postgres", marks=pytest.mark.again), "rest"])
def server(
    request: pytest.FixtureRequest,
    database: Postgres,
    object_store: ObjectStore,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[CatalogServer]:
    if request.param == "postgres":
        yield database
    else:
        with rest_catalog(tmp_path_factory.mktemp("rest"), object_store) as catalog:
            yield catalog


@pytest.fixture
def lake(server: CatalogServer, object_store: ObjectStore, request: pytest.FixtureRequest) -> LakeConfig:
    """A lake of each test's own: a namespace in the one catalog, of either kind."""
    kind = "rest" if isinstance(server, RestCatalog) else "sql"
    properties = {"type": kind, "uri": server.uri, **object_store.properties()}
    if kind == "rest":
        # The catalog says where its tables are.
        del properties["warehouse"]
    namespace = request.node.originalname.removeprefix("test_")
    return LakeConfig("storage_engine", properties, namespace=namespace)


@pytest.mark.again
def test_a_store_is_archived_released_verified_and_restored(
    lake: LakeConfig, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    root = store_copy("clean-stop")
    before = contents(root)
    store = expired_store(root, tmp_path, lake)
    plan(store, max_segments=2)
    archive(store)
    assert len(finish(store, before, tmp_path / "restored")) == 2


@pytest.mark.again
def test_two_processes_that_archive_the_same_segments_have_each_once(
    lake: LakeConfig, store_copy: Callable[[str], Path]
) -> None:
    make_lake(lake)
    root = store_copy("clean-stop")
    with pool_of_processes(2) as pool:
        pool.starmap(_archive_two, [(lake.to_json(), str(root))] * 2)
    opened = open_lake(lake)
    assert len(receipts(opened, "store-1")) == 2
    check_exactly_once(opened)


def _archive_two(config: str, root: str) -> None:
    """What each process does."""
    lake = open_lake(LakeConfig.from_json(config))
    segments = [
        Segment("commitlog", int(path.name), FileFacts.of(path), SegmentState.SEALED)
        for path in sorted(Path(root, "commitlog").iterdir())[:2]
    ]
    jobs = segment_jobs(lake, segments, store_id="store-1", lineage=0, broker="rocketmq", store_root=root)
    assert len(archive_all(lake, jobs)) == 2


@pytest.mark.again
def test_a_catalog_that_is_killed_is_one_clear_error_and_the_next_run_completes(
    lake: LakeConfig, server: CatalogServer, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    root = store_copy("clean-stop")
    before = contents(root)
    store = expired_store(root, tmp_path, lake)
    plan(store, max_segments=2)
    server.kill()
    try:
        with pytest.raises((LakeUnavailableError, CommitStateUnknownError)) as caught:
            archive(store)
        assert PASSWORD not in str(caught.value)
        assert contents(root) == before
    finally:
        server.start()
    archive(store)
    assert len(finish(store, before, tmp_path / "restored")) == 2


@pytest.fixture
def config(database: Postgres, object_store: ObjectStore, request: pytest.FixtureRequest) -> LakeConfig:
    """A lake of each test's own: a namespace in the one catalog on PostgreSQL."""
    properties = {"type": "sql", "uri": database.uri, **object_store.properties()}
    namespace = request.node.originalname.removeprefix("test_")
    return LakeConfig("storage_engine", properties, namespace=namespace)


def check(config: LakeConfig, root: Path, count: int, work: Path) -> None:
    """A lake has the first segments of a store, by every byte."""
    lake = open_lake(config)
    assert len(receipts(lake, "s")) == count
    (found,) = verify(lake, VerifyLevel.BYTES)
    assert (found.overall, found.findings) == (Status.OK, ())
    back = work / f"back-{len(list(work.iterdir()))}"
    restore(lake, "s", back)
    for path in sorted((root / "commitlog").iterdir())[:count]:
        assert (back / "commitlog" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.again
def test_a_local_lake_is_copied_to_servers(
    config: LakeConfig, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    root = store_copy("clean-stop")
    local = LakeConfig.local(tmp_path / "lake")
    make_lake(local)
    archive_some(local, root, 0, 2)
    copy_lake(open_lake(local), config)
    shutil.rmtree(tmp_path / "lake")
    check(config, root, 2, tmp_path)
    promote(open_lake(config), "ann", "the disk broke")
    archive_some(config, root, 2, 3)
    check(config, root, 3, tmp_path)


@pytest.mark.again
def test_a_lost_database_is_rebuilt_from_the_bucket(
    config: LakeConfig, other_database: Postgres, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    root = store_copy("clean-stop")
    made = lake_id_of(make_lake(config).segments())
    archive_some(config, root, 0, 1)
    archive_some(config, root, 1, 2)
    # The next server is another one: the lake's catalog was lost with the first.
    new = config.with_properties({"uri": other_database.uri})
    with pytest.raises(LakeIdentityError, match="--take-over"):
        rebuild(new, {})
    rebuild(new, {}, take_over=True)
    assert lake_id_of(open_lake(new).segments()) == made
    check(new, root, 2, tmp_path)
    archive_some(new, root, 2, 3)
    check(new, root, 3, tmp_path)
    # The first one comes back.
    with pytest.raises(LakeIdentityError):
        open_lake(config)


@pytest.mark.again
def test_a_dump_is_no_catalog_elsewhere_and_an_older_one_here_is_rebuilt(
    config: LakeConfig,
    database: Postgres,
    other_database: Postgres,
    store_copy: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    root = store_copy("clean-stop")
    make_lake(config)
    archive_some(config, root, 0, 1)
    yesterday = database.dump()
    archive_some(config, root, 1, 2)
    other_database.put_back(database.dump())
    with pytest.raises(LakeIdentityError, match="this catalog is a copy, or the catalog was moved"):
        open_lake(config.with_properties({"uri": other_database.uri}))
    check(config, root, 2, tmp_path)
    database.put_back(yesterday)
    with pytest.raises(LakeIdentityError, match="put back from an older copy"):
        archive_some(config, root, 2, 3)
    rebuild(config, {})
    check(config, root, 2, tmp_path)
    archive_some(config, root, 2, 3)
    check(config, root, 3, tmp_path)


def test_a_schema_that_comes_first_later_makes_no_other_catalog(database: Postgres, tmp_path: Path) -> None:
    properties = {
        "type": "sql",
        "uri": f"{database.uri}?options=-csearch_path%3Dlater,public",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    config = LakeConfig("storage_engine", properties, namespace="schemas")
    made = make_lake(config)
    with psycopg.connect(database.uri.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA later")
        try:
            assert open_lake(config).catalog_id == made.catalog_id
            # As an older version wrote it once that schema was there.
            for mark in tmp_path.rglob(".storage-engine-mark.json"):
                mark.write_text(mark.read_text().replace("/schema=public ", "/later "))
            assert open_lake(config).catalog_id == made.catalog_id
        finally:
            connection.execute("DROP SCHEMA later")


@pytest.mark.again
def test_a_lake_on_servers_is_copied_to_disk_and_verifies_without_them(
    config: LakeConfig, object_store: ObjectStore, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    """The last of this file, as its object store stays stopped."""
    root = store_copy("clean-stop")
    make_lake(config)
    archive_some(config, root, 0, 1)
    copy = LakeConfig.local(tmp_path / "copy")
    copy_lake(open_lake(config), copy)
    archive_some(config, root, 1, 2)
    assert copy_lake(open_lake(config), copy).file_count == 2
    original = lake_id_of(open_lake(config).segments())
    object_store.stop()
    assert copy_of(open_lake(copy).segments()) == original
    check(copy, root, 2, tmp_path)


def test_an_older_journal_on_a_server_lets_two_machines_share_a_path(
    database: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Journal(database.uri).add_store("/s", "rocketmq")
    stores = "storage_engine_stores"
    with create_engine(database.uri, poolclass=NullPool).begin() as connection:
        (unique,) = inspect(connection).get_unique_constraints(stores)
        connection.exec_driver_sql(f'ALTER TABLE {stores} DROP CONSTRAINT "{unique["name"]}"')
        connection.exec_driver_sql(f"ALTER TABLE {stores} ADD UNIQUE (real_path)")
        connection.exec_driver_sql(f"ALTER TABLE {stores} DROP COLUMN name")
        connection.exec_driver_sql("ALTER TABLE storage_engine_lineages DROP COLUMN log")
        connection.exec_driver_sql("DROP TABLE storage_engine_log_lineages")
        connection.exec_driver_sql("UPDATE storage_engine_schema SET version = 5")
    journal = Journal(database.uri)
    assert journal.find_store("/s") == known
    (tmp_path / "machine-id").write_text("another")
    monkeypatch.setattr(host, "_MACHINE_ID", tmp_path / "machine-id")
    other = journal.add_store("/s", "rocketmq", host="another")
    assert other.store_id != known.store_id
    assert journal.find_store("/s") == other
    assert journal.name_store(known.store_id, "orders").name == "orders"
    with pytest.raises(StoreIdentityError, match="expected a name that no other store has"):
        journal.name_store(other.store_id, "orders")
    assert journal.open_lineage(other.store_id, "ann", "a test", "log").lineages == Lineages(1, {"log": 2})
    with create_engine(database.uri, poolclass=NullPool).begin() as connection:
        (unique,) = inspect(connection).get_unique_constraints(stores)
    assert unique["column_names"] == ["host", "real_path"]
