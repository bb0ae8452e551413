"""The file of users is its owner's alone, and none of its passwords are in it."""

from __future__ import annotations

import os
from pathlib import Path

from storage_engine.lake_server.users import read_users, set_user


def test_the_file_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    previous = os.umask(0)
    try:
        set_user(path, "reader", "secret", ["orders", "pay-*"])
        set_user(path, "other", "secret", ["orders"])
    finally:
        os.umask(previous)
    assert path.stat().st_mode & 0o777 == 0o600
    assert "secret" not in path.read_text()
    users = read_users(path)
    assert users["reader"].may_read("pay-eu")
    assert not users["other"].may_read("pay-eu")
