"""A REST catalog that answers with file access of its own: what the protocol needs is followed, and no more.

Real servers behind a proxy that adds to their answers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.update import SetLocationUpdate

from storage_engine.exceptions import LakeUnavailableError, StorageEngineError
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.rest_catalog import PatientRestCatalog
from storage_engine.lake.gc.garbage import collect
from storage_engine.lake.move.describing import describe
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.verify.verify import verify
from storage_engine.model.report.validation import Status, VerifyLevel
from tests.integration.fault_proxy import FaultProxy, fault_proxy
from tests.integration.lake_cycle import archive_some, check_exactly_once
from tests.integration.object_store import ObjectStore
from tests.integration.rest_catalog import RestCatalog, rest_catalog
from tests.lake.catalog.test_own_tables import DOCUMENTED, LOADED, trap

pytestmark = pytest.mark.integration


class Answers:
    """What is added to a catalog's answers.

    :param given: properties and credentials.
    """

    def __init__(self) -> None:
        self.given: dict[str, str] = {}

    def rewrite(self, line: str, content: bytes) -> bytes:
        if not self.given or not content:
            return content
        try:
            answer: dict[str, Any] = json.loads(content)
        except ValueError:
            return content
        if "/v1/config" in line:
            answer["defaults"] = {**self.given, **answer.get("defaults", {})}
            answer["overrides"] = {**answer.get("overrides", {}), **self.given}
        elif "metadata" in answer:
            answer["config"] = {**answer.get("config", {}), **self.given}
            answer["storage-credentials"] = [{"prefix": "s3://", "config": self.given}]
        return json.dumps(answer).encode()


@pytest.fixture(scope="module")
def server(object_store: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    with rest_catalog(tmp_path_factory.mktemp("rest"), object_store) as catalog:
        yield catalog


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def proxy(server: RestCatalog, answers: Answers) -> Iterator[FaultProxy]:
    with fault_proxy(server.port, rewrite=answers.rewrite) as proxy:
        yield proxy


@pytest.fixture
def config(proxy: FaultProxy, object_store: ObjectStore, request: pytest.FixtureRequest) -> LakeConfig:
    properties = {"type": "rest", "uri": f"http://127.0.0.1:{proxy.port}", **object_store.properties()}
    # The catalog says where its tables are.
    del properties["warehouse"]
    namespace = request.node.originalname.removeprefix("test_")
    return LakeConfig("storage_engine", properties, namespace=namespace)


def check(config: LakeConfig, count: int) -> None:
    lake = open_lake(config)
    assert len(receipts(lake, "s")) == count
    (report,) = verify(lake, VerifyLevel.BYTES)
    assert (report.overall, report.findings) == (Status.OK, ())
    check_exactly_once(lake)


@pytest.mark.again
def test_what_a_catalog_answers_changes_neither_access_nor_host(
    config: LakeConfig,
    answers: Answers,
    proxy: FaultProxy,
    object_store: ObjectStore,
    store_copy: Callable[[str], Path],
) -> None:
    root = store_copy("clean-stop")
    make_lake(config)
    archive_some(config, root, 0, 1)
    before = object_store.names()
    with trap() as (host, connected):
        answers.given = {
            key: value.replace("{trap}", host).replace("{away}", "/nowhere")
            for key, value in DOCUMENTED.items()
        } | {
            "oauth2-server-uri": f"http://{host}/token",
            "header.X-Theirs": "1",
            "snapshot-loading-mode": "refs",
        }
        LOADED.clear()
        archive_some(config, root, 1, 2)
        check(config, 2)
        assert connected() == 0
        ignored = dict(describe(config).ignored)[""]
    assert LOADED == []
    assert {"py-io-impl", "s3.endpoint", "uri", "oauth2-server-uri", "header.X-Theirs"} <= set(ignored)
    (place,) = {name.rpartition("/segments/")[0] for name in before if "/segments/" in name}
    assert all(name.startswith(place) for name in object_store.names() - before)


def test_what_the_protocol_needs_is_followed(config: LakeConfig, answers: Answers, proxy: FaultProxy) -> None:
    make_lake(config)
    answers.given = {"prefix": "theirs", "s3.access-key-id": "theirs"}
    catalog = PatientRestCatalog("x", **config.file_io_properties)
    assert (catalog.properties["prefix"], catalog.uri) == ("theirs", config.properties["uri"])
    assert catalog.properties["s3.access-key-id"] == config.properties["s3.access-key-id"]
    assert catalog.ignored == {"s3.access-key-id"}


@pytest.mark.again
def test_properties_of_tables_change_neither_access_nor_host(
    config: LakeConfig, object_store: ObjectStore, store_copy: Callable[[str], Path]
) -> None:
    root = store_copy("clean-stop")
    lake = make_lake(config)
    archive_some(config, root, 0, 1)
    with trap() as (host, connected):
        values = {key: value.replace("{trap}", host) for key, value in DOCUMENTED.items()}
        for table in lake.tables():
            with table.refresh().transaction() as transaction:
                transaction.set_properties(
                    {key: value for key, value in values.items() if "{away}" not in value}
                )
        LOADED.clear()
        archive_some(config, root, 1, 2)
        check(config, 2)
        assert connected() == 0
    assert LOADED == []
    assert "py-io-impl" in dict(describe(config).ignored)["segments"]


@pytest.mark.again
def test_metadata_that_the_server_was_told_to_put_elsewhere_is_read_there(
    config: LakeConfig, object_store: ObjectStore, store_copy: Callable[[str], Path]
) -> None:
    root = store_copy("clean-stop")
    lake = make_lake(config)
    archive_some(config, root, 0, 1)
    for table in lake.tables():
        with table.refresh().transaction() as transaction:
            transaction.set_properties({"write.metadata.path": "s3://lake/elsewhere/of-tables"})
    check(config, 1)
    archive_some(config, root, 1, 2)
    check(config, 2)
    info = describe(config)
    assert (info.refused, len(info.tables), {table.fault for table in info.tables}) == ("", 3, {""})
    with pytest.raises(LakeUnavailableError, match="remove the table's property write"):
        collect(open_lake(config), grace_ms=0, delete=False)
    theirs = {name for name in object_store.names() if name.startswith("elsewhere/of-tables")}
    assert theirs
    assert {name.rpartition(".")[2] for name in theirs} == {"json"}


@pytest.mark.again
def test_a_table_that_was_given_a_location_goes_on_where_its_mark_is(
    config: LakeConfig, object_store: ObjectStore, store_copy: Callable[[str], Path]
) -> None:
    root = store_copy("clean-stop")
    lake = make_lake(config)
    archive_some(config, root, 0, 1)
    for table in lake.tables():
        transaction = table.refresh().transaction()
        transaction._apply((SetLocationUpdate(location=f"s3://lake/moved/{table.name()[-1]}"),))
        transaction.commit_transaction()
    check(config, 1)
    archive_some(config, root, 1, 2)
    check(config, 2)
    theirs = {name for name in object_store.names() if name.startswith("moved/")}
    assert {name.rpartition(".")[2] for name in theirs} == {"json"}


def test_an_answer_that_is_none_is_one_error_of_ours(config: LakeConfig, proxy: FaultProxy) -> None:
    make_lake(config)
    parts = ("/v1/config", "/tables/segments", "/tables/messages")
    for answer in (b"", b"{}", b"<html>", b'{"defaults": null, "overrides": null}', b"[1]", b"\xff"):
        for part in parts:

            def rewrite(line: str, content: bytes, part: str = part, answer: bytes = answer) -> bytes:
                return answer if part in line else content

            proxy.rewrite = rewrite
            if (part, answer) == (parts[0], b"{}"):
                # It says nothing, and well.
                open_lake(config)
                continue
            with pytest.raises(StorageEngineError):
                open_lake(config)


def test_an_answer_that_leads_to_another_host_is_not_followed() -> None:
    class Redirect(BaseHTTPRequestHandler):
        to = ""

        def do_GET(self) -> None:
            self.send_response(307)
            self.send_header("Location", self.to)
            self.end_headers()

    with trap() as (host, connected), ThreadingHTTPServer(("127.0.0.1", 0), Redirect) as server:
        Redirect.to = f"http://{host.replace('127.0.0.1', 'localhost')}/v1/config"
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        config = LakeConfig("x", {"type": "rest", "uri": f"http://127.0.0.1:{server.server_address[1]}"})
        try:
            with pytest.raises(LakeUnavailableError, match="name that host as the lake's uri"):
                open_lake(config)
        finally:
            server.shutdown()
        assert connected() == 0
