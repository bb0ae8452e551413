from __future__ import annotations

from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.lake.config import LakeConfig


def test_a_configuration_survives_json(tmp_path: Path) -> None:
    config = LakeConfig.local(tmp_path / "lake")
    assert LakeConfig.from_json(config.to_json()) == config


def test_a_relative_directory_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert LakeConfig.local("lake") == LakeConfig.local(tmp_path / "lake")


@pytest.mark.parametrize("name", ["what?", "100%", "a#b"])
def test_a_path_that_a_uri_would_cut_off_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInputError, match="can't contain"):
        LakeConfig.local(tmp_path / name)


def test_files_are_durable_unless_the_configuration_says_otherwise(tmp_path: Path) -> None:
    config = LakeConfig.local(tmp_path)
    assert config.file_io_properties["py-io-impl"] == "storage_engine.lake.durable_io.DurableFileIO"
    other = LakeConfig("x", {"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"})
    assert other.file_io_properties["py-io-impl"] == "pyiceberg.io.fsspec.FsspecFileIO"


def test_what_is_no_json_is_bad_input() -> None:
    with pytest.raises(BadInputError, match="expected JSON"):
        LakeConfig.from_json("catalog: x")
