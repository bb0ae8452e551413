from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.model.settings.policy import ArchiveMode, ArchiveWhen, LagPolicy, Policy
from storage_engine.retention.store import managed_store
from storage_engine.retention.store.managed_store import ManagedStore


def test_a_managed_store_comes_back_from_json(tmp_path: Path) -> None:
    store = ManagedStore.local(
        "a",
        "/data/store",
        tmp_path,
        broker_conf="/etc/broker.conf",
        overrides={"deleteWhen": "04"},
        time_zone="Asia/Shanghai",
        policy=Policy(ArchiveMode.OFF, LagPolicy.BLOCK),
    )
    assert ManagedStore.from_json(store.to_json()) == store


def test_a_link_to_a_store_is_that_store(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "store")
    link = ManagedStore.local("a", str(tmp_path / "link"), tmp_path)
    assert link.real_root == str(tmp_path / "store")


def test_a_policy_that_archives_at_seal_asks_no_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def ask(broker: str, _: object) -> None:
        asked.append(broker)

    monkeypatch.setattr(managed_store, "cleanups_of", ask)
    for when in ArchiveWhen:
        asked.clear()
        store = ManagedStore.local("a", "/data/store", tmp_path, policy=Policy(archive_when=when))
        assert store.archives_ahead
        assert bool(asked) is (when is not ArchiveWhen.SEAL)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"polcy": {}}, "store settings: expected only the keys name, root, .*, found 'polcy'"),
        ({"policy": {"archive": "no"}}, "store settings.policy.archive: expected one of"),
        ({"root": 5}, "store settings.root: expected a value of type str, found 5"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(tmp_path: Path, change: dict[str, object], message: str) -> None:
    settings = json.loads(ManagedStore.local("a", "/data/store", tmp_path).to_json())
    with pytest.raises(BadInputError, match=message):
        ManagedStore.from_json(json.dumps({**settings, **change}))


def test_settings_that_are_not_json_are_refused() -> None:
    with pytest.raises(BadInputError, match="store settings: expected JSON, found something else"):
        ManagedStore.from_json("root=x")
