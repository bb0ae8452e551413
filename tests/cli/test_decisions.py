"""waive, accept-loss, adopt: each needs a reason, and only what it is about may be decided."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.caching import _CacheLocator

from storage_engine.cli.options.store_argument import managed_store
from storage_engine.exceptions import BadInputError
from storage_engine.model.hold import Drift, DriftKind, HoldStatus
from storage_engine.retention.hold.holding import record_hold_drift
from storage_engine.retention.store.context import open_context
from tests.docs.code_blocks import ROOT, blocks_of

pytestmark = pytest.mark.slow

MIB = 1 << 20


@pytest.mark.parametrize("digest", ["abc", "Z" * 64, ""])
def test_what_is_no_digest_cannot_be_waived(cli, lake, files, digest: str) -> None:
    before = files(lake)
    refused = cli("waive", digest, "--lake", lake, "--reason", "x")
    assert refused.exit_code == 2
    assert "64 hexadecimal digits" in refused.err
    assert files(lake) == before


def who_decides(uid: int, **environment: str) -> str:
    code = (
        "import os, sys; from storage_engine.core.host import person; os.setuid(int(sys.argv[1]));"
        "print(person())"
    )
    told = {**os.environ, "LOGNAME": "the-cto", "USER": "the-cto", "USERNAME": "the-cto", **environment}
    done = subprocess.run(
        [sys.executable, "-c", code, str(uid)], env=told, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_who_decides_is_the_user_whose_process_it_is() -> None:
    assert "the-cto" not in who_decides(os.getuid())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_who_decides_as_root_is_named_with_who_became_root() -> None:
    assert who_decides(0, SUDO_USER="ann") == "root for ann"
    assert who_decides(0, SUDO_USER="root") == "root"
    assert who_decides(65534, SUDO_USER="ann") == "nobody"
    assert who_decides(64999) == "uid 64999"


def test_adopting_needs_a_reason_and_opens_the_next_lineage(cli, store, lake) -> None:
    assert cli("archive", store, "--lake", lake).exit_code == 0
    empty = cli("adopt", store, "--lake", lake, "--reason", " ")
    assert empty.exit_code == 2
    assert "expected a reason, found none" in empty.err
    record = cli("adopt", store, "--force", "--lake", lake, "--reason", "recovered", "--json").json
    assert record["lineage"] == 2
    assert "lineage 3" in cli("adopt", store, "--force", "--lake", lake, "--reason", "again").out


def test_a_loss_fails_validation_until_a_person_accepts_exactly_it(cli, store, lake, plainly) -> None:
    assert cli("archive", store, "--lake", lake, "--json").exit_code == 0
    assert (
        cli(
            "adopt", store, "--force", "--lake", lake, "--reason", "so that the lake has nothing of it"
        ).exit_code
        == 0
    )
    gone = Drift(DriftKind.SEGMENT_GONE, "no run deleted it.", "commitlog", 0, MIB, ("orders",))
    record_hold_drift(open_context(managed_store(store, lake)), HoldStatus(held=True, disturbances=(gone,)))
    (store / "commitlog" / f"{0:020d}").unlink()
    assert cli("validate", store, "--lake", lake).exit_code == 1

    words = ("accept-loss", store, "--lake", lake, "--reason", "seen")
    refused = cli(*words, "--from", 0, "--to", 2 * MIB)
    assert refused.exit_code == 2
    assert f"LOST or UNKNOWN are: commitlog [0, {MIB})" in refused.err
    assert cli(*words, "--from", 0, "--to", 0).exit_code == 2
    assert cli("accept-loss", store, "--lake", lake, "--reason", " ", "--from", 0, "--to", 1).exit_code == 2
    assert cli("validate", store, "--lake", lake).exit_code == 1

    half = cli(*words, "--from", 0, "--to", MIB // 2, "--json").json
    assert (half["log"], half["end_offset"], half["reason"]) == ("commitlog", MIB // 2, "seen")
    assert cli("validate", store, "--lake", lake).exit_code == 1
    assert "accepted as lost" in cli(*words, "--from", MIB // 2, "--to", MIB).out
    done = cli("validate", store, "--lake", lake)
    assert done.exit_code == 0, done.out
    assert "accepted by" in done.out


# An account of its own, by its real user id, that may read and write the test's files all the same.
RIGHTS = "+dac_override,+dac_read_search,+fowner,+chown"
SETPRIV = ("setpriv", "--inh-caps", RIGHTS, "--ambient-caps", RIGHTS, "--securebits", "+no_setuid_fixup")
ANN, BOB = 64001, 64002


def as_account(uid: int, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from storage_engine.cli.main import main; main()", *map(str, words)]
    command = [*SETPRIV, "--reuid", str(uid), *program] if uid else program
    told = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=told)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can be another user")
@pytest.mark.again
def test_a_second_account_approves_and_the_first_one_goes_on(store, lake, tmp_path) -> None:
    """By the commands of docs/security.md."""
    mine, page = Path(__file__).name, ROOT / "docs" / "security.md"
    blocks = [one for one in blocks_of(page) if mine in one.said.get("tested by", "")]
    lines = [line.removeprefix("$ ") for block in blocks for line in block.text.splitlines()]
    told = {"STORE": str(store), "LAKE": str(lake)}
    # What is compiled lies beside the package, where they may not write: they have it from there.
    compiled = tmp_path / "compiled"
    for kept in (ROOT / "storage_engine").rglob("__pycache__/*.nb[ic]"):
        named = _CacheLocator.get_suitable_cache_subpath(str(kept.parents[1] / "module.py"))
        (compiled / named).mkdir(parents=True, exist_ok=True)
        shutil.copy2(kept, compiled / named)
    for directory in (compiled, *compiled.iterdir()):
        directory.chmod(0o777)

    def shell(uid: int, line: str, **environment: str) -> subprocess.CompletedProcess[str]:
        words = line.split()
        assert words[0] == "storage-engine"
        environment["NUMBA_CACHE_DIR"] = str(compiled)
        return as_account(uid, *(told.get(word, word) for word in words[1:]), **environment)

    clean, approve, go_on, lower = lines
    before = sorted((store / "commitlog").iterdir())
    stopped = shell(ANN, clean)
    assert stopped.returncode == 3, stopped.stderr
    (told["DIGEST"],) = set(re.findall(r"--digest ([0-9a-f]{64})", stopped.stderr))
    (told["RUN"],) = set(re.findall(r"--run-key (clean-\d+)", stopped.stderr))
    assert f"stopped; the plan is {told['DIGEST']}" in stopped.stderr
    assert "2 segments archived and proven now" in stopped.stderr
    assert sorted((store / "commitlog").iterdir()) == before
    own = shell(ANN, approve)
    assert (own.returncode, "isn't certainly another person" in own.stderr) == (3, True)
    by_sudo = shell(BOB, approve, SUDO_USER=f"uid {ANN}")
    assert (by_sudo.returncode, f"for uid {ANN}) approved it, but isn't" in by_sudo.stderr) == (3, True)
    root = shell(0, approve)
    assert (root.returncode, "root doesn't count as a second person" in root.stderr) == (2, True)
    said = shell(BOB, approve)
    assert (said.returncode, f"run {told['RUN']} may go on" in said.stdout) == (0, True), said.stderr
    # Who goes on need not say the policy again, nor can he lower it so.
    done = shell(ANN, go_on)
    assert done.returncode == 0, done.stderr
    assert len(list((store / "commitlog").iterdir())) == len(before) - 2
    assert "another account has to give the same command" in shell(ANN, lower).stdout
    assert shell(ANN, lower).returncode == 3
    assert f"by uid {ANN} (uid {ANN}) and uid {BOB} (uid {BOB})" in shell(BOB, lower).stdout


def test_who_approves_need_not_be_able_to_look_into_the_store(cli, store, lake, monkeypatch) -> None:
    assert cli("clean", store, "--lake", lake, "--manual", "--approval", "always").exit_code == 3

    def is_closed(name: str, path: Path) -> Path:
        raise BadInputError(f"{path}: Permission denied")

    monkeypatch.setattr("storage_engine.brokers._store_around", is_closed)
    said = cli("approve", store, "--lake", lake, "--lower-to", "none")
    # Who runs the tests as root gets as far as this.
    assert said.exit_code == 0 or "root doesn't count as a second person" in said.err, said
    assert "Permission denied" in cli("plan", store).err


def test_approve_takes_one_thing_of_a_store_that_is_known(cli, store, lake) -> None:
    assert cli("approve", store, "--lake", lake).exit_code == 2
    assert "64 hexadecimal digits" in cli("approve", store, "--lake", lake, "--digest", "abc").err
    unknown = cli("approve", store, "--lake", lake, "--lower-to", "none")
    assert (unknown.exit_code, "expected a store that the journal knows" in unknown.err) == (2, True)
