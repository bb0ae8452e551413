"""A full disk under Great Expectations' pages is one error of a file, and no trace of what it swallows."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_engine.quality.engine import files_written
from storage_engine.quality.expectation_rules import SUITES, FactTable
from storage_engine.resources import project_path

LOGGER = logging.getLogger("great_expectations.render")


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def swallow(write: Callable[[], object]) -> None:
    """Log what a write raises as Great Expectations does, and end by the page that isn't there."""
    try:
        write()
    except (OSError, ValueError):
        LOGGER.exception("swallowed")
    raise KeyError("a page that isn't there")


@pytest.mark.slow
def test_a_page_that_cannot_be_written_is_one_error_and_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from storage_engine.quality.engine import OfflinePageView, run_suites

    monkeypatch.setattr(OfflinePageView, "render", full)
    row = FactTable(({"subject": "a segment", "accepted_damaged_bytes": 0, "damaged_bytes": 0},))
    tables = {name: row if name == "store_frames" else FactTable(()) for name in SUITES}
    directory = tmp_path / "docs"
    with pytest.raises(OSError, match="No space left on device") as raised:
        run_suites(tables, project_path("expectations"), directory, run_name="full")
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(directory))
    assert "Traceback" not in caplog.text


def test_the_file_that_an_error_names_stays_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised, files_written(tmp_path):
        (tmp_path / "none").read_bytes()
    assert raised.value.filename == str(tmp_path / "none")


def test_what_becomes_of_a_swallowed_error_is_that_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"), files_written(tmp_path):
        swallow(full)


def test_other_errors_are_logged_and_raised_as_ever(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KeyError, match="a page"), files_written(tmp_path):
        swallow(lambda: int("no number"))
    assert "swallowed" in caplog.text
    with files_written(tmp_path):
        LOGGER.warning("a warning")
    assert "a warning" in caplog.text
