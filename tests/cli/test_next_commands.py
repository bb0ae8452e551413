"""An error names the command that helps with this call's own arguments, to be pasted."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow
def test_the_command_that_is_named_can_be_run(cli: Any, archived: Any, tmp_path: Path) -> None:
    copy = shutil.copytree(archived.lake, tmp_path / "a copy")
    advice = f"storage-engine lake relocate --lake {shlex.quote(str(copy))}"
    assert advice in cli("verify", "--lake", copy).err
    error = cli("verify", "--lake", copy, "--json").json["error"]
    assert advice in error["message"]
    assert error["then"][0] == advice
    assert advice in cli("lake", "info", "--lake", copy).out
    assert advice in cli("lake", "info", "--lake", copy, "--json").json["refused"]
    asked = cli("verify", archived.store, "--lake", archived.lake, "--second-lake", copy)
    assert advice in asked.out + asked.err
    done = cli(*shlex.split(advice)[1:])
    assert done.exit_code == 0, done.err


@pytest.mark.slow
def test_a_store_that_was_moved_is_known_by_the_command_that_is_named(
    cli: Any, store_copy: Any, lake: Path, tmp_path: Path
) -> None:
    store = store_copy("clean-stop")
    assert cli("archive", store, "--lake", lake).exit_code == 0
    moved = store.rename(tmp_path / "moved")
    refused = cli("archive", moved, "--lake", lake)
    advice = f"storage-engine move moved {moved} --lake {lake}"
    assert (refused.exit_code, advice in refused.err) == (1, True), refused.err
    assert cli(*shlex.split(advice)[1:]).exit_code == 0
    assert cli("archive", moved, "--lake", lake).exit_code == 0


@pytest.mark.slow
def test_what_quotes_an_error_names_the_command_too(cli: Any, archived: Any, tmp_path: Path) -> None:
    lakes = [shutil.copytree(archived.lake, tmp_path / name) for name in ("a lake", "another")]
    for lake in lakes:
        (lake / "catalog.db").write_text("no database" * 1_000)
    first, second = (f"run storage-engine lake rebuild --lake {shlex.quote(str(lake))}" for lake in lakes)
    assert first in cli("plan", archived.store, "--lake", lakes[0]).out
    refused = cli("restore", "--lake", lakes[0], "--second-lake", lakes[1], "--to", tmp_path / "back")
    assert (first in refused.err, second in refused.err) == (True, False), refused.err


@pytest.mark.slow
def test_the_command_behind_a_copy_can_be_pasted(cli: Any, archived: Any, tmp_path: Path) -> None:
    copied = cli("lake", "copy", "--lake", archived.lake, "--to", tmp_path / "a 'copy'")
    words = shlex.split(copied.out.rpartition("Next: storage-engine ")[2])
    checked = cli(*words)
    assert checked.exit_code == 0, checked.err
    promoted = cli("lake", "promote", "--lake", tmp_path / "a 'copy'", "--reason", "a test")
    archive = promoted.out.rpartition("Next: storage-engine ")[2].partition(". If the original")[0]
    assert shlex.split(archive) == ["archive", "STORE", "--lake", str(tmp_path / "a 'copy'")]
