"""Lakes of one bucket: none is made inside another or around one, and one that lies inside proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError, LakeIdentityError, StorageEngineError
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.copying import copy_lake
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.move.moving import relocate
from storage_engine.lake.restore.export import Selection, export_messages
from storage_engine.lake.restore.export_format import ExportFormat
from storage_engine.lake.verify.verify import verify
from storage_engine.model.report.validation import Status, VerifyLevel
from tests.integration.lake_cycle import archive_some
from tests.integration.object_store import BUCKET, ObjectStore
from tests.services.restoring import restore

pytestmark = pytest.mark.integration


def lake_at(store: ObjectStore, work: Path, warehouse: str) -> LakeConfig:
    work.mkdir(parents=True, exist_ok=True)
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{work}/catalog.db",
        "warehouse": f"s3://{BUCKET}/{warehouse}",
    }
    return LakeConfig("storage_engine", {**store.properties(), **catalog})


@pytest.mark.again
def test_no_lake_is_made_inside_another_one_of_a_bucket_or_around_it(
    object_store: ObjectStore, tmp_path: Path
) -> None:
    outer = lake_at(object_store, tmp_path / "outer", "made/outer")
    lake = make_lake(outer)
    before = object_store.names()
    for inside in ("made/outer/inner", "made/outer/storage_engine/messages/inner", "made/outer/a/b"):
        inner = lake_at(object_store, tmp_path / "inner", inside)
        with pytest.raises(LakeIdentityError, match=r"found it inside s3://lake/made/outer"):
            make_lake(inner)
        with pytest.raises(StorageEngineError, match=r"apart from the lake|found it inside"):
            copy_lake(lake, inner)
    around = lake_at(object_store, tmp_path / "around", "made")
    with pytest.raises(BadInputError, match=r"found the lake s3://lake/made/outer inside it"):
        make_lake(around)
    assert object_store.names() == before
    assert make_lake(lake_at(object_store, tmp_path / "beside", "made/beside"))


@pytest.mark.again
def test_a_lake_inside_another_one_of_a_bucket_is_read_exported_and_copied_and_takes_nothing(
    object_store: ObjectStore, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    root = store_copy("clean-stop")
    make_lake(lake_at(object_store, tmp_path / "outer", "outer"))
    own = lake_at(object_store, tmp_path / "own", "own")
    make_lake(own)
    archive_some(own, root, 0, 1)
    bucket = object_store.objects / BUCKET
    (bucket / "own").rename(bucket / "outer" / "own")
    config = replace(own, properties={**own.properties, "warehouse": f"s3://{BUCKET}/outer/own"})
    relocate(config)
    lake = open_lake(config)
    assert {one.status for found in verify(lake, VerifyLevel.BYTES) for one in found.ranges} == {Status.OK}
    assert restore(lake, "s", tmp_path / "restored")
    assert export_messages(lake, tmp_path / "rows", Selection(), file_format=ExportFormat.JSON_LINES)
    assert (tmp_path / "rows").stat().st_size > 0
    assert copy_lake(lake, lake_at(object_store, tmp_path / "copy", "copy"))
    with pytest.raises(LakeIdentityError, match=r"inside the lake s3://lake/outer, which proves nothing"):
        archive_some(config, root, 1, 2)
    (bucket / "outer" / "own").rename(bucket / "moved")
    moved = replace(own, properties={**own.properties, "warehouse": f"s3://{BUCKET}/moved"})
    relocate(moved)
    archive_some(moved, root, 1, 2)
