"""Stores of brokers with one name and cluster share a lake: what is equal is archived once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.test_disk_gone import SEGMENT_BYTES, SIZES, _write
from tests.rocketmq.remoting.test_masters import Machines

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plainly")]


@pytest.fixture
def conf(tmp_path: Path) -> Iterator[Path]:
    """Of each broker of a pair, both stopped; their name server knows of no other."""
    path = tmp_path / "broker.conf"
    with ExitStack() as stack:
        server = Machines(stack).name_server({})
        settings = {"brokerClusterName": "c", "brokerName": "b", "namesrvAddr": server, **SIZES}
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        yield path


@pytest.fixture
def run(cli, lake, conf):
    """Run a command on a store of the pair."""

    def run(command: str, store: Path, *words: object, code: int = 0):
        done = cli(command, store, "--lake", lake, "--broker-conf", conf, *words)
        assert done.exit_code == code, (words, done.out, done.err)
        return done

    return run


def bases(done) -> list[int]:
    return [row["base_offset"] for row in done.json["archived"]]


def test_what_one_has_archived_counts_for_the_other(run, store_copy, expire, tmp_path, conf) -> None:
    one, other = store_copy("clean-stop"), tmp_path / "other"
    shutil.copytree(one, other)
    expire(other)
    assert len(bases(run("archive", one, "--json"))) == 7
    assert bases(run("archive", other, "--json")) == []
    clean, settings = ("clean", other, "--manual", "--max-segments", 2), conf.read_text()
    # The lake tells of the other: without a name server nobody knows whether it is the master.
    conf.write_text(f"{settings}namesrvAddr=127.0.0.1:1\n")
    assert "expected to know that this broker is the only master of its name" in run(*clean, code=1).err
    assert len(list((other / "commitlog").iterdir())) == 8
    conf.write_text(settings)
    run(*clean)
    assert min(int(path.name) for path in (other / "commitlog").iterdir()) == 2 * SEGMENT_BYTES
    run("verify", other)


def test_what_is_damaged_of_the_other_is_archived_before_it_goes(
    run, store_copy, expire, lake, tmp_path
) -> None:
    one, other = store_copy("clean-stop"), tmp_path / "other"
    shutil.copytree(one, other)
    expire(other)
    run("archive", one)
    assert bases(run("archive", other, "--json")) == []
    for path in (lake / "warehouse").rglob("messages/**/*.parquet"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    run("clean", other, "--manual", "--max-segments", 2)
    assert min(int(path.name) for path in (other / "commitlog").iterdir()) == 2 * SEGMENT_BYTES
    (checked,) = run("verify", other, "--json").json["stores"]
    assert checked["receipt_count"] == 2


def test_others_of_the_same_names_are_no_replicas(run, store_copy) -> None:
    assert len(bases(run("archive", store_copy("clean-stop"), "--json"))) == 7
    assert len(bases(run("archive", store_copy("edge-frames"), "--json"))) == 2


@pytest.mark.parametrize("is_credited_before", [True, pytest.param(False, marks=pytest.mark.again)])
def test_one_that_went_on_otherwise_is_adopted(
    cli, run, store_copy, lake, tmp_path, conf, is_credited_before
) -> None:
    one, other = store_copy("clean-stop"), tmp_path / "other"
    run("archive", one)
    words = ("--to", other, "--to-offset", 3 * SEGMENT_BYTES, "--for-store", conf)
    restored = cli("restore", "--lake", lake, *words)
    assert restored.exit_code == 0, restored.err
    if is_credited_before:
        _write(other, 20)
        assert bases(run("archive", other, "--json")) == []
    _write(other, 400)
    assert "its replica of store" in run("archive", other, code=1).err
    run("adopt", other, "--reason", "it was promoted")
    assert bases(run("archive", other, "--json")) == [3 * SEGMENT_BYTES]


def test_one_that_went_on_otherwise_behind_its_own_is_refused(run, store_copy, tmp_path) -> None:
    one, other = store_copy("clean-stop"), tmp_path / "other"
    shutil.copytree(one, other)
    assert bases(run("archive", other, "--budget", "3MiB", "--json")) == [0, SEGMENT_BYTES, 2 * SEGMENT_BYTES]
    run("archive", one)
    for path in sorted((other / "commitlog").iterdir())[3:]:
        path.unlink()
    for name in ("consumequeue", "index"):
        shutil.rmtree(other / name)
    (other / "checkpoint").unlink()
    _write(other, 400)
    assert "its replica of store" in run("archive", other, code=1).err


def test_what_nobody_compared_is_lost_whatever_its_names(run, store_copy) -> None:
    run("archive", store_copy("clean-stop"))
    other = store_copy("edge-frames")
    _write(other, 1500)
    assert bases(run("archive", other, "--budget", "2MiB", "--json")) == [0, SEGMENT_BYTES]
    for number in range(4):
        (other / "commitlog" / f"{number * SEGMENT_BYTES:020d}").unlink()
    (checked,) = run("verify", other, "--json", code=1).json["stores"]
    lost = [(row["start_offset"], row["end_offset"]) for row in checked["ranges"] if row["where"] == "LOST"]
    assert lost == [(2 * SEGMENT_BYTES, 4 * SEGMENT_BYTES)]
    assert "ExpectNoLostRanges" in run("validate", other, code=1).out


def test_what_went_before_equal_segments_is_in_the_lake(run, store_copy, tmp_path) -> None:
    one, other = store_copy("clean-stop"), tmp_path / "other"
    shutil.copytree(one, other)
    assert bases(run("archive", other, "--budget", "1MiB", "--json")) == [0]
    run("archive", one)
    for number in range(3):
        (other / "commitlog" / f"{number * SEGMENT_BYTES:020d}").unlink()
    assert bases(run("archive", other, "--json")) == []
    (checked,) = run("verify", other, "--json").json["stores"]
    assert {row["where"] for row in checked["ranges"]} == {"ARCHIVED", "LOCAL"}
    (other / "commitlog" / f"{3 * SEGMENT_BYTES:020d}").unlink()
    run("verify", other)
    run("validate", other)


@pytest.mark.again
def test_a_broker_that_gets_another_name_keeps_its_log(run, store_copy, conf, expire) -> None:
    store = store_copy("clean-stop")
    run("archive", store, "--budget", "3MiB")
    conf.write_text(conf.read_text().replace("brokerName=b", "brokerName=d"))
    run("archive", store)
    expire(store)
    run("clean", store, "--manual", "--max-segments", 5)
    (checked,) = run("verify", store, "--json").json["stores"]
    assert {row["log"] for row in checked["ranges"]} == {"commitlog"}
    assert {row["status"] for row in checked["ranges"]} == {"OK"}
    run("validate", store, "--full")


@pytest.mark.parametrize("own_budget", ["1MiB", ""])
def test_what_the_other_has_archived_is_no_loss_to_accept(run, store_copy, tmp_path, own_budget) -> None:
    """Also where none of this store's own receipts says which log it is."""
    one, other = store_copy("clean-stop"), tmp_path / "other"
    shutil.copytree(one, other)
    if own_budget:
        run("archive", other, "--budget", own_budget)
    run("archive", one)
    assert bases(run("archive", other, "--json")) == []
    for number in range(3):
        (other / "commitlog" / f"{number * SEGMENT_BYTES:020d}").unlink()
    (checked,) = run("verify", other, "--json").json["stores"]
    assert {row["where"] for row in checked["ranges"]} <= {"ARCHIVED", "LOCAL"}
    lost = ("--from", SEGMENT_BYTES, "--to", 3 * SEGMENT_BYTES, "--reason", "r")
    refused = run("accept-loss", other, *lost, code=2)
    assert "LOST or UNKNOWN are: none" in refused.err
    assert "Nothing was recorded" in refused.err
    run("validate", other)
