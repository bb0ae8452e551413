"""The demo of Kafka: why segments stay, archive with proof, and a lost log that a broker serves again.

Each step is a command of this package, shown as a person would type it. Afterwards files, lake and broker are
compared, without trusting what the commands said.
"""

from __future__ import annotations

import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

from demo.brokers.jvm import Jars
from demo.brokers.kafka import find_jars
from demo.checks import DemoCheck, file_hashes, tell_checks
from demo.dag_run import Say
from demo.directory import clear, run_demo_in
from demo.kafka_served import check_served
from demo.shell import Shell
from storage_engine.core.extras import KAFKA
from storage_engine.exceptions import BadInputError
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.soundness.receipts import list_stores, receipts

_ARCHIVE = Path(__file__).parents[1] / "tests" / "fixtures" / "kafka" / "demo-node.tar.xz"
_PLACE = "@DIR@"
"""Stands in the sample's settings for where it is unpacked."""
_NAMES = ("node", "lake", "lost", "restored")
_LOST = "payments-0"
_NOT_URGENT, _URGENT = 0, 1


def run_demo_kafka(directory: Path, say: Say, tell: Say) -> int:
    """Run the demo in ``directory``, afresh.

    :param say: receives progress, line by line.
    :param tell: receives what commands print and the summary, line by line.
    :return: exit status: 0 if everything held, 1 if something did not, 128 + signal number when
        interrupted.
    :raises BadInputError: the directory holds something that is not an earlier demo.
    :raises StorageEngineError: a command failed.
    """
    return run_demo_in(directory, _NAMES, say, lambda place: _run(place, say, tell))


def _run(directory: Path, say: Say, tell: Say) -> int:
    started = time.monotonic()
    clear(directory, _NAMES)
    node, lake_dir, restored = (directory / name for name in ("node", "lake", "restored"))
    properties = _unpack(node)
    say(f"sample node, written by a real Kafka broker, with two log directories: {properties}")
    shell = Shell(tell)
    say("why is it not deleted, and what is wrong?")
    shell.run("plan", properties)
    shell.run("doctor", properties, expected=(_NOT_URGENT, _URGENT))
    say("archive what is closed and replicated, with proof")
    shell.run("init-lake", "--lake", lake_dir, "--broker-type", "kafka")
    shell.run("archive", properties, "--lake", lake_dir, "--broker-type", "kafka")
    shell.run("validate", properties, "--lake", lake_dir)
    lost = directory / "lost" / _LOST
    lost.parent.mkdir()
    (node / "second" / _LOST).rename(lost)
    say(f"a disk fails: log {_LOST} is lost (it is now in {lost.parent})")
    shell.run("restore", "--lake", lake_dir, "--to", restored, "--log", _LOST, "--for-store", properties)
    lake = open_lake(LakeConfig.local(lake_dir))
    checks = [*_check_files(lake, node, lost, restored / _LOST)]
    jars = _jars(directory, say)
    if jars is not None:
        say("a real broker opens the restored directory beside the others")
        checks += check_served(lake, node, restored, _LOST, jars)
    _sum_up(checks, restored, lake_dir, tell)
    tell(f"Took {time.monotonic() - started:.0f} s.")
    return 0 if all(check.holds for check in checks) else 1


def _unpack(node: Path) -> Path:
    """Unpack the sample. :return: its ``server.properties``."""
    node.mkdir()
    with tarfile.open(_ARCHIVE) as archive:
        archive.extractall(node, filter="data")
    properties = node / "server.properties"
    properties.write_text(properties.read_text().replace(_PLACE, str(node)))
    return properties


def _jars(directory: Path, say: Say) -> Jars | None:
    """Have what starts a broker and reads from it; None: something isn't there, which is said."""
    try:
        KAFKA.require("the part with a broker")
        return find_jars(directory)
    except BadInputError as error:
        say(f"no broker is started: {error}")
        return None


def _check_files(lake: Lake, node: Path, lost: Path, restored: Path) -> tuple[DemoCheck, ...]:
    """Compare the lake's receipts and the restored files with the node's own."""
    (store,) = list_stores(lake)
    rows = receipts(lake, store.store_id)
    directories = {path.name: path for path in (*node.glob("first/*-*"), *node.glob("second/*-*"), lost)}
    proven = {
        log: {f"{row.base_offset:020d}.log": row.sha256 for row in rows if row.log == log}
        for log in {row.log for row in rows}
    }
    on_disk = {log: file_hashes(directories[log].glob("*.log")) for log in proven}
    same = all(on_disk[log][name] == sha256 for log in proven for name, sha256 in proven[log].items())
    returned = file_hashes(restored.glob("0*"))
    originals = {name: sha256 for name, sha256 in file_hashes(lost.glob("0*")).items() if name in returned}
    return (
        DemoCheck(
            same, f"the lake has {len(rows)} segments of {len(proven)} logs, each with its file's SHA-256"
        ),
        DemoCheck(
            bool(returned) and returned == originals,
            f"the {len(returned)} restored files of {_LOST} are those that were lost, byte for byte",
        ),
    )


def _sum_up(checks: Sequence[DemoCheck], restored: Path, lake_dir: Path, tell: Say) -> None:
    tell_checks(checks, "files, lake and broker alone", tell)
    tell(f"Lake      {lake_dir}")
    tell(f"Restored  {restored}")
    tell("Everything held." if all(check.holds for check in checks) else "NOT everything held.")
    tell("Next: storage-engine doctor STORE, for the server.properties of a node of your own")
