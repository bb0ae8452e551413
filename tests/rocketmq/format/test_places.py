from __future__ import annotations

from pathlib import Path

import pytest

from storage_engine.rocketmq.format.layout import store_around


@pytest.mark.parametrize("own", [".", "commitlog", "commitlog/lake", "config/a/b", "index", "timerwheel"])
def test_a_store_and_what_it_keeps_are_its_own(store_copy, own: str) -> None:
    store = store_copy("clean-stop")
    assert store_around(store / own) == store


def test_beside_its_own_files_and_outside_nothing_is(store_copy, tmp_path: Path) -> None:
    store = store_copy("clean-stop")
    for path in (store / "lake", store.parent, store.parent / "lake", tmp_path / "none" / "config"):
        assert store_around(path) is None


def test_a_directory_with_names_as_a_store_has_is_none(tmp_path: Path) -> None:
    for name in ("config", "index"):
        (tmp_path / name).mkdir()
    assert store_around(tmp_path / "config") is None
    (tmp_path / "config").rmdir()
    (tmp_path / "index").rmdir()
    (tmp_path / "commitlog").mkdir()
    assert store_around(tmp_path) is None
