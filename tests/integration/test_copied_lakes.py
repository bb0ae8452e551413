"""Lakes on real servers that are copied and rebuilt."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from storage_engine.exceptions import LakeIdentityError
from storage_engine.lake.archive import archive_all, segment_jobs
from storage_engine.lake.catalog import open_lake
from storage_engine.lake.config import LakeConfig
from storage_engine.lake.copying import copy_lake
from storage_engine.lake.identity import copy_of, lake_id_of
from storage_engine.lake.making import make_lake
from storage_engine.lake.promoting import promote
from storage_engine.lake.rebuilding import rebuild
from storage_engine.lake.receipts import receipts
from storage_engine.lake.restore import restore
from storage_engine.lake.verify import unseen, verify
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.model.validation import Status
from storage_engine.model.verification import VerifyLevel
from tests.integration.object_store import ObjectStore
from tests.integration.postgres import Postgres, postgres

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


@pytest.fixture
def config(database: Postgres, object_store: ObjectStore, request: pytest.FixtureRequest) -> LakeConfig:
    """A lake of each test's own: a namespace in the one catalog."""
    properties = {"type": "sql", "uri": database.uri, **object_store.properties()}
    namespace = request.node.originalname.removeprefix("test_")
    return LakeConfig("storage_engine", properties, namespace=namespace)


def archive(config: LakeConfig, root: Path, first: int, end: int) -> None:
    chosen = [
        Segment("commitlog", int(path.name), FileFacts.of(path), SegmentState.SEALED)
        for path in sorted((root / "commitlog").iterdir())[first:end]
    ]
    lake = open_lake(config)
    archive_all(
        lake,
        segment_jobs(lake, chosen, store_id="s", lineage=0, broker="rocketmq", store_root=str(root)),
    )


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


def test_a_lake_on_servers_is_copied_to_disk_and_verifies_without_them(
    config: LakeConfig, object_store: ObjectStore, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    root = store_copy("clean-stop")
    make_lake(config)
    archive(config, root, 0, 1)
    copy = LakeConfig.local(tmp_path / "copy")
    copy_lake(open_lake(config), copy, unseen)
    archive(config, root, 1, 2)
    assert copy_lake(open_lake(config), copy, unseen).file_count == 2
    original = lake_id_of(open_lake(config).segments())
    object_store.stop()
    try:
        assert copy_of(open_lake(copy).segments()) == original
        check(copy, root, 2, tmp_path)
    finally:
        object_store.start()


def test_a_local_lake_is_copied_to_servers(
    config: LakeConfig, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    root = store_copy("clean-stop")
    local = LakeConfig.local(tmp_path / "lake")
    make_lake(local)
    archive(local, root, 0, 2)
    copy_lake(open_lake(local), config, unseen)
    shutil.rmtree(tmp_path / "lake")
    check(config, root, 2, tmp_path)
    promote(open_lake(config), "ann", "the disk broke")
    archive(config, root, 2, 3)
    check(config, root, 3, tmp_path)


def test_a_lost_database_is_rebuilt_from_the_bucket(
    config: LakeConfig, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    root = store_copy("clean-stop")
    made = lake_id_of(make_lake(config).segments())
    archive(config, root, 0, 1)
    archive(config, root, 1, 2)
    # The next server is another one: the lake's catalog was lost with the first.
    with postgres() as server:
        new = config.with_properties({"uri": server.uri})
        with pytest.raises(LakeIdentityError, match="--take-over"):
            rebuild(new, unseen, {})
        rebuild(new, unseen, {}, take_over=True)
        assert lake_id_of(open_lake(new).segments()) == made
        check(new, root, 2, tmp_path)
        archive(new, root, 2, 3)
        check(new, root, 3, tmp_path)
        # The first one comes back.
        with pytest.raises(LakeIdentityError):
            open_lake(config)


def test_a_dump_is_no_catalog_elsewhere_and_an_older_one_here_is_rebuilt(
    config: LakeConfig, database: Postgres, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    root = store_copy("clean-stop")
    make_lake(config)
    archive(config, root, 0, 1)
    yesterday = database.dump()
    archive(config, root, 1, 2)
    with postgres() as staging:
        staging.put_back(database.dump())
        with pytest.raises(LakeIdentityError, match="this catalog is a copy, or the catalog was moved"):
            open_lake(config.with_properties({"uri": staging.uri}))
    check(config, root, 2, tmp_path)
    database.put_back(yesterday)
    with pytest.raises(LakeIdentityError, match="put back from an older copy"):
        archive(config, root, 2, 3)
    rebuild(config, unseen, {})
    check(config, root, 2, tmp_path)
    archive(config, root, 2, 3)
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
