"""Lakes whose catalog is a server, tried with real ones: PostgreSQL and an Iceberg REST catalog."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage_engine.exceptions import CommitStateUnknownError, LakeUnavailableError
from storage_engine.lake.archive import archive_all, segment_jobs
from storage_engine.lake.catalog import open_lake
from storage_engine.lake.config import LakeConfig
from storage_engine.lake.making import make_lake
from storage_engine.lake.receipts import receipts
from storage_engine.model.store import FileFacts, Segment, SegmentState
from tests.integration.lake_cycle import archive, check_exactly_once, contents, expired_store, finish, plan
from tests.integration.object_store import ObjectStore
from tests.integration.postgres import PASSWORD, Postgres, postgres
from tests.integration.rest_catalog import RestCatalog, rest_catalog

pytestmark = pytest.mark.integration

CatalogServer = Postgres | RestCatalog


@pytest.fixture(scope="module", params=["postgres", "rest"])
def server(
    request: pytest.FixtureRequest, object_store: ObjectStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CatalogServer]:
    if request.param == "postgres":
        with postgres() as database:
            yield database
    else:
        with rest_catalog(tmp_path_factory.mktemp("rest"), object_store) as catalog:
            yield catalog


@pytest.fixture
def lake(server: CatalogServer, object_store: ObjectStore, request: pytest.FixtureRequest) -> LakeConfig:
    """A lake of each test's own: a namespace in the one catalog."""
    kind = "rest" if isinstance(server, RestCatalog) else "sql"
    properties = {"type": kind, "uri": server.uri, **object_store.properties()}
    if kind == "rest":
        # The catalog says where its tables are.
        del properties["warehouse"]
    namespace = request.node.originalname.removeprefix("test_")
    return LakeConfig("storage_engine", properties, namespace=namespace)


def test_a_store_is_archived_released_verified_and_restored(
    lake: LakeConfig, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    root = store_copy("clean-stop")
    before = contents(root)
    store = expired_store(root, tmp_path, lake)
    plan(store, max_segments=2)
    archive(store)
    assert len(finish(store, before, tmp_path / "restored")) == 2


def test_two_processes_that_archive_the_same_segments_have_each_once(
    lake: LakeConfig, store_copy: Callable[[str], Path]
) -> None:
    make_lake(lake)
    root = store_copy("clean-stop")
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
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
