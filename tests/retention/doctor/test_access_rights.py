"""Who may only read a store is told so, and as whom to run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_engine.core.durable import DIRECTORY
from storage_engine.model.report.diagnosis import Severity
from storage_engine.retention.doctor.doctor import AccessRights, access_findings, look_at_access
from tests.services.other_user import as_nobody


@pytest.fixture
def store() -> Iterator[Path]:
    """A directory that everybody may look into."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        (Path(directory) / "commitlog").mkdir(mode=0o755)
        yield Path(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can become another user")
def test_who_may_only_read_a_store_is_told_whose_it_is(store: Path) -> None:
    with as_nobody():
        found = look_at_access(str(store), [store / "commitlog", store / "missing"])
    assert found.unwritable == (str(store), str(store / "commitlog"))
    (finding,) = access_findings(found)
    assert finding.advice.startswith("run as root: sudo -u root")


def test_who_may_write_it_needs_nobody_else(store: Path) -> None:
    found = look_at_access(str(store), [store / "commitlog"])
    assert found.unwritable == found.unreadable == ()
    assert not list(access_findings(found))


def test_what_may_not_be_looked_into_counts_first() -> None:
    (finding,) = access_findings(AccessRights("a", "b", ("/s",), ("/s/commitlog",)))
    assert "a may not look into /s/commitlog, which b owns" in finding.what


def test_what_everybody_may_write_of_ours_is_told(store: Path) -> None:
    (store / DIRECTORY).mkdir()
    (store / DIRECTORY).chmod(0o777)
    (finding,) = access_findings(look_at_access(str(store), [store / "commitlog"]))
    assert (finding.severity, finding.kind) == (Severity.WARNING, "open-to-all")
    assert str(store / DIRECTORY) in finding.what
