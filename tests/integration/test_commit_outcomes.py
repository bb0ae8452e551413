"""Commits to a catalog on a real PostgreSQL whose connection breaks or password changes in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake import commit
from storage_engine.lake.archive import archive_all, segment_jobs
from storage_engine.lake.catalog import Lake, open_lake
from storage_engine.lake.chain import check_chain
from storage_engine.lake.config import LakeConfig
from storage_engine.lake.receipts import broken_receipts, receipt_history
from storage_engine.model.store import FileFacts, Segment, SegmentState
from tests.integration.postgres import PASSWORD, USER, Postgres, postgres
from tests.integration.tcp_proxy import TcpProxy

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
    namespace = request.node.originalname.removeprefix("test_")
    return open_lake(LakeConfig("storage_engine", properties, namespace=namespace), create=True)


@pytest.fixture
def archive(store_copy: Callable[[str], Path]) -> Callable[[Lake], Any]:
    root = store_copy("clean-stop")
    segments = [
        Segment("commitlog", int(path.name), FileFacts.of(path), SegmentState.SEALED)
        for path in sorted((root / "commitlog").iterdir())[:2]
    ]

    def run(lake: Lake) -> Any:
        jobs = segment_jobs(
            lake, segments, store_id="store-1", lineage=1, broker="rocketmq", store_root=str(root)
        )
        return archive_all(lake, jobs)

    return run


def _assert_each_once(lake: Lake) -> None:
    history = receipt_history(lake, "store-1")
    assert [row.sequence for row in history] == [0, 1]
    check_chain(history)
    assert broken_receipts(lake, history, read_files=True) == {}
    assert len(list(lake.messages().scan().plan_files())) == 2


def test_a_commit_whose_answer_is_lost_is_found_in_the_table(
    lake: Lake, proxy: TcpProxy, archive: Callable[[Lake], Any]
) -> None:
    proxy.pattern_before, proxy.cut_after = b"UPDATE iceberg_tables", b"COMMIT"
    archive(lake)
    assert proxy.cuts == 1
    _assert_each_once(lake)


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
