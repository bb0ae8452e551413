from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.rocketmq.live.connect import as_who_may_read
from tests.services.other_user import as_nobody


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_who_may_not_read_a_store_is_told_whom_to_run_as(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    told = r"uid 65534.*runs as the broker's user"
    with as_nobody(), pytest.raises(BadInputError, match=told), as_who_may_read(tmp_path):
        list(tmp_path.iterdir())
    assert os.geteuid() == 0


def test_what_is_missing_is_not_a_matter_of_rights(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), as_who_may_read(tmp_path):
        list((tmp_path / "none").iterdir())
