"""What the kernel says of a mount is read as it writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_engine.same_bytes.trusted_times import mount_of, parse_mount

ROOT = "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:2 - ext4 /dev/root rw,errors=continue"


def test_a_line_is_split_where_optional_fields_end() -> None:
    found = parse_mount(ROOT)
    assert found is not None
    assert (found.mount_id, found.point, found.kind) == ("36", "/mnt2", "ext4")
    assert found.options == {"rw", "noatime", "errors=continue"}
    assert not any((found.is_memory, found.is_network, found.is_fuse, found.is_volatile, found.is_read_only))
    plain = parse_mount("1 0 0:1 / /a\\040b ro - tmpfs none rw")
    assert plain is not None
    assert (plain.point, plain.is_memory, plain.is_read_only) == ("/a b", True, True)


@pytest.mark.parametrize(
    ("kind", "options", "what"),
    [
        ("overlay", "rw,lowerdir=/l,volatile", "is_volatile"),
        ("nfs4", "rw,vers=4.2", "is_network"),
        ("fuse.s3fs", "rw", "is_fuse"),
        ("tmpfs", "rw", "is_memory"),
    ],
)
def test_kinds_that_break_a_promise_are_known(kind: str, options: str, what: str) -> None:
    found = parse_mount(f"9 1 0:2 / /s rw - {kind} none {options}")
    assert found is not None
    names = ("is_volatile", "is_network", "is_fuse", "is_memory")
    assert [name for name in names if getattr(found, name)] == [what]


@pytest.mark.parametrize("line", ["", "1 2 3", "1 0 0:1 / / rw - ext4", "no mount at all here"])
def test_what_is_no_line_is_none(line: str) -> None:
    assert parse_mount(line) is None


def test_a_directory_has_its_mount_and_what_is_not_there_has_none(tmp_path: Path) -> None:
    found = mount_of(tmp_path)
    assert found is not None
    assert str(tmp_path).startswith(found.point)
    assert mount_of(tmp_path / "missing") is None
    shared = mount_of("/dev/shm")
    assert shared is None or shared.is_memory
