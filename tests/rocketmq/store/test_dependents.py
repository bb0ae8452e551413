from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_engine.exceptions import CorruptFileError, StoreLayoutError
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.plan import DependentFile
from storage_engine.rocketmq.format import batch_consume_queue, consume_queue
from storage_engine.rocketmq.format.broker_config import BrokerConfig, load_broker_config
from storage_engine.rocketmq.format.consume_queue import iter_queues
from storage_engine.rocketmq.format.layout import LOG, StoreLayout, resolve_layout
from storage_engine.rocketmq.format.mapped_files import file_name
from storage_engine.rocketmq.format.stored_files import ATTEMPTS
from storage_engine.rocketmq.store import dependents
from storage_engine.rocketmq.store.broker import open_files
from storage_engine.rocketmq.store.dependents import DependentKind, delete_dependents, expired_dependents

MIB = 1 << 20


def opened(root: Path, **overrides: str) -> tuple[StoreLayout, BrokerConfig]:
    config = load_broker_config(None, overrides, root=root)
    return resolve_layout(config), config


def bytes_of(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def paths(files: tuple[DependentFile, ...]) -> set[Path]:
    return {Path(file.facts.path) for file in files}


@pytest.mark.parametrize("min_offset", [0, 1, MIB, 2 * MIB, 5 * MIB, 7 * MIB])
def test_consume_queue_files_whose_every_message_is_gone_expire_but_never_the_last(
    store_copy: Callable[[str], Path], min_offset: int
) -> None:
    root = store_copy("clean-stop")
    before = bytes_of(root)
    found = expired_dependents(*opened(root), min_offset)
    assert bytes_of(root) == before
    expected = set()
    for queue in iter_queues(root / "consumequeue"):
        *files, _ = consume_queue.FORMAT.files(queue.path)
        expected |= {
            file.path
            for file in files
            if int(consume_queue.FORMAT.read_file(file)["offset"][-1]) < min_offset
        }
    queues = tuple(file for file in found if file.kind is DependentKind.CONSUME_QUEUE)
    assert paths(queues) == expected
    assert bool(expected) == (min_offset > MIB)


@pytest.mark.parametrize("empty_files", [1, 2])
def test_a_queue_ends_in_its_last_file_with_an_entry_whatever_empty_ones_lie_behind(
    store_copy: Callable[[str], Path], empty_files: int
) -> None:
    """A broker that starts removes them (ConsumeQueue#recover, #truncateDirtyFiles)."""
    root = store_copy("clean-stop")
    before = expired_dependents(*opened(root), 1 << 40)
    for queue in iter_queues(root / "consumequeue"):
        last = consume_queue.FORMAT.files(queue.path)[-1]
        assert consume_queue.FORMAT.entry(last, consume_queue.FORMAT.capacity(last) - 1) is None
        for number in range(empty_files):
            path = queue.path / file_name(last.end_offset + number * last.size_bytes)
            path.write_bytes(bytes(last.size_bytes))
    assert expired_dependents(*opened(root), 1 << 40) == before


@pytest.mark.parametrize("repaired_after", [1, ATTEMPTS - 1, ATTEMPTS])
def test_what_a_running_broker_writes_to_is_looked_at_again_before_it_is_left_out(
    store_copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, repaired_after: int
) -> None:
    root = store_copy("clean-stop")
    store = open_files(StoreSettings(str(root)))
    expected = store.dependents.find({LOG: 1 << 40})
    oldest = min(path for path in paths(expected) if "/consumequeue/" in str(path))
    whole, pauses = oldest.read_bytes(), 0
    oldest.write_bytes(whole[:20])

    def pause(_: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses == repaired_after:
            oldest.write_bytes(whole)

    monkeypatch.setattr(dependents.time, "sleep", pause)
    found = replace(store.dependents, attempts=ATTEMPTS).find({LOG: 1 << 40})
    if repaired_after < ATTEMPTS:
        assert ({*paths(found)}, store.dependents.unread) == ({*paths(expected)}, ())
    else:
        assert paths(found) == {path for path in paths(expected) if path.parent != oldest.parent}
        (why,) = store.dependents.unread
        assert str(oldest) in why
    assert pauses == min(repaired_after, ATTEMPTS - 1)


@pytest.mark.parametrize("min_offset", [0, MIB, 5 * MIB, 1 << 40])
def test_index_files_that_end_below_the_min_offset_expire_but_never_the_last(
    store_copy: Callable[[str], Path], min_offset: int
) -> None:
    root = store_copy("clean-stop")
    files = sorted((root / "index").iterdir())
    ends = [struct.unpack_from(">q", path.read_bytes(), 24)[0] for path in files]
    expected = [path for path, end in zip(files[:-1], ends, strict=False) if end < min_offset]
    found = expired_dependents(*opened(root), min_offset)
    assert [Path(file.facts.path) for file in found if file.kind is DependentKind.INDEX] == expected


def test_what_is_left_after_deletion_is_what_the_broker_would_leave(
    store_copy: Callable[[str], Path],
) -> None:
    root = store_copy("clean-stop")
    layout, config = opened(root)
    found = expired_dependents(layout, config, 5 * MIB)
    before = bytes_of(root)
    assert paths(delete_dependents(layout, found)) == paths(found)
    assert set(bytes_of(root)) == set(before) - {str(path) for path in paths(found)}
    assert expired_dependents(layout, config, 5 * MIB) == ()
    assert delete_dependents(layout, found) == ()  # again, after it was interrupted
    for queue in iter_queues(layout.consumequeue):
        assert consume_queue.FORMAT.files(queue.path)


def test_files_go_oldest_first_and_their_directory_is_fsynced_after_them(
    store_copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, config = opened(store_copy("clean-stop"))
    found = expired_dependents(layout, config, 5 * MIB)
    calls: list[tuple[str, Path]] = []
    unlink, fsync = os.unlink, os.fsync

    def traced_unlink(path: str, *, dir_fd: int) -> None:
        calls.append(("unlink", Path(f"/proc/self/fd/{dir_fd}").readlink() / path))
        unlink(path, dir_fd=dir_fd)

    def traced_fsync(fd: int) -> None:
        calls.append(("fsync", Path(f"/proc/self/fd/{fd}").readlink()))
        fsync(fd)

    monkeypatch.setattr(os, "unlink", traced_unlink)
    monkeypatch.setattr(os, "fsync", traced_fsync)
    delete_dependents(layout, tuple(reversed(found)))
    directories = {path.parent for path in paths(found)}
    for directory in directories:
        own = [call for call in calls if directory in (call[1], call[1].parent)]
        names = [path.name for kind, path in own if kind == "unlink"]
        assert names == sorted(names)
        assert own[-1] == ("fsync", directory)


def test_a_full_file_without_its_last_entry_is_an_error_and_nothing_changes(
    store_copy: Callable[[str], Path],
) -> None:
    root = store_copy("clean-stop")
    path = root / "consumequeue/ledger_ordered/0" / file_name(6000)
    path.write_bytes(path.read_bytes()[:-20] + bytes(20))
    before = bytes_of(root)
    with pytest.raises(CorruptFileError, match=f"ledger_ordered/0/{file_name(6000)}: offset 5980"):
        expired_dependents(*opened(root), 7 * MIB)
    assert bytes_of(root) == before


@pytest.mark.parametrize("size", [10, 5999])
def test_a_torn_dependent_is_an_error_and_nothing_changes(
    store_copy: Callable[[str], Path], size: int
) -> None:
    root = store_copy("clean-stop")
    path = root / "consumequeue/orders/3" / file_name(0)
    path.write_bytes(bytes(size))
    before = bytes_of(root)
    with pytest.raises(CorruptFileError, match=r"orders/3/0+"):
        expired_dependents(*opened(root, mappedFileSizeConsumeQueue="6000"), MIB)
    assert bytes_of(root) == before


def test_a_torn_index_file_is_an_error(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("clean-stop")
    path = sorted((root / "index").iterdir())[0]
    path.write_bytes(b"")
    with pytest.raises(CorruptFileError, match=f"{path.name}: expected a header"):
        expired_dependents(*opened(root), MIB)


def write_queue(
    directory: Path, dtype: np.dtype[np.void], per_file: int, rows: list[tuple[int, ...]]
) -> None:
    """Write rows as a queue's files, the last one filled up with zeros."""
    directory.mkdir(parents=True)
    entries = np.zeros(-(-len(rows) // per_file) * per_file, dtype)
    entries[: len(rows)] = rows
    for i in range(0, len(entries), per_file):
        (directory / file_name(i * dtype.itemsize)).write_bytes(entries[i : i + per_file].tobytes())


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(count=st.integers(1, 20), per_file=st.integers(1, 5), gone=st.integers(0, 25))
def test_both_kinds_of_queue_follow_the_same_rule(
    tmp_path_factory: pytest.TempPathFactory, count: int, per_file: int, gone: int
) -> None:
    root = tmp_path_factory.mktemp("store")
    (root / "commitlog").mkdir()
    write_queue(
        root / "consumequeue/t/0", consume_queue.DTYPE, per_file, [(i * 100, 100, 0) for i in range(count)]
    )
    write_queue(
        root / "batchconsumequeue/b/0",
        batch_consume_queue.DTYPE,
        per_file,
        [(i * 100, 100, 0, 1, i * 3, 3, -1, 0) for i in range(count)],
    )
    found = expired_dependents(*opened(root), gone * 100)
    files = -(-count // per_file)
    expected = min(gone // per_file, files - 1)
    for kind in (DependentKind.CONSUME_QUEUE, DependentKind.BATCH_CONSUME_QUEUE):
        names = [Path(file.facts.path).name for file in found if file.kind is kind]
        assert len(names) == expected
        assert names == sorted(names)


EXT = struct.pack(">hqqh", 20, 5, 1, 0)


def extended_store(root: Path, count: int) -> Path:
    """A queue of ``count`` messages with a unit of 20 bytes each, two units in an extension file of 44."""
    (root / "commitlog").mkdir(parents=True)
    addresses = [-(2**63) + i // 2 * 44 + i % 2 * 20 for i in range(count)]
    rows = [(i * 100, 100, address) for i, address in enumerate(addresses)]
    write_queue(root / "consumequeue/t/0", consume_queue.DTYPE, 4, rows)
    directory = root / "consumequeue_ext/t/0"
    directory.mkdir(parents=True)
    for i in range(0, count, 2):
        (directory / file_name(i // 2 * 44)).write_bytes(EXT + EXT + b"\xff\xff\0\0")
    return root


def extensions(files: tuple[DependentFile, ...]) -> list[int]:
    return [int(Path(f.facts.path).name) for f in files if f.kind is DependentKind.CONSUME_QUEUE_EXT]


@pytest.mark.parametrize(("gone", "expected"), [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (9, 4)])
def test_extensions_that_end_before_the_first_unit_left_expire(
    tmp_path: Path, gone: int, expected: int
) -> None:
    # a file that ends just where the first unit left begins stays: the broker asks for "below"
    found = expired_dependents(*opened(extended_store(tmp_path / "s", 10)), gone * 100)
    assert extensions(found) == [i * 44 for i in range(expected)]


def test_extensions_of_a_queue_without_messages_stay(tmp_path: Path) -> None:
    assert extensions(expired_dependents(*opened(extended_store(tmp_path / "s", 10)), 1 << 40)) == []


def test_extensions_stay_where_the_broker_is_told_not_to_use_them(tmp_path: Path) -> None:
    root = extended_store(tmp_path / "s", 10)
    conf = tmp_path / "broker.conf"
    for text, expected in (("", []), ("enableConsumeQueueExt=true\n", [0, 44])):
        conf.write_text(text)
        config = load_broker_config(conf, root=root)
        assert extensions(expired_dependents(resolve_layout(config), config, 500)) == expected


@pytest.mark.parametrize("level", ["topic", "queue"])
def test_queues_behind_a_symbolic_link_are_not_deleted(
    store_copy: Callable[[str], Path], tmp_path: Path, level: str
) -> None:
    layout, config = opened(store_copy("clean-stop"))
    theirs = tmp_path / "theirs"
    found = expired_dependents(layout, config, 5 * MIB)
    queue = next(file for file in paths(found) if file.is_relative_to(layout.consumequeue)).parent
    moved = queue if level == "queue" else queue.parent
    moved.rename(theirs)
    moved.symlink_to(theirs)
    before = bytes_of(theirs)
    with pytest.raises(StoreLayoutError, match=f"symbolic link to {theirs}"):
        expired_dependents(layout, config, 5 * MIB)
    # put there after it was planned, as between two looks
    with pytest.raises(StoreLayoutError, match="symbolic link"):
        delete_dependents(layout, found)
    assert bytes_of(theirs) == before


def test_an_index_file_that_is_a_symbolic_link_is_refused(
    store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    layout, config = opened(store_copy("clean-stop"))
    index = sorted(layout.index.iterdir())[0]
    index.rename(tmp_path / "theirs")
    index.symlink_to(tmp_path / "theirs")
    with pytest.raises(StoreLayoutError, match="symbolic link"):
        expired_dependents(layout, config, 5 * MIB)


def test_files_outside_the_store_are_not_deleted(store_copy: Callable[[str], Path], tmp_path: Path) -> None:
    layout, config = opened(store_copy("clean-stop"))
    (file, *_) = expired_dependents(layout, config, 5 * MIB)
    theirs = tmp_path / Path(file.facts.path).name
    theirs.touch()
    with pytest.raises(StoreLayoutError, match="expected a directory below"):
        delete_dependents(layout, [replace(file, facts=replace(file.facts, path=str(theirs)))])
    assert theirs.exists()
