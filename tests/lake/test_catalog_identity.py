"""Which catalog is which, and where its tables may lie."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog

from storage_engine.exceptions import LakeIdentityError
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import (
    catalog_identity,
    check_below_warehouse,
    is_same_catalog,
    mark_location,
    read_mark,
)
from storage_engine.lake.durable_io import local_path

POSTGRES = "postgresql:7301/5"


def rest_identity(uri: str) -> str:
    config = LakeConfig("storage_engine", {"type": "rest", "uri": uri, "warehouse": "w@x", "prefix": "p"})
    # Its address alone counts: no server is asked.
    return catalog_identity(config, RestCatalog.__new__(RestCatalog))


@pytest.mark.parametrize(
    "uri", ["http://user:S3C@RET@host:8181/api/", "http://user@host:8181/api", "http://host:8181/api"]
)
def test_a_rest_catalogs_identity_has_no_credentials(uri: str) -> None:
    assert rest_identity(uri) == "rest:http://host:8181/api w@x p storage_engine"


def test_a_mark_with_credentials_that_an_older_version_wrote_names_the_same_catalog(lake: Lake) -> None:
    table = lake.messages()
    path = local_path(mark_location(table.location()))
    assert path is not None
    written = json.loads(path.read_text())
    identity = rest_identity("http://host:8181/api")
    path.write_text(json.dumps({**written, "catalog": identity.replace("://", "://user:S3CRET@")}))
    mark = read_mark(table)
    assert mark is not None
    assert mark.catalog == identity


@pytest.mark.parametrize(
    ("written", "is_same"),
    [
        (f"{POSTGRES}/schema=public c n", True),
        # As older versions wrote it: of whatever schema came first.
        (f"{POSTGRES}/public c n", True),
        (f"{POSTGRES}/some one c n", True),
        (f"{POSTGRES}/schema=staging c n", False),
        ("postgresql:7301/6/public c n", False),
        ("postgresql:7302/5/public c n", False),
        (f"{POSTGRES}/public c other", False),
        (f"{POSTGRES}/public other n", False),
        ("sqlite:/catalog.db c n", False),
    ],
)
def test_a_postgresql_catalog_is_told_from_others(written: str, is_same: bool) -> None:
    assert is_same_catalog(written, f"{POSTGRES}/schema=public c n") is is_same


@pytest.mark.parametrize("scheme", ["", "file:", "file://", "FILE:"])
def test_a_table_outside_its_warehouse_is_refused_however_that_is_written(
    lake: Lake, tmp_path: Path, scheme: str
) -> None:
    other = lake.config.with_properties({"warehouse": f"{scheme}{tmp_path}/elsewhere"})
    with pytest.raises(LakeIdentityError, match="a plain copy"):
        open_lake(other)
    same = lake.config.with_properties({"warehouse": f"{scheme}{tmp_path}/lake/warehouse"})
    assert open_lake(same).messages().location() == lake.messages().location()


def test_a_warehouse_that_is_a_name_says_nothing_of_the_place() -> None:
    config = LakeConfig("storage_engine", {"type": "rest", "uri": "http://host", "warehouse": "files"})
    check_below_warehouse(config, "messages", "s3://bucket/messages")
