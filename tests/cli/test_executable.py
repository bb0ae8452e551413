"""The installed command: exit codes as a shell sees them, and nothing but JSON on stdout."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from pathlib import Path

import pytest

COMMAND = Path(sysconfig.get_path("scripts")) / "storage-engine"


def _run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(COMMAND), *map(str, words)], capture_output=True, text=True)


def test_the_command_says_what_it_is() -> None:
    version = _run("--version")
    assert version.returncode == 0
    assert version.stdout.startswith("storage-engine, version ")
    unknown = _run("delete-everything")
    assert unknown.returncode == 2
    assert "No such command 'delete-everything'" in unknown.stderr


@pytest.mark.slow
def test_done_is_0_and_stdout_is_json_alone(store_copy, lake) -> None:
    done = _run("archive", store_copy("multipath"), "--set", "x=y", "--json", "--lake", lake)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["type"] == "StoreNotFoundError"
    done = _run("archive", store_copy("edge-frames"), "--json", "--lake", lake)
    assert done.returncode == 0
    assert len(json.loads(done.stdout)["archived"]) == 2
    assert done.stderr == ""


@pytest.mark.slow
def test_refused_is_1(archived, tmp_path) -> None:
    refused = _run("restore", "--lake", archived.lake, "--to", archived.store)
    assert refused.returncode == 1
    assert refused.stderr.startswith("Error: ")
    assert refused.stdout == ""


@pytest.mark.integration
def test_archiving_with_spark_is_the_same_and_stdout_stays_clean(cli, store_copy, lake) -> None:
    store = store_copy("edge-frames")
    done = _run("archive", store, "--lake", lake, "--spark", "local[1]", "--json")
    assert done.returncode == 0, done.stderr
    assert [row["base_offset"] for row in json.loads(done.stdout)["archived"]] == [0, 1 << 20]
    assert cli("archive", store, "--lake", lake).out.startswith("Nothing to archive")
