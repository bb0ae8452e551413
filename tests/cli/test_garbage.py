"""gc: what nothing in the lake refers to is shown, and removed only when asked."""

from __future__ import annotations

import os
import time

DAY_SECONDS = 86_400


def test_garbage_is_listed_and_removed_only_with_delete(cli, store_copy, lake) -> None:
    cli("archive", store_copy("clean-stop"), "--lake", lake)
    (directory,) = (lake / "warehouse").glob("**/messages/data/store_id=*")
    committed = sorted(directory.iterdir())
    old, young = (directory / f"{committed[0].name}.{word}.partial" for word in ("old", "young"))
    old.write_bytes(b"x" * 2048)
    young.write_bytes(b"y")
    yesterday = time.time() - 2 * DAY_SECONDS
    os.utime(old, (yesterday, yesterday))
    strange = directory / "README"
    strange.write_text("somebody's")
    os.utime(strange, (yesterday, yesterday))

    shown = cli("gc", "--lake", lake, "--json").json
    assert [row["path"] for row in shown["garbage"]] == [str(old)]
    assert (shown["garbage_bytes"], shown["deleted"]) == (2048, [])
    assert (shown["young_count"], shown["unknown"]) == (1, [str(strange)])
    listed = cli("gc", "--lake", lake)
    assert listed.exit_code == 0
    assert "Nothing was removed; --delete removes these files." in listed.out
    assert f"Note: {strange} is no file of ours or of Iceberg's; it is left alone." in listed.out
    assert "Note: 1 more are younger than 24 hours." in listed.out
    assert old.exists()

    removed = cli("gc", "--lake", lake, "--delete")
    assert (removed.exit_code, "Removed 1 files, 2.0 KiB." in removed.out) == (0, True)
    assert sorted(directory.iterdir()) == sorted([*committed, young, strange])
    assert "No garbage." in cli("gc", "--lake", lake).out
    assert cli("verify", "--lake", lake, "--level", "files").exit_code == 0


def test_a_grace_under_an_hour_and_a_lake_that_is_not_there_are_refused(cli, archived, tmp_path) -> None:
    refused = cli("gc", "--lake", archived.lake, "--grace", "0.5", "--delete")
    assert refused.exit_code == 2
    assert "0.5" in refused.err
    missing = cli("gc", "--lake", tmp_path / "no-lake")
    assert missing.exit_code != 0
    assert str(tmp_path / "no-lake") in missing.err
