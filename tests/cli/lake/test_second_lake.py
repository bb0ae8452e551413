"""A store whose segments lie in two lakes: archived, deleted, verified and restored as if in one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.usefixtures("plainly"), pytest.mark.slow]

MIB = 1 << 20


def take_away(lake: Path) -> None:
    """The directory stays, with the journal in it; the catalog can't be read."""
    (lake / "catalog.db").rename(lake / "away.db")
    (lake / "catalog.db").write_bytes(b"what a broken disk reads" * 100)


def bring_back(lake: Path) -> None:
    (lake / "away.db").replace(lake / "catalog.db")


def hashes(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


@pytest.mark.again
def test_segments_are_found_in_either_lake(
    tmp_path: Path, cli: Any, unpack: Callable[[str, Path], Path], expire: Callable[[Path], None]
) -> None:
    store, lake, second = unpack("clean-stop", tmp_path), tmp_path / "lake", tmp_path / "second"
    for directory in (lake, second):
        assert cli("init-lake", "--lake", directory).exit_code == 0
    expire(store)
    before = hashes(store / "commitlog")
    lakes = ("--lake", lake, "--second-lake", second)
    first_two = cli("archive", store, *lakes, "--budget", "2MiB", "--json").json
    assert [row["base_offset"] for row in first_two["archived"]] == [0, MIB]

    take_away(lake)
    next_two = cli("archive", store, *lakes, "--budget", "2MiB", "--json").json
    assert [row["base_offset"] for row in next_two["archived"]] == [2 * MIB, 3 * MIB]
    assert next_two["lake"] == f"file://{second}/warehouse"
    lag = cli("inspect", store, *lakes, "--json").json["archive_lag"]
    assert (lag["segments"], lag["oldest_base_offset"], len(lag["notes"])) == (3, 4 * MIB, 1)
    bring_back(lake)

    cleaned = cli("clean", store, *lakes, "--manual", "--max-segments", 4, "--json")
    assert cleaned.exit_code == 0, cleaned.out
    assert cleaned.json["report"]["validation"]["ranges"][0]["where"] == "ARCHIVED"
    assert [row["lake"] for row in cleaned.json["report"]["archived"]] == [
        *[f"file://{lake}/warehouse"] * 2,
        *[f"file://{second}/warehouse"] * 2,
    ]
    assert not (store / "commitlog" / f"{3 * MIB:020d}").exists()

    verified = cli("verify", store, *lakes, "--json")
    assert (verified.exit_code, [row["overall"] for row in verified.json["stores"]]) == (0, ["OK", "OK"])
    alone = cli("verify", store, "--lake", lake, "--json")
    assert (alone.exit_code, alone.json["stores"][0]["overall"]) == (1, "FAILURE")

    back = tmp_path / "back"
    restored = cli("restore", *lakes, "--to", back, "--json")
    assert restored.exit_code == 0, restored.out
    assert hashes(back / "commitlog") == {f"{n * MIB:020d}": before[f"{n * MIB:020d}"] for n in range(4)}

    # What lies in the lake that can't be asked is not taken for lost.
    take_away(lake)
    verified = cli("verify", store, *lakes, "--json")
    assert (verified.exit_code, [row["overall"] for row in verified.json["stores"]]) == (0, ["WARNING"])
    places = [(row["where"], row["status"]) for row in verified.json["stores"][0]["ranges"]]
    assert places == [("ARCHIVED", "WARNING"), ("ARCHIVED", "OK"), ("LOCAL", "OK")]
    validated = cli("validate", store, *lakes, "--json")
    assert validated.exit_code == 0, validated.out
    assert json.loads(validated.out)["overall"] == "WARNING"


def test_a_second_lake_whose_disk_is_away_is_said_and_keeps_nobody_from_the_first(
    cli: Any, store: Path, lake: Path, tmp_path: Path
) -> None:
    away = tmp_path / "mnt"
    away.mkdir()
    assert cli("archive", store, "--lake", lake, "--budget", "1MiB").exit_code == 0
    done = cli("archive", store, "--lake", lake, "--second-lake", away)
    assert done.exit_code == 0
    assert f"storage-engine init-lake --lake {away}" in done.err
    assert cli("restore", "--lake", lake, "--second-lake", away, "--to", tmp_path / "back").exit_code == 0
    assert list(away.iterdir()) == []
