"""A lake that isn't the one it should be: each command says what it is, and changes nothing anywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.rounds import again_but

pytestmark = [pytest.mark.usefixtures("plainly"), pytest.mark.slow]

MIB = 1 << 20
DAYS_AGO = time.time() - 3 * 86_400

PLAIN_COPY = "this is a plain copy of the lake there, or the lake was moved"
COPIED_CATALOG = "this catalog is a copy, or the catalog was moved"
OLDER = "the catalog was put back from an older copy"
RELOCATE = "storage-engine lake relocate"
REBUILD = "storage-engine lake rebuild"


@dataclass(frozen=True)
class Case:
    """A store with sealed segments, and the lake that has the first of them."""

    cli: Callable[..., Any]
    files: Callable[..., dict[str, tuple[int, int, str]]]
    store: Path
    lake: Path

    @property
    def catalog(self) -> Path:
        return self.lake / "catalog.db"

    def archive(self) -> None:
        """Archive one more segment."""
        done = self.cli("archive", self.store, "--lake", self.lake, "--budget", "1MiB")
        assert done.exit_code == 0, done.err

    def clean(self, *words: object) -> Any:
        """Delete one more segment."""
        return self.cli("clean", self.store, "--lake", self.lake, "--manual", "--max-segments", 1, *words)

    def check_refused(self, lake: Path, *reasons: str) -> None:
        """Whatever is asked of this lake is refused for these reasons.

        What is old enough for ``gc`` is there, and a segment that may go. The journal and the reports below
        a lake's directory may say that it was asked.
        """
        age(self.lake)
        age(lake)
        before = self.state(lake)
        out = self.lake.parent / "out"
        for words in (
            ("archive", self.store),
            ("clean", self.store, "--manual"),
            ("verify",),
            ("verify", self.store),
            ("restore", "--to", out / "store"),
            ("export", "--to", out / "rows", "--topic", "orders"),
            ("gc", "--delete"),
            ("gc",),
            ("init-lake",),
        ):
            refused = self.cli(*words, "--lake", lake)
            said = refused.err + refused.out
            assert refused.exit_code == 1, (words, said)
            assert "Traceback" not in said
            for reason in (*reasons, "Nothing was changed."):
                assert reason in said, (words, reason, said)
            assert self.state(lake) == before, words
            assert not out.exists()
        for words in (("validate", self.store), ("inspect", self.store)):
            told = self.cli(*words, "--lake", lake)
            assert reasons[0] in told.out + told.err, words
            assert self.state(lake) == before, words

    def state(self, other: Path) -> dict[str, tuple[int, int, str]]:
        """Everything that may not change: the store, and both lakes' catalogs and warehouses."""
        names = ("warehouse", "catalog.db", "lake.json")
        paths = [path / name for path in (self.lake, other) for name in names]
        return self.files(self.store, self.lake.parent / "other.db", *paths)


def age(lake: Path) -> None:
    """Make everything in a lake older than ``gc`` waits."""
    for path in (lake / "warehouse").rglob("*"):
        if path.is_file():
            os.utime(path, (DAYS_AGO, DAYS_AGO))


@pytest.fixture
def case(cli: Any, files: Any, store_copy: Any, expire: Any, lake: Path) -> Case:
    store = store_copy("clean-stop")
    expire(store)
    made = Case(cli, files, store, lake)
    made.archive()
    return made


@pytest.mark.again
def test_a_catalog_of_the_run_before(case: Case, tmp_path: Path) -> None:
    """Whose segments nobody else has any more."""
    assert case.clean().exit_code == 0
    backup = tmp_path / "backup.db"
    shutil.copyfile(case.catalog, backup)
    assert case.clean().exit_code == 0
    shutil.copyfile(case.catalog, tmp_path / "newest.db")
    shutil.copyfile(backup, case.catalog)
    case.check_refused(case.lake, OLDER, REBUILD)
    shutil.copyfile(tmp_path / "newest.db", case.catalog)
    assert case.cli("verify", "--lake", case.lake, "--level", "bytes").exit_code == 0


def test_a_copied_lake(case: Case, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", case.lake, copy], check=True)
    case.check_refused(copy, PLAIN_COPY, RELOCATE)
    case.archive()
    case.check_refused(copy, PLAIN_COPY, RELOCATE)
    assert case.cli("verify", "--lake", case.lake, "--level", "bytes").exit_code == 0


@pytest.mark.again
def test_a_copied_catalog(case: Case, tmp_path: Path) -> None:
    staging = staging_of(case, tmp_path)
    shutil.copyfile(case.catalog, tmp_path / "other.db")
    case.check_refused(staging, COPIED_CATALOG, RELOCATE)
    case.archive()
    case.check_refused(staging, COPIED_CATALOG, RELOCATE)


@pytest.mark.again
def test_a_mark_that_was_removed_or_is_damaged(case: Case) -> None:
    marks = case.lake.rglob(".storage-engine-mark.json")
    removed, damaged = (path for path in marks if path.parent.name != "deletions")
    content = removed.read_bytes()
    removed.unlink()
    case.check_refused(case.lake, "expected the mark of lake", RELOCATE)
    removed.write_bytes(content)
    damaged.write_bytes(damaged.read_bytes()[:-20])
    case.check_refused(case.lake, "expected a mark of storage-engine as JSON", RELOCATE)


def test_staging_that_was_given_the_warehouse_of_production(case: Case, tmp_path: Path) -> None:
    staging = staging_of(case, tmp_path)
    before = case.state(staging)
    refused = case.cli("init-lake", "--lake", staging)
    assert refused.exit_code == 1
    assert "expected an empty place for a new lake" in refused.err
    assert "two catalogs must not share one" in refused.err
    for words in (("archive", case.store), ("clean", case.store, "--manual"), ("gc", "--delete")):
        assert case.cli(*words, "--lake", staging).exit_code != 0
    assert {**case.state(staging), **before} == case.state(staging)
    assert case.cli("verify", "--lake", case.lake, "--level", "bytes").exit_code == 0


@pytest.mark.parametrize("lost", again_but(["the catalog", "catalog and journal"], "catalog and journal"))
def test_a_warehouse_whose_catalog_is_lost_gets_no_new_lake(case: Case, lost: str) -> None:
    case.catalog.unlink()
    if lost != "the catalog":
        for path in case.lake.glob("journal.db*"):
            path.unlink()
    age(case.lake)
    before = case.files(case.store, case.lake / "warehouse")
    for words in (
        ("archive", case.store),
        ("clean", case.store, "--manual"),
        ("gc", "--delete"),
        ("verify",),
    ):
        refused = case.cli(*words, "--lake", case.lake)
        assert refused.exit_code != 0
        assert f"storage-engine init-lake --lake {case.lake}" in refused.err + refused.out
        assert not case.catalog.exists()
    refused = case.cli("init-lake", "--lake", case.lake)
    assert refused.exit_code == 1
    assert "expected an empty place for a new lake" in refused.err
    assert REBUILD in refused.err
    assert case.files(case.store, case.lake / "warehouse") == before


def staging_of(case: Case, tmp_path: Path) -> Path:
    """A second catalog, not made yet, with the first one's warehouse."""
    staging = tmp_path / "staging"
    staging.mkdir()
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path / 'other.db'}?timeout=60",
        "warehouse": f"file://{case.lake / 'warehouse'}",
    }
    (staging / "lake.json").write_text(json.dumps(properties))
    return staging


class TestSecondLake:
    @pytest.mark.again
    def test_a_copy_is_no_second_lake(self, case: Case, tmp_path: Path) -> None:
        copy = tmp_path / "copy"
        subprocess.run(["cp", "-a", case.lake, copy], check=True)
        before, segments = case.files(copy), len(list((case.store / "commitlog").iterdir()))
        done = case.clean("--second-lake", copy)
        assert done.exit_code == 1
        assert len(list((case.store / "commitlog").iterdir())) == segments - 1
        assert (done.err + done.out).count(PLAIN_COPY) == 1
        assert case.files(copy) == before

    def test_a_copy_takes_nothing_over_and_proves_nothing(self, case: Case, tmp_path: Path) -> None:
        copy = tmp_path / "copy"
        subprocess.run(["cp", "-a", case.lake, copy], check=True)
        case.catalog.write_bytes(b"what a broken disk reads" * 100)
        before = case.files(case.store, copy, case.lake / "warehouse")
        refused = case.clean("--second-lake", copy)
        assert refused.exit_code == 1
        assert "file is not a database" in refused.err + refused.out
        assert PLAIN_COPY in refused.err + refused.out
        assert case.files(case.store, copy, case.lake / "warehouse") == before

    def test_the_lake_itself_is_no_second_lake(self, case: Case, tmp_path: Path) -> None:
        link = tmp_path / "link"
        link.symlink_to(case.lake)
        for second in (case.lake, link):
            refused = case.clean("--second-lake", second)
            assert refused.exit_code == 2
            assert "expected another lake than the first, found the same" in refused.err
        # However it is reached.
        other = staging_of(case, tmp_path)
        said = json.loads((other / "lake.json").read_text())
        (other / "lake.json").write_text(json.dumps({**said, "uri": f"sqlite:///{case.catalog}"}))
        done = case.clean("--second-lake", other)
        assert done.exit_code == 1
        assert (done.err + done.out).count("expected a second lake of its own, found lake") == 1


class TestUnmountedDisk:
    """The lake lies on a disk of its own, as it should."""

    @pytest.fixture
    def disk(self, tmp_path: Path) -> Iterator[Path]:
        if os.geteuid() != 0:
            pytest.skip("only root can mount a file system")
        disk = tmp_path / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", disk], check=True)
        yield disk
        subprocess.run(["umount", disk], check=True)

    @pytest.fixture
    def mounted(self, disk: Path, tmp_path: Path) -> Iterator[Path]:
        """The mount point; the test unmounts it itself, and may mount it again."""
        point = tmp_path / "mnt"
        point.mkdir()
        subprocess.run(["mount", "--bind", disk, point], check=True)
        yield point
        subprocess.run(["umount", point], check=False, capture_output=True)

    @pytest.mark.parametrize("inside", ["", pytest.param("lake", marks=pytest.mark.again)])
    def test_nothing_appears_below_the_mount_point_and_nothing_is_deleted(
        self, cli: Any, files: Any, store_copy: Any, expire: Any, disk: Path, mounted: Path, inside: str
    ) -> None:
        store, lake = store_copy("edge-frames"), mounted / inside
        expire(store)
        clean = ("clean", store, "--lake", lake, "--manual", "--max-segments", 1)
        assert cli("init-lake", "--lake", lake).exit_code == 0
        assert cli(*clean).exit_code == 0
        subprocess.run(["umount", mounted], check=True)

        before = files(store)
        reason = ("--reason", "x")
        for words in (
            clean[:2] + clean[4:],
            ("clean", store, "--dry-run"),
            ("clean", store, "--manual", "--archive-policy", "off"),
            ("archive", store),
            ("plan", store),
            ("inspect", store),
            ("hold", store, "--broker", "127.0.0.1:1"),
            ("unmanage", store, "--broker", "127.0.0.1:1"),
            ("verify",),
            ("verify", store),
            ("validate", store),
            ("restore", "--to", mounted.parent / "back"),
            ("export", "--to", mounted.parent / "rows"),
            ("gc", "--delete"),
            ("waive", "0" * 64, *reason),
            ("adopt", store, *reason),
            ("accept-loss", store, "--from", 0, "--to", 1, *reason),
            ("stamp", store, *reason),
        ):
            refused = cli(*words, "--lake", lake)
            assert refused.exit_code == 2, (words, refused.out, refused.err)
            assert f"storage-engine init-lake --lake {lake}" in refused.err, (words, refused.err)
            assert "Mount its disk" in refused.err
            assert list(mounted.iterdir()) == [], words
        assert files(store) == before

        subprocess.run(["mount", "--bind", disk, mounted], check=True)
        assert cli("verify", store, "--lake", lake, "--level", "store").exit_code == 0
        assert cli(*clean).exit_code == 0
        subprocess.run(["umount", mounted], check=True)
        assert list(mounted.iterdir()) == []

    @pytest.mark.again
    def test_a_second_lake_that_is_not_mounted_leaves_the_first_at_work(
        self, cli: Any, store_copy: Any, expire: Any, lake: Path, mounted: Path
    ) -> None:
        store = store_copy("edge-frames")
        expire(store)
        words = ("clean", store, "--lake", lake, "--second-lake", mounted, "--manual", "--max-segments", 1)
        assert cli("init-lake", "--lake", mounted).exit_code == 0
        assert cli(*words).exit_code == 0
        subprocess.run(["umount", mounted], check=True)
        done = cli(*words)
        assert done.exit_code == 0
        assert "found no such file" in done.err + done.out
        assert list(mounted.iterdir()) == []


def test_init_lake_makes_a_lake_once_and_leaves_it_alone_then(cli: Any, files: Any, tmp_path: Path) -> None:
    lake = tmp_path / "new"
    (made,) = cli("init-lake", "--lake", lake, "--json").json["lakes"]
    assert (made["made"], made["location"]) == (True, f"file://{lake}/warehouse")
    before = files(lake)
    again = cli("init-lake", "--lake", lake)
    assert again.out.startswith(f"Lake {made['lake_id']} is there already: file://{lake}/warehouse")
    assert files(lake) == before
    both = cli("init-lake", "--lake", lake, "--conn-id", "x")
    assert (both.exit_code, "either --lake DIRECTORY or --conn-id ID" in both.err) == (2, True)
    assert cli("init-lake").exit_code == 2


def test_init_lake_makes_the_lake_that_lake_json_describes(cli: Any, tmp_path: Path) -> None:
    lake = tmp_path / "described"
    lake.mkdir()
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    (lake / "lake.json").write_text(json.dumps(properties))
    missing = cli("verify", "--lake", lake)
    assert (missing.exit_code, "init-lake" in missing.err) == (1, True)
    assert cli("init-lake", "--lake", lake).exit_code == 0
    assert cli("verify", "--lake", lake).exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.db", "described", "w"]
