"""Damaged frames, and other bytes than were archived, are named and stay until a person decides."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.cli.bad_input import MIB, check_error, lake_itself, segment_of

pytestmark = pytest.mark.usefixtures("plainly")

BODY = 88
"""Where the body of a frame with IPv4 addresses begins."""


@pytest.fixture
def frames(ground_truth) -> list[dict[str, Any]]:
    """cqext-batchcq's plain messages with a body; ``at``: the position in the file."""
    return [
        {**frame, "at": frame["pos"] - int(frame["file"])}
        for frame in ground_truth("cqext-batchcq", "commitlog")
        if frame["kind"] == "message" and frame["bodyLength"] and not frame["sysFlag"] & 48
    ]


def _damage(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def _torn(frame: dict[str, Any], path: Path) -> str:
    _damage(path, frame["at"] + 4, bytes(40))
    return "magic"


def _wrong_crc(frame: dict[str, Any], path: Path) -> str:
    body = frame["at"] + BODY
    _damage(path, body, bytes([path.read_bytes()[body] ^ 1]))
    return "CRC"


@pytest.mark.slow
@pytest.mark.parametrize("fault", [_torn, _wrong_crc], ids=["torn", "wrong-crc"])
def test_a_damaged_frame_in_a_sealed_segment_is_named_and_neither_archived_nor_deleted(
    cli, archived, store_copy, expire, files, frames, fault
) -> None:
    store, lake = store_copy("cqext-batchcq"), archived.lake
    frame = next(f for f in frames if int(f["file"]) == MIB and f["at"] > MIB // 2)
    path = segment_of(store, MIB)
    what = fault(frame, path)
    expire(store)
    before = files(store, *lake_itself(lake))
    for words in (("archive", "--lake", lake), ("clean", "--lake", lake, "--manual")):
        outcome = cli(*words, store)
        check_error(outcome, 1, f"{path}: bad frame at physical offset {frame['pos']}", "expected", what)
        assert files(store, *lake_itself(lake)) == before
    assert "--accept-damage" in outcome.err


@pytest.mark.slow
def test_damage_that_a_person_accepts_is_archived_byte_for_byte(
    cli, store_copy, expire, frames, lake, tmp_path
) -> None:
    store = store_copy("cqext-batchcq")
    frame = next(f for f in frames if int(f["file"]) == MIB and f["at"] > MIB // 2)
    _wrong_crc(frame, segment_of(store, MIB))
    found = cli("archive", store, "--lake", lake, "--accept-damage", "--json").json["archived"]
    assert [row["damaged_bytes"] for row in found] == [0, frame["size"]]
    words = ("restore", "--lake", lake, "--to", tmp_path / "back")
    check_error(
        cli(*words), 1, f"{frame['size']} damaged bytes", "Nothing was written", f"--to-offset {MIB};"
    )
    assert not (tmp_path / "back").exists()
    assert cli(*words, "--files-only").exit_code == 0
    assert segment_of(tmp_path / "back", MIB).read_bytes() == segment_of(store, MIB).read_bytes()
    assert cli(*words[:3], "--to", tmp_path / "before", "--to-offset", MIB).exit_code == 0


@pytest.mark.slow
def test_a_torn_frame_in_the_tail_is_where_the_log_ends(cli, store_copy, frames) -> None:
    store = store_copy("cqext-batchcq")
    frame = [f for f in frames if int(f["file"]) == 2 * MIB][-1]
    _torn(frame, segment_of(store, 2 * MIB))
    found = cli("inspect", store, "--json")
    assert found.exit_code == 0
    assert found.json["max_offset"] == frame["pos"]
    assert cli("plan", store, "--manual").exit_code == 0


@pytest.mark.again
@pytest.mark.slow
def test_other_bytes_under_an_archived_offset_are_refused_until_a_person_adopts_them(
    cli, store_copy, expire, files, frames, lake, tmp_path
) -> None:
    store = store_copy("cqext-batchcq")
    path = segment_of(store, MIB)
    original = path.read_bytes()
    assert cli("archive", store, "--lake", lake).exit_code == 0
    _rewrite_body(path, next(f for f in frames if int(f["file"]) == MIB))
    changed = path.read_bytes()
    assert changed != original
    expire(store)

    before = files(store, *lake_itself(lake))
    for words in (("archive",), ("clean", "--manual")):
        refused = cli(*words, store, "--lake", lake)
        check_error(refused, 1, path, "expected SHA-256", f"at offset {MIB}", "storage-engine adopt")
        assert files(store, *lake_itself(lake)) == before
    checked = cli("verify", store, "--lake", lake, "--json")
    assert checked.exit_code == 1
    assert checked.json["stores"][0]["overall"] == "FAILURE"

    assert cli("adopt", store, "--lake", lake, "--reason", "the broker recovered").exit_code == 0
    assert cli("archive", store, "--lake", lake).exit_code == 0
    assert cli("verify", store, "--lake", lake).exit_code == 0
    for name, options in (("old", ("--lineage", 1)), ("new", ())):
        assert cli("restore", "--lake", lake, "--to", tmp_path / name, *options).exit_code == 0
        if not options:
            noted = cli("restore", "--lake", lake, "--to", tmp_path / name)
            assert "Lineage 1 has commitlog [0, " in noted.err
            assert "--lineage 1 restores it" in noted.err
    assert segment_of(tmp_path / "old", MIB).read_bytes() == original
    assert segment_of(tmp_path / "new", MIB).read_bytes() == changed


def _rewrite_body(path: Path, frame: dict[str, Any]) -> None:
    """Another body with its right CRC: a valid frame of the same size."""
    at = frame["at"] + BODY
    body = bytes(byte ^ 0x55 for byte in path.read_bytes()[at : at + frame["bodyLength"]])
    _damage(path, at, body)
    _damage(path, frame["at"] + 8, struct.pack(">I", zlib.crc32(body) & 0x7FFFFFFF))
