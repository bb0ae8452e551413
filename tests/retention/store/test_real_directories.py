"""Whether files lie below directories, whatever links lead there."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_engine.retention.store.broker_answers import RealDirectories


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "store" / "log").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "store" / "link").symlink_to(tmp_path / "out")
    (tmp_path / "out" / "back").symlink_to(tmp_path / "store")
    # What is relative must not be taken for what lies here.
    monkeypatch.chdir(tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("name", "is_inside"),
    [
        ("log/0", True),
        ("log/../log/0", True),
        ("log//0", True),
        ("log/deeper/0", True),
        ("../store/log/0", True),
        ("../out/back/log/0", True),
        ("../store-of-others/0", False),
        ("../out/0", False),
        ("link/0", False),
        ("link/../0", False),
        ("log/..", False),
        ("log/", False),
        ("log/0\0", False),
        ("lo\0g/0", False),
        (".storage-engine/stamp.json", False),
        ("x/" * 3000 + "0", False),
    ],
)
def test_a_file_is_where_its_links_lead(store: Path, name: str, is_inside: bool) -> None:
    directories = RealDirectories([store])
    path = f"{store}/{name}"
    assert directories.has(path) is is_inside
    assert directories.first_outside([f"{store}/log/1", path]) == (None if is_inside else path)


@pytest.mark.parametrize("path", ["", "0", "/0"])
def test_of_a_bare_name_nothing_is_said(store: Path, path: str) -> None:
    assert not RealDirectories([store]).has(path)
    assert RealDirectories([store]).first_outside([path]) == path


def test_a_path_by_its_real_directory_tells_two_names_of_one_file(store: Path) -> None:
    directories = RealDirectories([store])
    assert directories.real(f"{store}/../out/back/log/0") == directories.real(f"{store}/log/0")


def test_of_many_directories_each_is_where_its_links_lead(store: Path) -> None:
    paths = [f"{store}/log/{number}/0" for number in range(150)]
    for path in paths[1:]:
        Path(path).parent.mkdir()
    assert RealDirectories([store]).first_outside(paths) is None
    (store / "log" / "0").symlink_to(store.parent / "out")
    assert RealDirectories([store]).first_outside(paths) == paths[0]
    (store / "log" / "0").unlink()
    (store / "log" / "0").symlink_to(store / "log" / "1")
    assert RealDirectories([store]).first_outside(paths) is None
    assert RealDirectories([store]).first_outside([f"{store}/\0/{number}/0" for number in range(150)])
    assert RealDirectories([store]).first_outside([f"{'/x' * 3000}/{number}/0" for number in range(150)])
