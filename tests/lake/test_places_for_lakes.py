"""A lake is made where there is none, never in the place of another, and whatever an attempt left."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

import pytest
from pyiceberg.table import Table

from storage_engine.exceptions import LakeIdentityError, LakeMissingError, LakeUnavailableError
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import Lake, connect, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import mark_location
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.move import making
from storage_engine.lake.move.copying import copy_lake
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.move.moving import relocate
from storage_engine.lake.move.rebuilding import rebuild
from storage_engine.lake.soundness.receipts import receipt_history
from tests.lake.conftest import Fingerprint, MakeJobs


def metadata_of(table: Table) -> Path:
    path = local_path(table.metadata_location)
    assert path is not None
    return path


def warehouse_of(lake: Lake) -> Path:
    path = local_path(lake.config.properties["warehouse"])
    assert path is not None
    return path


def lose_catalog(lake: Lake) -> None:
    (warehouse_of(lake).parent / "catalog.db").unlink()


class TestWhereTheCatalogIsLost:
    def test_a_refusal_creates_nothing(
        self,
        lake: Lake,
        segments: list[Path],
        make_jobs: MakeJobs,
        tmp_path: Path,
        fingerprint: Fingerprint,
    ) -> None:
        archive_all(lake, make_jobs(lake, segments[0]))
        lose_catalog(lake)
        before = fingerprint(tmp_path)
        with pytest.raises(LakeIdentityError, match="expected an empty place"):
            make_lake(lake.config)
        assert fingerprint(tmp_path) == before

    def test_a_claim_of_another_catalog_leaves_no_catalog_file(
        self, tmp_path: Path, fingerprint: Fingerprint
    ) -> None:
        config = LakeConfig.local(tmp_path / "lake")
        place = tmp_path / "lake" / "warehouse" / "storage_engine" / "messages"
        place.mkdir(parents=True)
        (place / ".storage-engine-claim-1.json").write_text("rest:http://user:S3CRET@there w p n")
        before = fingerprint(tmp_path)
        with pytest.raises(LakeIdentityError, match="found the claim of rest:http://there w p n") as caught:
            make_lake(config)
        assert "S3CRET" not in str(caught.value)
        assert fingerprint(tmp_path) == before


class TestWhereSomethingElseHasTheCatalogsName:
    """A link to a disk that isn't mounted, or a directory: neither a missing catalog nor a lost one."""

    @pytest.fixture(params=["a link that leads nowhere", "a directory", "a pipe"])
    def case(self, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
        file = tmp_path / "lake" / "catalog.db"
        file.parent.mkdir()
        if request.param == "a directory":
            file.mkdir()
        elif request.param == "a pipe":
            os.mkfifo(file)
        else:
            file.symlink_to(tmp_path / "unmounted/catalog.db")
        return file

    def test_every_act_says_what_to_do_and_changes_nothing(self, case: Path, tmp_path: Path) -> None:
        lake = make_lake(LakeConfig.local(tmp_path / "source"))
        config = LakeConfig.local(case.parent)
        before = sorted(tmp_path.rglob("*"))
        for act in (
            lambda: open_lake(config),
            lambda: make_lake(config),
            lambda: rebuild(config, {}),
            lambda: relocate(config),
            lambda: copy_lake(lake, config),
        ):
            with pytest.raises(LakeUnavailableError, match="storage-engine lake rebuild") as caught:
                act()
            assert not isinstance(caught.value, LakeMissingError)
        assert sorted(tmp_path.rglob("*")) == before

    def test_what_is_said_helps(
        self, segments: list[Path], make_jobs: MakeJobs, case: Path, tmp_path: Path
    ) -> None:
        """Moved away, as the message says, and rebuilt."""
        case.rename(tmp_path / "moved away")
        case.parent.rmdir()
        lake = make_lake(LakeConfig.local(case.parent))
        archive_all(lake, make_jobs(lake, segments[0]))
        case.unlink()
        (tmp_path / "moved away").rename(case)
        with pytest.raises(LakeUnavailableError, match=r"Move it away|remove the link"):
            rebuild(lake.config, {})
        case.rename(tmp_path / "moved away")
        rebuild(lake.config, {})
        assert len(receipt_history(open_lake(lake.config), "store-1")) == 1


class TestWhatAKilledAttemptLeft:
    @pytest.mark.parametrize("length", [0, 1, 700])
    @pytest.mark.parametrize("is_compressed", [False, True])
    def test_a_torn_first_metadata_file_is_no_lake(
        self, lake: Lake, length: int, is_compressed: bool
    ) -> None:
        path = metadata_of(lake.messages())
        whole = path.read_bytes()
        lose_catalog(lake)
        path.unlink()
        if is_compressed:
            path = path.with_name(path.name.replace(".metadata", ".gz.metadata"))
            whole = gzip.compress(whole)
        path.write_bytes(whole[:length])
        assert make_lake(lake.config).messages().current_snapshot() is None

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("00001-x.metadata.json", b'{"format-version": 2, "tab'),
            ("00000-x.metadata.json", b"\xff\xfe nothing"),
            ("00000-x.metadata.json", b'{"format-version": 2}'),
            ("00000-x.metadata.json", b'{"snapshots": [{"snapshot-id": 7, "manif'),
            ("00000-x.gz.metadata.json", b"no gzip at all"),
        ],
    )
    def test_metadata_that_can_not_be_read_otherwise_is_one_clear_error(
        self, name: str, content: bytes, tmp_path: Path
    ) -> None:
        config = LakeConfig.local(tmp_path / "lake")
        directory = tmp_path / "lake" / "warehouse" / "storage_engine" / "segments" / "metadata"
        directory.mkdir(parents=True)
        (directory / name).write_bytes(content)
        with pytest.raises(LakeUnavailableError, match=rf"{name}: can't read the table's metadata"):
            make_lake(config)
        assert not (tmp_path / "lake" / "catalog.db").exists()

    def test_compressed_metadata_of_a_table_with_rows_is_a_lake(
        self, lake: Lake, segments: list[Path], make_jobs: MakeJobs
    ) -> None:
        archive_all(lake, make_jobs(lake, segments[0]))
        lose_catalog(lake)
        root = warehouse_of(lake)
        for path in list(root.rglob("*.metadata.json")):
            packed = path.with_name(path.name.replace(".metadata", ".gz.metadata"))
            packed.write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
        for data in root.glob("*/*/data"):
            shutil.rmtree(data)
        with pytest.raises(LakeIdentityError, match="metadata of a table with rows"):
            make_lake(lake.config)


class TestWhereOnlyTheCatalogKnowsThePlace:
    """As with a REST catalog: here the namespace says where tables lie, and no warehouse is named."""

    @pytest.fixture
    def config(self, tmp_path: Path) -> LakeConfig:
        place = tmp_path / "place"
        (tmp_path / "catalog.db").touch()
        config = LakeConfig("storage_engine", {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"})
        catalog = connect(config).catalog
        catalog.create_tables()
        catalog.create_namespace(config.namespace, {"location": f"file://{place}"})
        return config

    @pytest.fixture
    def foreign(self, tmp_path: Path) -> Path:
        """A data file of another lake, where the new one's segments would lie."""
        path = tmp_path / "place" / "segments" / "data" / "other.parquet"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"rows")
        return path

    def test_a_table_made_over_another_lake_is_dropped(self, config: LakeConfig, foreign: Path) -> None:
        with pytest.raises(LakeIdentityError, match=foreign.name):
            make_lake(config)
        assert connect(config).catalog.list_tables(config.namespace) == []
        assert foreign.read_bytes() == b"rows"

    def test_a_table_that_was_there_is_never_dropped(self, config: LakeConfig, foreign: Path) -> None:
        hidden = foreign.rename(foreign.parents[3] / "hidden")
        made = make_lake(config).segments()
        connect(config).catalog.drop_table((config.namespace, "messages"))
        hidden.rename(foreign)
        with pytest.raises(LakeIdentityError, match=foreign.name):
            make_lake(config)
        kept = connect(config).catalog.load_table((config.namespace, "segments"))
        assert kept.metadata.table_uuid == made.metadata.table_uuid

    @pytest.mark.slow
    def test_the_mark_of_another_catalog_at_a_table_with_rows_is_left_as_it_is(
        self, config: LakeConfig, segments: list[Path], make_jobs: MakeJobs
    ) -> None:
        lake = make_lake(config)
        archive_all(lake, make_jobs(lake, segments[0]))
        table = lake.segments()
        lake.catalog.drop_table((config.namespace, "messages"))
        path = local_path(mark_location(table.location()))
        assert path is not None
        shutil.rmtree(path.parents[1] / "messages")
        path.write_text(path.read_text().replace("catalog.db", "other.db"))
        before = path.read_bytes()
        with pytest.raises(LakeIdentityError, match=r"other\.db"):
            make_lake(config)
        assert path.read_bytes() == before

    def test_a_new_table_that_another_process_wrote_to_is_not_dropped(
        self, config: LakeConfig, foreign: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        check_empty = making.check_empty

        def written_meanwhile(config: LakeConfig, location: str, catalog_id: str | None) -> None:
            table = connect(config).catalog.load_table((config.namespace, "segments"))
            table.append(table.schema().as_arrow().empty_table())
            check_empty(config, location, catalog_id)

        monkeypatch.setattr(making, "check_empty", written_meanwhile)
        with pytest.raises(LakeIdentityError):
            make_lake(config)
        table = connect(config).catalog.load_table((config.namespace, "segments"))
        assert table.current_snapshot() is not None


def test_a_warehouse_with_one_slash_is_made_and_opened(tmp_path: Path) -> None:
    config = LakeConfig.local(tmp_path / "lake").with_properties({"warehouse": f"file:{tmp_path}/wh"})
    make_lake(config)
    assert open_lake(config).messages().location().startswith(f"file:{tmp_path}/wh/")
