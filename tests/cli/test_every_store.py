"""Every fixture store: what is sealed and expired is archived, deleted, and comes back as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plainly")]


def _segments(store: Path) -> dict[str, bytes]:
    directories = [store / name for name in ("commitlog", "cl1", "cl2")]
    return {path.name: path.read_bytes() for directory in directories for path in directory.glob("*")}


@pytest.mark.parametrize(
    ("name", "sealed"),
    [
        pytest.param("clean-stop", 7, marks=pytest.mark.again),
        ("cqext-batchcq", 2),
        pytest.param("multipath", 1, marks=pytest.mark.again),
        pytest.param("edge-frames", 2, marks=pytest.mark.again),
    ],
)
def test_a_stopped_store_is_archived_cleaned_and_restored(
    cli, store_copy, expire, files, lake, tmp_path, name, sealed
) -> None:
    store = store_copy(name)
    expire(store)
    options: list[object] = ["--lake", lake]
    if name == "multipath":
        conf = tmp_path / "broker.conf"
        conf.write_text(f"storePathCommitLog={store}/cl1,{store}/cl2\n")
        options += ["--broker-conf", conf]
    original, before, empty = _segments(store), files(store), files(lake)

    dry = cli("clean", store, *options, "--manual", "--dry-run", "--json").json["plan"]
    assert len(dry["delete_offsets"]) == sealed
    assert files(store) == before
    assert files(lake) == empty

    cleaned = cli("clean", store, *options, "--manual", "--run-key", "first", "--json")
    assert cleaned.exit_code == 0
    report = cleaned.json["report"]
    assert (report["outcome"], report["ok"]) == ("done", True)
    gone = sorted(original)[:sealed]
    assert [row["base_offset"] for row in report["segments"] if row["fate"] == "deleted"] == [
        int(base) for base in gone
    ]
    assert sorted(set(original) - set(_segments(store))) == gone
    assert {file["facts"]["path"] for file in report["dependents"]} == {
        file["facts"]["path"] for file in dry["dependents"]
    }
    changed = {path for path, facts in files(store).items() if before.get(path) != facts}
    assert not changed
    deleted = set(before) - set(files(store))
    assert len(deleted) == sealed + len(dry["dependents"])

    assert cli("verify", *options[2:], store, "--lake", lake, "--level", "bytes").exit_code == 0
    assert cli("restore", "--lake", lake, "--to", tmp_path / "back").exit_code == 0
    assert _segments(tmp_path / "back") == {base: original[base] for base in gone}


@pytest.mark.again
def test_a_crashed_store_is_archived_but_not_cleaned(cli, store_copy, expire, files, lake, tmp_path) -> None:
    store = store_copy("kill9")
    expire(store)
    original, before = _segments(store), files(store)
    archived = cli("archive", store, "--lake", lake, "--json").json["archived"]
    assert [row["base_offset"] for row in archived] == [0, 1 << 20, 2 << 20]

    refused = cli("clean", store, "--lake", lake, "--manual")
    assert refused.exit_code == 1
    assert "store-crashed: the store was not stopped cleanly (its abort file exists)" in refused.out
    assert "The broker did not stop cleanly" in refused.out
    assert files(store) == before

    assert cli("restore", "--lake", lake, "--to", tmp_path / "back").exit_code == 0
    assert _segments(tmp_path / "back") == {name: original[name] for name in sorted(original)[:3]}
