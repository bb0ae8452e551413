"""gc: what may go is shown with what holds the same, taken only when asked, and comes back."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

DAY_SECONDS = 86_400


@pytest.fixture
def data(cli, store_copy, lake) -> Path:
    """The directory of a lake's data files, with a store's segments archived."""
    assert cli("archive", store_copy("clean-stop"), "--lake", lake).exit_code == 0
    (directory,) = (lake / "warehouse").glob("**/messages/data/store_id=*")
    return directory


def _old(path: Path, content: bytes | None = None) -> Path:
    if content is not None:
        path.write_bytes(content)
    yesterday = time.time() - 2 * DAY_SECONDS
    os.utime(path, (yesterday, yesterday))
    return path


def _second_copy(live: Path) -> Path:
    copy = live.with_name(f"{live.stem}-01234567.parquet")
    shutil.copyfile(live, copy)
    return _old(copy)


def test_what_may_go_is_listed_with_its_twin_taken_with_delete_and_put_back_with_undo(
    cli, lake, data: Path, files
) -> None:
    committed = sorted(data.iterdir())
    torn = _old(data / f"{committed[0].name}.old.partial", b"x" * 2048)
    young = data / f"{committed[0].name}.young.partial"
    young.write_bytes(b"y")
    twin, strange = _second_copy(committed[0]), _old(data / "README", b"somebody's")
    lost = _old(data / f"9-commitlog-{0:020d}-{'0' * 16}.parquet", b"nobody has it")
    before = files(data)

    shown = cli("gc", "--lake", lake, "--json").json
    assert {row["path"]: row["kind"] for row in shown["garbage"]} == {
        str(torn): "staged by an attempt that ended",
        str(twin): "data file",
    }
    assert [row["twins"] for row in shown["garbage"] if row["path"] == str(twin)] == [
        [f"file://{committed[0]}"]
    ]
    assert [(row["path"], "no receipt" in row["reason"]) for row in shown["orphans"]] == [(str(lost), True)]
    assert (shown["young_count"], shown["unknown"], shown["taken"]) == (1, [str(strange)], [])
    listed = cli("gc", "--lake", lake)
    assert listed.exit_code == 0
    assert ": may be removed, because no data is lost with them" in listed.out
    assert f"file://{committed[0]} holds the same" in listed.out
    assert "1 file, 13 bytes: kept as orphans" in listed.out
    assert f"Note: {strange} is a link, or has no name that" in listed.out
    assert "Note: 1 more are younger than 24 hours." in listed.out
    assert f"Next: storage-engine gc --lake {lake} --delete" in listed.out
    assert f"Next: storage-engine lake rebuild --lake {lake}" in listed.out
    assert files(data) == before

    taken = cli("gc", "--lake", lake, "--delete")
    assert taken.exit_code == 0
    assert "Moved to the trash: 2 files" in taken.out
    assert sorted(data.iterdir()) == sorted([*committed, young, strange, lost])
    again = cli("gc", "--lake", lake).out
    assert "No garbage." in again
    assert "Note: 2 files" in again
    moment = taken.out.partition("as pass ")[2].partition(".")[0]
    back = cli("gc", "--lake", lake, "--undo", moment)
    assert (back.exit_code, "Put back 2 files" in back.out) == (0, True)
    assert files(data) == before

    assert cli("gc", "--lake", lake, "--delete").exit_code == 0
    gone = cli("gc", "--lake", lake, "--delete", "--trash-days", "0", "--json").json
    assert len(gone["deleted"]) == 2
    assert "Put back 0 files" in cli("gc", "--lake", lake, "--undo").out
    assert cli("verify", "--lake", lake, "--level", "files").exit_code == 0


def test_receipts_that_the_journal_knows_and_the_lake_lacks_are_refused(cli, lake, store_copy, files) -> None:
    """The catalog was put back, and the marks with it: only the journal tells."""
    older = {
        path: path.read_bytes() for path in (lake / "catalog.db", *lake.glob("**/.storage-engine-mark.json"))
    }
    assert len(older) == 3
    assert cli("archive", store_copy("clean-stop"), "--lake", lake).exit_code == 0
    for path, content in older.items():
        path.write_bytes(content)
    before = files(lake / "warehouse")
    for words in ([], ["--delete"]):
        refused = cli("gc", "--lake", lake, *words)
        assert refused.exit_code == 1
        assert "storage-engine lake rebuild" in refused.err
    assert files(lake / "warehouse") == before


def test_what_cannot_be_done_is_refused(cli, archived, tmp_path) -> None:
    refused = cli("gc", "--lake", archived.lake, "--grace", "0.5", "--delete")
    assert refused.exit_code == 2
    assert "0.5" in refused.err
    missing = cli("gc", "--lake", tmp_path / "no-lake")
    assert missing.exit_code != 0
    assert str(tmp_path / "no-lake") in missing.err
    both = cli("gc", "--lake", archived.lake, "--delete", "--undo")
    assert both.exit_code == 2
    none = cli("gc", "--lake", archived.lake, "--undo", "20260101T000000Z-00000000")
    assert (none.exit_code, "expected a pass 20260101T000000Z-00000000" in none.err) == (2, True)


@pytest.mark.parametrize(
    "words", [("gc",), ("gc", "--delete"), ("maintain",), ("lake", "rebuild")], ids=" ".join
)
def test_a_journal_on_a_disk_that_is_not_mounted_is_no_missing_one(
    cli, lake, files, tmp_path, words: tuple[str, ...]
) -> None:
    (lake / "journal.db").unlink(missing_ok=True)
    (lake / "journal.db").symlink_to(tmp_path / "unmounted/journal.db")
    before = files(lake / "warehouse")
    refused = cli(*words, "--lake", lake)
    assert refused.exit_code == 1
    assert "journal.db: expected the lake's journal, found no file that can be read" in refused.err
    assert files(lake / "warehouse") == before
