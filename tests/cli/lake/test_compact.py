"""lake compact: small data files become larger ones, and each segment is proven there."""

from __future__ import annotations

import pytest

from storage_engine.lake.gc import compaction

pytestmark = pytest.mark.slow


def test_small_files_become_larger_ones_by_hand_and_by_maintenance(
    cli, store_copy, lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_copy("clean-stop")
    assert cli("archive", store, "--lake", lake).exit_code == 0
    assert "No small data files can be joined." in cli("lake", "compact", "--lake", lake).out
    # As if the log had one topic.
    monkeypatch.setattr(compaction, "topic_of", lambda broker, log: "orders")
    would = cli("lake", "compact", "--lake", lake, "--dry-run")
    assert "would become 1 file." in would.out
    assert "would become 1 file" in cli("maintain", "--lake", lake, "--compact", "--dry-run").out
    assert "became 1 file" in cli("maintain", "--lake", lake, "--compact").out
    done = cli("lake", "compact", "--lake", lake, "--json")
    assert (done.exit_code, done.json["files"], done.json["larger_files"]) == (0, 0, 0)
    assert cli("verify", store, "--lake", lake, "--level", "bytes").exit_code == 0
