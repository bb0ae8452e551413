from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.exceptions import StoreLayoutError, StoreNotFoundError, UnsupportedLayoutError
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.layout import (
    StoreLayout,
    has_controller,
    list_segments,
    resolve_layout,
)
from storage_engine.rocketmq.format.mapped_files import file_name

MIB = 1 << 20


def paths_of(layout: StoreLayout) -> tuple[Path, ...]:
    return tuple(segment.path for segment in list_segments(layout))


def layout_of(root: Path, **overrides: str) -> StoreLayout:
    return resolve_layout(load_broker_config(None, overrides, root=root))


def make_store(root: Path, *base_offsets: int, size: int = 100, directory: str = "commitlog") -> Path:
    path = root / directory
    path.mkdir(parents=True)
    for base_offset in base_offsets:
        (path / file_name(base_offset)).write_bytes(bytes(size))
    return root


def bytes_of(root: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(root.rglob("*"))}


def refuses(root: Path, error: type[Exception], *parts: str, **overrides: str) -> None:
    before = bytes_of(root)
    with pytest.raises(error) as caught:
        list_segments(layout_of(root, **overrides))
    for part in parts:
        assert part in str(caught.value)
    assert bytes_of(root) == before


@pytest.mark.parametrize(
    ("name", "count"), [("clean-stop", 8), ("kill9", 5), ("cqext-batchcq", 3), ("edge-frames", 3)]
)
def test_a_brokers_store_is_accepted_with_all_its_segments(
    name: str, count: int, store_copy: Callable[[str], Path]
) -> None:
    root = store_copy(name)
    files = paths_of(layout_of(root, mappedFileSizeCommitLog=str(MIB)))
    assert files == tuple(root / "commitlog" / file_name(i * MIB) for i in range(count))


def test_segments_are_gathered_from_several_directories(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("multipath")
    layout = layout_of(root, storePathCommitLog=f"{root}/cl1,{root}/cl2")
    assert paths_of(layout) == (root / "cl1" / file_name(0), root / "cl2" / file_name(MIB))


def test_read_only_directories_hold_segments_too(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("multipath")
    (root / "cl3").mkdir()
    layout = layout_of(
        root, storePathCommitLog=f"{root}/cl2,{root}/cl3", readOnlyCommitLogStorePaths=f"{root}/cl1"
    )
    assert [file.base_offset for file in list_segments(layout)] == [0, MIB]


def test_a_missing_store_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="none: expected the store's root directory, found nothing"):
        layout_of(tmp_path / "none")


def test_a_file_instead_of_a_store_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(StoreNotFoundError, match="found a file"):
        layout_of(tmp_path / "store")


def test_an_empty_directory_is_no_store(tmp_path: Path) -> None:
    refuses(tmp_path, StoreNotFoundError, f"{tmp_path}/commitlog", "expected a commitlog directory")


@pytest.mark.parametrize("meant", ["commitlog", ".."])
def test_who_names_a_directory_below_or_above_a_store_is_told_which_it_is(
    store_copy: Callable[[str], Path], meant: str
) -> None:
    store = store_copy("edge-frames")
    with pytest.raises(StoreNotFoundError, match=f"did you mean {store}"):
        layout_of((store / meant).resolve())


def test_a_store_without_segments_is_empty(tmp_path: Path) -> None:
    refuses(make_store(tmp_path / "s"), StoreNotFoundError, "empty store", "commitlog")


def test_a_commitlog_directory_that_is_not_mounted_is_not_taken_for_an_empty_one(
    store_copy: Callable[[str], Path],
) -> None:
    root = store_copy("multipath")
    paths = f"{root}/cl1,{root}/cl2,{root}/cl3"
    refuses(root, StoreNotFoundError, f"{root}/cl3", "mounted", storePathCommitLog=paths)


def test_a_relative_path_is_taken_literally_and_the_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=r"relative.*not expanded"):
        layout_of(Path("${user.home}/store"))


def test_a_hole_names_the_file_behind_it_and_what_was_expected(tmp_path: Path) -> None:
    root = make_store(tmp_path / "s", 0, 100, 300)
    refuses(root, StoreLayoutError, f"commitlog/{file_name(300)}", "hole", f"expected {file_name(200)}")


def test_a_file_of_another_size_names_both_sizes(tmp_path: Path) -> None:
    root = make_store(tmp_path / "s", 0, 100, 200)
    (root / "commitlog" / file_name(100)).write_bytes(bytes(99))
    refuses(root, StoreLayoutError, file_name(100), "expected 100 bytes as the other files", "found 99")


def test_a_store_whose_copying_was_interrupted_is_an_error(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("kill9")
    path = root / "commitlog" / file_name(4 * MIB)
    path.write_bytes(path.read_bytes()[: MIB // 3])
    refuses(root, StoreLayoutError, str(path), f"expected {MIB} bytes", f"found {MIB // 3}")


def test_files_must_have_the_size_that_the_broker_is_configured_for(tmp_path: Path) -> None:
    root = make_store(tmp_path / "s", 0, 100)
    refuses(
        root,
        StoreLayoutError,
        file_name(0),
        "expected 200 bytes as configured, found 100",
        mappedFileSizeCommitLog="200",
    )


@pytest.mark.parametrize("name", ["notes.txt", "000000000000000001", "+0000000000000000200", "x" * 20])
def test_a_file_that_is_no_segment_is_an_error(tmp_path: Path, name: str) -> None:
    root = make_store(tmp_path / "s", 0, 100)
    (root / "commitlog" / name).write_bytes(bytes(100))
    refuses(root, StoreLayoutError, name, "20 digits")


def test_an_offset_between_files_is_an_error(tmp_path: Path) -> None:
    refuses(make_store(tmp_path / "s", 50, 150), StoreLayoutError, file_name(50), "multiple")


def test_one_base_offset_on_two_paths_names_both_files(tmp_path: Path) -> None:
    root = make_store(tmp_path / "s", 0, 100, directory="a")
    make_store(root, 100, 200, directory="b")
    refuses(
        root,
        StoreLayoutError,
        f"a/{file_name(100)}",
        f"b/{file_name(100)}",
        "twice",
        storePathCommitLog=f"{root}/a,{root}/b",
    )


def test_a_last_file_of_zero_length_does_not_count(tmp_path: Path) -> None:
    root = make_store(tmp_path / "s", 0, 100)
    (root / "commitlog" / file_name(200)).write_bytes(b"")
    assert [file.base_offset for file in list_segments(layout_of(root))] == [0, 100]


def test_an_empty_file_in_the_middle_is_an_error(tmp_path: Path) -> None:
    root = make_store(tmp_path / "s", 0, 100, 200)
    (root / "commitlog" / file_name(100)).write_bytes(b"")
    refuses(root, StoreLayoutError, file_name(100), "found 0")


@pytest.mark.parametrize(
    ("overrides", "kind"),
    [
        ({"storeType": "defaultRocksDB"}, "RocksDB consume queue"),
        ({"rocksdbCQDoubleWriteEnable": "true"}, "RocksDB consume queue"),
        ({"enableDLegerCommitLog": "true"}, "DLedger commitlog"),
        ({"configManagerVersion": "v2"}, "RocksDB configuration"),
    ],
)
def test_a_configured_layout_that_we_do_not_know_is_refused_by_name(
    tmp_path: Path, overrides: dict[str, str], kind: str
) -> None:
    refuses(make_store(tmp_path / "s", 0), UnsupportedLayoutError, kind, **overrides)


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("consumequeue/CURRENT", "RocksDB consume queue"),
        ("config/rdb/CURRENT", "RocksDB configuration"),
        ("config/consumerOffsets/CURRENT", "RocksDB configuration"),
        ("dledger-n0/data/00000000000000000000", "DLedger commitlog"),
        ("compaction/compactionLog/topic/0/00000000000000000000", "compaction topics"),
        ("compaction/compactionCq/topic/0/00000000000000000000", "compaction topics"),
    ],
)
def test_a_layout_that_we_do_not_know_is_recognised_by_its_files(
    tmp_path: Path, file: str, kind: str
) -> None:
    root = make_store(tmp_path / "s", 0)
    (root / file).parent.mkdir(parents=True)
    (root / file).write_bytes(b"x")
    refuses(root, UnsupportedLayoutError, kind, file.split("/")[0])


def test_what_a_broker_with_compaction_enabled_leaves_behind_is_accepted(tmp_path: Path) -> None:
    root = make_store(tmp_path / "s", 0)
    (root / "compaction/compactionLog").mkdir(parents=True)
    (root / "compaction/position-checkpoint").write_text('{"empty":true}')
    assert len(list_segments(layout_of(root))) == 1


def test_a_file_longer_than_a_broker_can_map_is_an_error(tmp_path: Path) -> None:
    root = make_store(tmp_path / "s", 0)
    os.truncate(root / "commitlog" / file_name(0), 40 << 30)
    refuses_without_reading(root, "expected at most 2147483647 bytes, found 42949672960")


def test_an_offset_beyond_a_long_is_an_error(tmp_path: Path) -> None:
    root = make_store(tmp_path / "s", 1 << 63)
    refuses(root, StoreLayoutError, file_name(1 << 63), "ends below offset 9223372036854775807")


@pytest.mark.parametrize("kind", ["pipe", "device", "loop"])
def test_what_is_no_ordinary_file_is_an_error_at_once(tmp_path: Path, kind: str) -> None:
    root = make_store(tmp_path / "s", 0, 100)
    path = root / "commitlog" / file_name(200)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path)
    refuses_without_reading(root, "an ordinary file" if kind == "pipe" else "not followed below a store")


def refuses_without_reading(root: Path, part: str) -> None:
    with pytest.raises(StoreLayoutError, match=part):
        list_segments(layout_of(root))


@pytest.mark.parametrize(
    "key", ["rocksdbCQDoubleWriteEnable", "rocksdbCQSelectiveDoubleWriteEnable", "combineCQUseRocksdbForLmq"]
)
def test_consume_queues_in_rocksdb_are_refused_by_their_setting(tmp_path: Path, key: str) -> None:
    refuses(
        make_store(tmp_path / "s", 0), UnsupportedLayoutError, "RocksDB consume queue", key, **{key: "true"}
    )


@pytest.mark.parametrize("directory", ["consumequeue_rocksdb", "consumequeue", "config/subscriptionGroups"])
def test_consume_queues_and_configuration_in_rocksdb_are_refused_by_their_files(
    tmp_path: Path, directory: str
) -> None:
    root = make_store(tmp_path / "s", 0)
    (root / directory).mkdir(parents=True)
    (root / directory / "CURRENT").write_text("MANIFEST-000005\n")
    refuses(root, UnsupportedLayoutError, "RocksDB", f"{directory}/CURRENT")


def test_a_kind_of_store_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    refuses(make_store(tmp_path / "s", 0), UnsupportedLayoutError, "storeType=combine", storeType="combine")


def test_links_to_a_store_and_to_its_directories_are_resolved_once(tmp_path: Path) -> None:
    real = make_store(tmp_path / "disk", 0, 100)
    queues = tmp_path / "other-disk" / "queues"
    queues.mkdir(parents=True)
    (real / "consumequeue").symlink_to(queues)
    (tmp_path / "store").symlink_to(real)
    layout = layout_of(tmp_path / "store")
    assert layout.root == real
    assert layout.consumequeue == queues
    assert paths_of(layout) == tuple(real / "commitlog" / file_name(base) for base in (0, 100))


@pytest.mark.parametrize("size", [100, 0])
def test_a_segment_that_is_a_symbolic_link_is_refused(tmp_path: Path, size: int) -> None:
    root = make_store(tmp_path / "store", 0, 100)
    target = tmp_path / "elsewhere"
    target.write_bytes(bytes(size))
    (root / "commitlog" / file_name(200)).symlink_to(target)
    refuses(root, StoreLayoutError, file_name(200), f"symbolic link to {target}", "Nothing was changed")


def test_a_log_of_another_store_is_refused_by_name(tmp_path: Path) -> None:
    mine, theirs = make_store(tmp_path / "mine", 0), make_store(tmp_path / "theirs", 0)
    (mine / "lock").touch()
    (theirs / "lock").touch()
    log = theirs / "commitlog"
    expected = f"{theirs} has a lock of its own"
    refuses(mine, StoreLayoutError, expected, storePathCommitLog=str(log))
    refuses(mine, StoreLayoutError, expected, storePathCommitLog=f"{mine}/commitlog,{log}")
    (mine / "commitlog" / file_name(0)).unlink()
    (mine / "commitlog").rmdir()
    (mine / "commitlog").symlink_to(log)
    refuses(mine, StoreLayoutError, expected)


def test_queues_of_another_store_are_refused_by_name(tmp_path: Path) -> None:
    mine, theirs = make_store(tmp_path / "mine", 0), make_store(tmp_path / "theirs", 0)
    (theirs / "consumequeue").mkdir()
    (theirs / "lock").touch()
    (mine / "consumequeue").symlink_to(theirs / "consumequeue")
    refuses(mine, StoreLayoutError, f"{theirs} has a lock of its own")


def test_a_log_beside_its_store_is_the_stores_own(tmp_path: Path) -> None:
    root = make_store(tmp_path / "store")
    log = make_store(tmp_path, 0, directory="log") / "log"
    (root / "lock").touch()
    assert layout_of(root, storePathCommitLog=str(log)).log_paths == (log,)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_a_link_in_a_store_leads_only_where_its_owner_may_delete(tmp_path: Path) -> None:
    root = make_store(tmp_path / "store", 0)
    queues = tmp_path / "queues"
    queues.mkdir()
    (root / "consumequeue").symlink_to(queues)
    os.lchown(root / "consumequeue", 3000, 3000)
    refuses(root, StoreLayoutError, "a link of uid 3000", "chown -h root")
    os.chown(queues, 3000, 3000)
    assert layout_of(root).consumequeue == queues


def test_a_containers_log_path_alone_names_the_setting_that_says_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    elsewhere = {"storePathCommitLog": "/home/rocketmq/store/commitlog"}
    with pytest.raises(StoreNotFoundError) as caught:
        resolve_layout(load_broker_config(None, elsewhere, root=tmp_path))
    said = f"give the paths on this host: --set storePathCommitLog={tmp_path / 'commitlog'}"
    assert said in str(caught.value)
    (tmp_path / "commitlog").rmdir()
    with pytest.raises(StoreNotFoundError) as caught:
        resolve_layout(load_broker_config(None, elsewhere, root=tmp_path))
    assert "--set" not in str(caught.value)


ROCKSDB = {"storeType": "defaultRocksDB"}


@pytest.mark.parametrize(
    ("overrides", "file"),
    [
        (ROCKSDB, ""),
        ({"configManagerVersion": "v2"}, ""),
        ({}, "consumequeue/CURRENT"),
        ({}, "compaction/compactionLog/topic/0/00000000000000000000"),
    ],
)
def test_what_leaves_the_log_as_it_is_can_be_archived(
    tmp_path: Path, overrides: dict[str, str], file: str
) -> None:
    root = make_store(tmp_path / "s", 0)
    if file:
        (root / file).parent.mkdir(parents=True)
        (root / file).touch()
    found = resolve_layout(load_broker_config(None, overrides, root=root), to_archive=True)
    assert "leave deleting to its broker" in found.archive_only
    assert len(list_segments(found)) == 1
    with pytest.raises(UnsupportedLayoutError, match="Archive its log all the same"):
        found.check_cleanable()


@pytest.mark.parametrize("overrides", [{}, ROCKSDB, {"configManagerVersion": "v2"}])
@pytest.mark.parametrize("by", ["setting", "file"])
def test_another_log_is_refused_whatever_else_there_is(
    tmp_path: Path, overrides: dict[str, str], by: str
) -> None:
    root = make_store(tmp_path / "s", 0)
    if by == "file":
        (root / "dledger-n0").mkdir()
    else:
        overrides = {**overrides, "enableDLegerCommitLog": "true"}
    with pytest.raises(UnsupportedLayoutError, match="DLedger commitlog") as refused:
        resolve_layout(load_broker_config(None, overrides, root=root), to_archive=True)
    assert "all the same" not in str(refused.value)


@pytest.mark.parametrize(
    ("conf", "overrides", "has_epochs", "expected"),
    [
        ("enableControllerMode=true", {}, False, True),
        ("enableControllerMode=false", {}, True, False),
        ("", {}, True, True),
        ("", {}, False, False),
        (None, {"enableControllerMode": "true"}, False, True),
        (None, {"enableControllerMode": "false"}, True, False),
        (None, {}, True, True),
        (None, {}, False, False),
    ],
)
def test_a_controller_is_known_by_the_settings_or_by_what_lies_beside_the_log(
    tmp_path: Path, conf: str | None, overrides: dict[str, str], has_epochs: bool, expected: bool
) -> None:
    root = make_store(tmp_path / "store", 0)
    if has_epochs:
        (root / "epochFileCheckpoint").write_text("1-0\n")
    path = None if conf is None else tmp_path / "broker.conf"
    if path is not None:
        path.write_text(f"{conf}\n")
    config = load_broker_config(path, overrides, root=root)
    assert has_controller(config, resolve_layout(config)) is expected
