"""A broker of another package, installed as its wheel beside this project's, at the shell.

These are the commands of docs/add-a-broker.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.toy import KINDS, LINES, PACKAGE, REPOSITORY, build_wheel, make_store

pytestmark = pytest.mark.slow

Run = Callable[..., Any]

COMMANDS = """
import contextlib, io, json, sys
import storage_engine
from storage_engine.cli.main import main

assert storage_engine.__file__.startswith(sys.prefix), storage_engine.__file__
for line in sys.stdin:
    sys.argv, output, code = ["storage-engine", *json.loads(line)], io.StringIO(), 0
    with contextlib.redirect_stdout(output):
        try:
            code = main()
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code or 0, output.getvalue()]), flush=True)
"""
"""One process for all commands: each would import the lake's libraries again."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with both wheels, which takes only their dependencies from this one."""
    directory = tmp_path_factory.mktemp("wheels")
    wheels = [build_wheel(source, directory) for source in (REPOSITORY, PACKAGE)]
    venv.create(directory / "venv", with_pip=False)
    (packages,) = (directory / "venv").glob("lib/python*/site-packages")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages)]
    subprocess.run([*install, *map(str, wheels)], check=True, timeout=120)
    # Behind its own: what is installed here, this project's checkout among it.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return directory / "venv" / "bin" / "python"


@pytest.fixture(scope="module")
def run(python: Path) -> Iterator[Run]:
    """Run a command of the wheel; gives its JSON, or the message of its error."""
    process = subprocess.Popen(
        [str(python), "-P", "-c", COMMANDS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=python.parent,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    asked, told = process.stdin, process.stdout

    def command(*arguments: object, code: int = 0) -> Any:
        print(json.dumps([*map(str, arguments), "--json"]), file=asked, flush=True)
        found, output = json.loads(told.readline())
        assert found == code, output
        return json.loads(output)["error"]["message"] if code else json.loads(output)

    with process:
        yield command
        asked.close()


@pytest.mark.again
def test_its_store_goes_through_the_whole_cycle(run: Run, tmp_path: Path) -> None:
    store, lake = tmp_path / "store", tmp_path / "lake"
    old = [path for paths in make_store(store).values() for path in paths]
    files = [file for path in old for file in (path, path.with_suffix(".count"))]
    before = {path.relative_to(store): path.read_bytes() for path in files}
    planned = run("plan", store)
    expired = [one["segment"] for one in planned["decisions"] if one["reason"] == "expired"]
    assert {segment["facts"]["path"] for segment in expired} == set(map(str, old))
    assert {one["end"] - one["base_offset"] for one in expired} == {LINES}
    made = run("init-lake", "--lake", lake, "--broker-type", "toy")
    assert made["lakes"][0]["broker"] == "toy"
    run("clean", store, "--lake", lake, "--run-key", "one")
    report = json.loads(next(lake.glob("reports/*/one/report.json")).read_text())
    assert (report["outcome"], report["ok"]) == ("done", True)
    assert report["validation"]["checks"]
    assert not any(path.with_suffix(kind).exists() for path in old for kind in KINDS)
    assert report["freed_bytes"] == sum(map(len, before.values()))
    validated = run("validate", store, "--lake", lake, "--full")
    assert validated["overall"] == "OK"
    ranges = [(row["log"], row["start_offset"], row["end_offset"]) for row in validated["ranges"]]
    assert ranges == [
        ("access", 0, 2 * LINES), ("access", 2 * LINES, 4 * LINES + 1),
        ("errors", 0, LINES), ("errors", LINES, 2 * LINES + 1),
    ]  # fmt: skip
    assert [one["overall"] for one in run("verify", "--lake", lake, store, "--level", "store")["stores"]] == [
        "OK"
    ]

    run("restore", "--lake", lake, "--to", tmp_path / "back")
    assert {path: (tmp_path / "back" / path).read_bytes() for path in before} == before
    inspected = run("inspect", store, "--lake", lake)
    assert [log["name"] for log in inspected["logs"]] == ["access", "errors"]


@pytest.mark.again
def test_its_segments_go_into_no_lake_of_another_broker(run: Run, tmp_path: Path) -> None:
    store, lake = tmp_path / "store", tmp_path / "lake"
    make_store(store)
    run("init-lake", "--lake", lake)
    said = run("archive", store, "--lake", lake, code=2)
    assert "expected a lake for segments of toy, found one for those of rocketmq" in said
    assert run("verify", "--lake", lake)["stores"] == []


@pytest.mark.again
def test_unknown_consumers_block_where_consumers_must_have_read(run: Run, tmp_path: Path) -> None:
    store, lake = tmp_path / "store", tmp_path / "lake"
    old = [path for paths in make_store(store).values() for path in paths]
    run("init-lake", "--lake", lake, "--broker-type", "toy")
    said = run("clean", store, "--lake", lake, "--lag-policy", "block", code=1)
    assert "the broker doesn't say who consumes. Nothing was deleted" in said
    assert all(len(path.read_bytes().splitlines()) == LINES for path in old)
