"""A store whose disk doesn't answer is named, instead of waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_engine.exceptions import DiskUnavailableError
from storage_engine.retention.store import brokers
from storage_engine.retention.store.brokers import check_answers
from tests.services.hanging_disk import hanging_disk


def test_a_disk_that_never_answers_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "ANSWER_SECONDS", 0.2)
    with hanging_disk(tmp_path / "disk") as disk:
        for path in (disk, disk / "store"):
            with pytest.raises(DiskUnavailableError, match=f"{path}: expected an answer of its disk"):
                check_answers(str(path))


def test_whatever_a_disk_answers_is_an_answer(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file", tmp_path / "file" / "below", tmp_path / "missing"):
        check_answers(str(path))
