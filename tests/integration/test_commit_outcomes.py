"""Commits to a catalog on a real PostgreSQL whose connection breaks or password changes in between."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import event

from storage_engine.exceptions import CommitStateUnknownError, LakeUnavailableError
from storage_engine.journal.journal import Journal
from storage_engine.lake.archive import commit
from storage_engine.lake.archive.archive import archive_all, segment_jobs
from storage_engine.lake.catalog import catalog_connections
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import receipt_history
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.model.store import FileFacts, Segment, SegmentState
from tests.integration.postgres import PASSWORD, USER, Postgres, postgres
from tests.integration.tcp_proxy import TcpProxy
from tests.services.pools import pool_of_processes

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as database:
        yield database


@pytest.fixture
def proxy(server: Postgres) -> Iterator[TcpProxy]:
    proxy = TcpProxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def lake(proxy: TcpProxy, tmp_path: Path, request: pytest.FixtureRequest) -> Lake:
    properties = {
        "type": "sql",
        "uri": f"postgresql+psycopg://{USER}:{PASSWORD}@127.0.0.1:{proxy.port}/postgres",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    namespace = re.sub(r"\W+", "_", request.node.name.removeprefix("test_"))
    return make_lake(LakeConfig("storage_engine", properties, namespace=namespace))


@pytest.fixture
def archive(store_copy: Callable[[str], Path]) -> Callable[[Lake], Any]:
    root = str(store_copy("clean-stop"))
    return lambda lake: _archive(lake, root, "store-1")


def _archive(lake: Lake, root: str, store_id: str) -> Any:
    segments = [
        Segment("commitlog", int(path.name), FileFacts.of(path), SegmentState.SEALED)
        for path in sorted(Path(root, "commitlog").iterdir())[:2]
    ]
    jobs = segment_jobs(lake, segments, store_id=store_id, lineage=1, broker="rocketmq", store_root=root)
    return archive_all(lake, jobs)


def _archive_store(config: str, root: str, store_id: str) -> None:
    """What each process does."""
    _archive(open_lake(LakeConfig.from_json(config)), root, store_id)


def _assert_each_once(lake: Lake) -> None:
    history = receipt_history(lake, "store-1")
    assert [row.sequence for row in history] == [0, 1]
    check_chain(history)
    assert broken_receipts(lake, history, Depth.FILES) == {}
    assert len(list(lake.messages().scan().plan_files())) == 2


def test_a_commit_whose_answer_is_lost_is_found_in_the_table(
    lake: Lake, proxy: TcpProxy, archive: Callable[[Lake], Any]
) -> None:
    proxy.pattern_before, proxy.cut_after = b"UPDATE iceberg_tables", b"COMMIT"
    archive(lake)
    assert proxy.cuts == 1
    _assert_each_once(lake)


@pytest.mark.again
def test_a_connection_that_the_server_ends_within_a_commit_is_made_anew(
    lake: Lake, server: Postgres, archive: Callable[[Lake], Any]
) -> None:
    """Each table's commit is hit once."""
    ended: list[str] = []
    admin = psycopg.connect(server.uri.replace("+psycopg", ""), autocommit=True)

    def end_others(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE iceberg_tables") and len(ended) in (0, 2):
            others = "FROM pg_stat_activity WHERE usename = current_user AND pid <> pg_backend_pid()"
            admin.execute(f"SELECT pg_terminate_backend(pid, 5000) {others}")
        if statement.startswith("UPDATE iceberg_tables"):
            ended.append(statement)

    assert isinstance(lake.catalog, SqlCatalog)
    event.listen(lake.catalog.engine, "before_cursor_execute", end_others)
    with admin:
        archive(lake)
    assert len(ended) == 4
    _assert_each_once(lake)


@pytest.mark.parametrize(
    "request_part",
    [
        b"COMMIT",
        pytest.param(b"UPDATE iceberg_tables", marks=pytest.mark.again),
        pytest.param(b"SELECT", marks=pytest.mark.again),
    ],
)
def test_a_catalog_that_falls_silent_ends_in_an_error_and_run_again_it_finishes(
    request_part: bytes,
    lake: Lake,
    proxy: TcpProxy,
    archive: Callable[[Lake], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(catalog_connections, "ANSWER_SECONDS", 1)
        patched.setattr(catalog_connections, "_POSTGRES_DEFAULTS", {"connect_timeout": "2"})
        silent = open_lake(lake.config)
        proxy.silent_from = request_part
        began = time.monotonic()
        with pytest.raises((CommitStateUnknownError, LakeUnavailableError)):
            archive(silent)
        assert time.monotonic() - began < 120
    proxy.silent_from, proxy.is_silent = None, False
    archive(lake)
    _assert_each_once(lake)


@pytest.mark.again
def test_a_row_that_somebody_keeps_locked_is_an_error_and_nothing_is_in_doubt(
    lake: Lake, server: Postgres, archive: Callable[[Lake], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_connections, "ANSWER_SECONDS", 1)
    with psycopg.connect(server.uri.replace("+psycopg", "")) as other:
        other.execute("SELECT * FROM iceberg_tables FOR UPDATE")
        with pytest.raises(LakeUnavailableError, match="lock timeout"):
            archive(lake)
        other.rollback()
    archive(lake)
    _assert_each_once(lake)


@pytest.mark.again
def test_processes_that_archive_different_stores_have_each_segment_once(
    lake: Lake, store_copy: Callable[[str], Path]
) -> None:
    root = str(store_copy("clean-stop"))
    stores = [f"store-{number}" for number in range(2)]
    with pool_of_processes(len(stores)) as pool:
        pool.starmap(_archive_store, [(lake.config.to_json(), root, store_id) for store_id in stores])
    for store_id in stores:
        history = receipt_history(lake, store_id)
        assert [row.sequence for row in history] == [0, 1]
        check_chain(history)
        assert broken_receipts(lake, history, Depth.FILES) == {}
    assert len(list(lake.messages().scan().plan_files())) == 2 * len(stores)


def test_two_people_who_waive_one_plan_at_once_get_one_waiver(server: Postgres) -> None:
    """Both have looked and found none when the first of them writes."""
    journals = [Journal(server.uri) for _ in range(2)]
    barrier = threading.Barrier(2, timeout=300)

    def meet(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO storage_engine_waivers"):
            barrier.wait()

    for journal in journals:
        event.listen(journal._database._engine, "before_cursor_execute", meet)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(
            lambda journal, person: journal.waive("digest", person, "why"), journals, ("ann", "bob")
        )
    assert first == second == journals[0].find_waiver("digest")


@pytest.mark.again
def test_a_catalog_that_goes_down_between_the_tables_is_an_error_and_run_again_it_finishes(
    lake: Lake, server: Postgres, archive: Callable[[Lake], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = commit.prepare_receipts

    def kill_first(*arguments: Any) -> Any:
        server.kill()
        return prepare(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(commit, "prepare_receipts", kill_first)
        with pytest.raises(Exception, match="Run again when the lake answers"):
            archive(lake)
    with pytest.raises(LakeUnavailableError):
        lake.messages()
    server.start()
    assert receipt_history(lake, "store-1") == ()
    archive(lake)
    _assert_each_once(lake)


@pytest.mark.again
def test_a_password_that_changes_between_the_tables_is_an_error_and_run_again_it_finishes(
    lake: Lake, server: Postgres, archive: Callable[[Lake], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = commit.prepare_receipts
    admin = psycopg.connect(server.uri.replace("+psycopg", ""), autocommit=True)

    def change_first(*arguments: Any) -> Any:
        admin.execute(f"ALTER ROLE {USER} PASSWORD 'another'")
        return prepare(*arguments)

    try:
        with monkeypatch.context() as patched:
            patched.setattr(commit, "prepare_receipts", change_first)
            with pytest.raises(Exception, match="password authentication failed") as caught:
                archive(lake)
        assert PASSWORD not in str(caught.value)
    finally:
        admin.execute(f"ALTER ROLE {USER} PASSWORD '{PASSWORD}'")
        admin.close()
    archive(lake)
    _assert_each_once(lake)
