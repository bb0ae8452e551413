"""No lake is made inside a store or another lake, by whatever name; one that lies there proves nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError, LakeIdentityError
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog import nesting
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.nesting import place_around
from storage_engine.lake.move.copying import copy_lake
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.move.moving import relocate
from tests.lake.conftest import MakeJobs
from tests.lake.other_lakes import other_lake

ROOT = Path(__file__).parents[3]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a stopped broker's store, with a directory of its owner's beside the broker's."""
    root = tmp_path / "data" / "store"
    for name in ("commitlog", "consumequeue", "config", "backup"):
        (root / name).mkdir(parents=True)
    return root


def refuse(config: LakeConfig, around: Path) -> None:
    with pytest.raises(BadInputError, match=rf"found one inside the (store|lake) {around}: .*Nothing was"):
        make_lake(config)


def test_no_lake_is_made_below_a_stores_root(store: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    refuse(LakeConfig.local(store / "lake"), store)
    refuse(LakeConfig.local(store / "backup" / "far" / "below"), store)
    link = tmp_path / "link"
    link.symlink_to(store / "backup")
    refuse(LakeConfig.local(link / "lake"), store)
    uri = f"sqlite:///{tmp_path}/catalog.db"
    for warehouse in (f"file://{store}/backup/w", f"{store}/backup/../backup/w", f"file:{link}/w"):
        refuse(LakeConfig("l", {"uri": uri, "warehouse": warehouse}), store)
    refuse(LakeConfig("l", {"uri": f"sqlite:///{link}/c.db", "warehouse": f"{tmp_path}/w"}), store)
    link.unlink()
    assert sorted(tmp_path.rglob("*")) == before
    assert make_lake(LakeConfig.local(tmp_path / "data" / "lake"))


def test_no_lake_is_made_inside_another_lake(lake: Lake, tmp_path: Path) -> None:
    own = tmp_path / "lake"
    before = sorted(tmp_path.rglob("*"))
    for place in (own / "inner", own / "warehouse" / "inner", own / "warehouse" / "storage_engine" / "inner"):
        with pytest.raises(BadInputError, match=rf"inside the lake {own}"):
            make_lake(LakeConfig.local(place))
        with pytest.raises(BadInputError, match=r"apart from the lake|inside the lake"):
            copy_lake(lake, LakeConfig.local(place))
    (described := tmp_path / "described").mkdir()
    (described / "lake.json").write_text('{"uri": "sqlite:////x/c.db", "warehouse": "file:///x/w"}')
    refuse(LakeConfig.local(described / "inner"), described)
    apart = other_lake(tmp_path / "d", tmp_path / "elsewhere" / "c.db", tmp_path / "warehouse")
    make_lake(apart)
    refuse(LakeConfig.local(tmp_path / "warehouse" / "inner"), tmp_path / "warehouse")
    for path in (described, tmp_path / "d", tmp_path / "elsewhere", tmp_path / "warehouse"):
        shutil.rmtree(path)
    assert sorted(tmp_path.rglob("*")) == before


def test_no_lake_is_made_around_another_one(lake: Lake, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInputError, match=rf"found the lake file://{tmp_path}/lake.* inside it"):
        make_lake(LakeConfig.local(tmp_path))
    apart = other_lake(tmp_path / "d", tmp_path / "d" / "c.db", tmp_path)
    with pytest.raises(BadInputError, match=rf"found the lake file://{tmp_path}/lake.* inside it"):
        make_lake(apart)
    shutil.rmtree(tmp_path / "d")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_lake_beside_another_and_one_that_is_made_again_are_taken(tmp_path: Path) -> None:
    for _ in range(2):
        for name in ("one", "two"):
            make_lake(LakeConfig.local(tmp_path / name))
    (tmp_path / "one" / "catalog.db").unlink()
    assert place_around(LakeConfig.local(tmp_path / "one")) == ""


def test_a_lake_that_lies_inside_a_store_is_read_and_moved_and_takes_nothing(
    filled: Callable[[int], Lake],
    segments: list[Path],
    make_jobs: MakeJobs,
    store: Path,
    tmp_path: Path,
) -> None:
    filled(1)
    nested = store / "backup" / "lake"
    (tmp_path / "lake").rename(nested)
    config = LakeConfig.local(nested)
    relocate(config)
    lake = open_lake(config)
    assert copy_lake(lake, LakeConfig.local(tmp_path / "copy"))
    with pytest.raises(LakeIdentityError, match=rf"inside the store {store}, which proves nothing"):
        archive_all(lake, make_jobs(lake, segments[1]))
    nested.rename(tmp_path / "moved")
    relocate(LakeConfig.local(tmp_path / "moved"))
    lake = open_lake(LakeConfig.local(tmp_path / "moved"))
    archive_all(lake, make_jobs(lake, segments[1]))


def test_a_stores_root_counts_by_whatever_name(tmp_path: Path) -> None:
    root = tmp_path / "store"
    (root / "lake").mkdir(parents=True)
    (tmp_path / "link").symlink_to(root)
    config = LakeConfig.local(root / "lake")
    assert place_around(config) == ""
    for name in (root, tmp_path / "link"):
        assert place_around(config, name) == f"the store {root}"
    assert place_around(config, tmp_path / "other") == ""


def test_a_bind_mount_of_a_directory_inside_a_store_is_inside_it(store: Path, tmp_path: Path) -> None:
    (mounted := tmp_path / "with space").mkdir()
    script = (
        "from storage_engine.lake.catalog.config import LakeConfig\n"
        "from storage_engine.lake.catalog.nesting import place_around\n"
        f"print(place_around(LakeConfig.local({str(mounted / 'lake')!r})))\n"
    )
    command = f"mount --bind '{store}/backup' '{mounted}' && exec '{sys.executable}' -c \"$0\""
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", command, script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no bind mount may be made here: {done.stderr.strip()}")
    assert done.stdout.strip() == f"the store {store}", done.stderr


def test_mounts_that_cannot_be_read_are_no_reason_to_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nesting, "_MOUNTS", tmp_path / "none")
    assert place_around(LakeConfig.local(tmp_path / "lake")) == ""
