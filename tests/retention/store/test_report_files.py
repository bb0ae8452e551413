from __future__ import annotations

from pathlib import Path

from storage_engine.retention.store.managed_store import ManagedStore, report_name, run_directory


def test_different_texts_never_share_a_name() -> None:
    texts = ["a/b", "a-b", "a:b", "a b", "-a-b", "", "/", "run", "manual__2026-11-20T04:00:00+00:00"]
    names = [report_name(text) for text in texts]
    assert len(set(names)) == len(texts)
    assert all(name and "/" not in name and not name.startswith(".") for name in names)
    assert report_name("clean-1795180500543") == "clean-1795180500543"


def test_stores_that_are_called_as_their_directories_have_reports_of_their_own(tmp_path: Path) -> None:
    def directory(name: str, root: str) -> Path:
        return run_directory(ManagedStore.local(name, root, tmp_path), "by-hand")

    assert directory("store", "/a/store") != directory("store", "/b/store")
    assert directory("orders", "/a/store") == tmp_path / "reports" / "orders" / "by-hand"
