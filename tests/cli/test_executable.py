"""The installed command: exit codes as a shell sees them, and nothing but JSON on stdout."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

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


def test_done_is_0_and_stdout_is_json_alone(cli, store_copy, lake) -> None:
    bad = cli("archive", store_copy("multipath"), "--set", "fileReservedTime=1", "--json", "--lake", lake)
    assert bad.exit_code == 2
    assert bad.json["error"]["type"] == "StoreNotFoundError"
    done = _run("archive", store_copy("edge-frames"), "--json", "--lake", lake)
    assert done.returncode == 0
    assert len(json.loads(done.stdout)["archived"]) == 2
    assert done.stderr == ""


def test_refused_is_1(archived, tmp_path) -> None:
    refused = _run("restore", "--lake", archived.lake, "--to", archived.store)
    assert refused.returncode == 1
    assert refused.stderr.startswith("Error: ")
    assert refused.stdout == ""
