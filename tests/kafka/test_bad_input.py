"""What can be wrong with a node's directories: one error that names it, and nothing is changed anywhere."""

from __future__ import annotations

import hashlib
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kafka import batches
from tests.kafka.made_node import TRANSACTIONAL, MadeNode, batch_of, feature_level
from tests.services.command_line import run_command

_FIRST, _SECOND = f"{0:020d}.log", f"{4:020d}.log"


@dataclass(frozen=True)
class Case:
    """A fault of log ``a-0`` or of its node, and what is said of it.

    :param spoil: gets the node, and the log's directory.
    :param said: parts of the error.
    :param before: the node's own files are written behind ``spoil``, not before it.
    """

    spoil: Callable[[MadeNode, Path], object]
    said: tuple[str, ...]
    exit_code: int = 1
    before: bool = False


def change(name: str, new: Callable[[bytes], bytes]) -> Callable[[MadeNode, Path], object]:
    return lambda _, log: (log / name).write_bytes(new((log / name).read_bytes()))


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def second_batch(data: bytes) -> int:
    return int.from_bytes(data[8:12], "big") + 12


def wrong_index(_: MadeNode, log: Path) -> None:
    written = batch_of(0, 3, producer=7, attributes=TRANSACTIONAL)
    (log / _FIRST).write_bytes(written + batches.marker(0, 7, 3))
    (log / _FIRST).with_suffix(".txnindex").write_bytes(struct.pack(">hqqqq", 0, 7, 1, 3, 1))


CASES = {
    "a torn batch": Case(
        change(_FIRST, lambda data: data[:-9]), (f"a-0/{_FIRST}", "at byte", "up to the end of the file")
    ),
    "a wrong CRC": Case(
        change(_FIRST, lambda data: flipped(data, second_batch(data) + 70)),
        (f"a-0/{_FIRST}", "offset ", "CRC-32C"),
    ),
    "an unknown magic": Case(
        change(_FIRST, lambda data: data[:16] + b"\x09" + data[17:]),
        (f"a-0/{_FIRST}", "at byte 0", "magic 9"),
    ),
    "a hole between segments": Case(
        lambda _, log: (log / _SECOND).unlink(),
        ("log a-0", f"a-0/{_FIRST}", "ends at offset 4", "[4, 8) is"),
        exit_code=2,
    ),
    "a transaction index that disagrees": Case(
        wrong_index,
        (
            f"a-0/{0:020d}.txnindex: at byte 0",
            "producer 7, offsets 0 to 3",
            "found producer 7, offsets 1 to 3",
        ),
        exit_code=2,
    ),
    "a checkpoint with a wrong count": Case(
        lambda node, _: (node.directories[0] / "replication-offset-checkpoint").write_text("0\n2\na 0 10\n"),
        ("logs/replication-offset-checkpoint", "expected 2 "),
    ),
    "a checkpoint of another version": Case(
        lambda node, _: (node.directories[0] / "replication-offset-checkpoint").write_text("7\n1\na 0 10\n"),
        ("logs/replication-offset-checkpoint", "found '7'"),
    ),
    "no high watermark": Case(
        lambda node, _: node.checkpoint("replication-offset-checkpoint", {}),
        ("logs/replication-offset-checkpoint", "log a-0", "found none"),
    ),
    "a log start above the end": Case(
        lambda node, _: node.checkpoint("log-start-offset-checkpoint", {"a-0": 99}),
        ("logs/a-0", "its start 99 in the checkpoint lies above its end 10"),
    ),
    "an empty segment that no cleaner made": Case(
        change(_SECOND, lambda data: b""),
        (f"a-0/{_SECOND}", "expected the records of offsets [4, 8), found an empty file"),
    ),
    "no epochs of leaders": Case(
        lambda _, log: (log / "leader-epoch-checkpoint").unlink(),
        ("a-0/leader-epoch-checkpoint", "expected the epochs of its leaders, found no file"),
    ),
    "a damaged recovery point": Case(
        lambda node, _: (node.directories[0] / "recovery-point-offset-checkpoint").write_text("9\n0\n"),
        ("logs/recovery-point-offset-checkpoint", "found '9'"),
    ),
    "a segment behind a link": Case(
        lambda node, log: (
            (log / _SECOND).rename(node.directories[1] / "moved")
            and (log / _SECOND).symlink_to(node.directories[1] / "moved")
        ),
        (f"a-0/{_SECOND}", "found a symbolic link to"),
        exit_code=2,
    ),
    "a log behind a link": Case(
        lambda node, log: log.rename(node.root / "moved") and log.symlink_to(node.root / "moved"),
        ("logs/a-0", "found a symbolic link to"),
        exit_code=2,
    ),
    "another topic id": Case(
        change("partition.metadata", lambda data: data[:-4] + b"AAAA"),
        ("a-0/partition.metadata has topic id", "and the cluster's metadata have"),
    ),
    "no topic id": Case(
        lambda _, log: (log / "partition.metadata").unlink(),
        ("a-0/partition.metadata", "expected the topic's id, found no file"),
    ),
    "one log in two directories": Case(
        lambda node, log: shutil.copytree(log, node.directories[1] / "a-0"),
        ("log a-0", "logs/a-0", "more/a-0"),
        exit_code=2,
    ),
    "newer metadata": Case(
        lambda node, _: node.more_records.append(feature_level("metadata.version", 99)),
        ("log a-0", "cleanup.policy", "metadata.version", "99"),
        before=True,
    ),
}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake that no case changes."""
    directory = tmp_path_factory.mktemp("bad") / "lake"
    assert run_command("init-lake", "--lake", directory, "--broker-type", "kafka").exit_code == 0
    return directory


def made(root: Path, case: Case) -> MadeNode:
    node = MadeNode(root, ("logs", "more"))
    log = node.add("a-0", {0: [batch_of(0), batch_of(2)], 4: [batch_of(4), batch_of(6)], 8: [batch_of(8)]})
    if case.before:
        case.spoil(node, log)
    node.write()
    if not case.before:
        case.spoil(node, log)
    return node


def state_of(directory: Path) -> dict[str, tuple[int, str]]:
    """Return files below a directory with time and digest; journal and reports keep what was refused."""
    own = ("journal", "reports")
    return {
        str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.relative_to(directory).parts[0].startswith(own)
    }


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bad_input_is_one_error_and_changes_nothing(case: Case, lake: Path, tmp_path: Path) -> None:
    node = made(tmp_path / "node", case)
    before = state_of(tmp_path), state_of(lake)
    done = run_command("archive", node.properties, "--lake", lake, "--name", tmp_path.name, "--json")
    assert done.exit_code == case.exit_code, done
    message = done.json["error"]["message"]
    for part in case.said:
        assert part in message
    assert not done.json.get("archived")
    assert (state_of(tmp_path), state_of(lake)) == before


def test_a_hole_behind_what_is_archived_is_no_end_of_it(lake: Path, tmp_path: Path) -> None:
    node = MadeNode(tmp_path / "node", ("logs",))
    log = node.add("a-0", {offset: [batch_of(offset)] for offset in range(0, 10, 2)})
    node.watermarks["a-0"] = 4
    node.write()
    command = ("archive", node.properties, "--lake", lake, "--name", tmp_path.name, "--json")
    assert len(run_command(*command).json["archived"]) == 2
    node.checkpoint("replication-offset-checkpoint", {"a-0": 10})
    (log / f"{4:020d}.log").unlink()
    done = run_command(*command)
    assert done.exit_code == 2
    assert (
        "ends at offset 4, and the next segment begins at 6: [4, 6) is missing"
        in done.json["error"]["message"]
    )


@pytest.mark.again
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_who_only_looks_is_told_and_changes_nothing(case: Case, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    assert run_command("init-lake", "--lake", lake, "--broker-type", "kafka").exit_code == 0
    node = made(tmp_path / "node", case)
    before = state_of(tmp_path / "node"), state_of(lake)
    for words in (("plan",), ("doctor",), ("doctor", "--lake", lake), ("validate", "--lake", lake)):
        name, *options = words
        done = run_command(str(name), node.properties, *options, "--json")
        assert done.exit_code in (0, 1, 2), done
        # What nobody has foreseen is told as a fault of the broker's package.
        assert "expected its package to" not in done.out, done.out
        assert done.json["kind"] in (name, "error")
    assert (state_of(tmp_path / "node"), state_of(lake)) == before
