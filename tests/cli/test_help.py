"""Completion in a real shell, and manual pages that man reads without a warning."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from storage_engine.cli.help import PROGRAM, SHELLS, VARIABLE
from storage_engine.cli.main import cli as program
from tests.cli.every_command import EVERY

SCRIPTS = Path(sysconfig.get_path("scripts"))


def _completed(*words: str, incomplete: str = "") -> set[str]:
    found = ShellComplete(program, {}, PROGRAM, VARIABLE).get_completions(list(words), incomplete)
    return {item.value for item in found}


def test_commands_options_choices_and_files_are_completed() -> None:
    assert {"archive", "adopt", "agent", "accept-loss", "approve"} == _completed(incomplete="a")
    of_lake = {"info", "relocate", "copy", "promote", "rebuild", "upgrade", "keep", "expire", "compact"}
    assert of_lake == _completed("lake")
    assert _completed("verify", incomplete="--le") == {"--level"}
    assert _completed("verify", "--level") == {"receipts", "files", "bytes", "store"}
    assert _completed("completion") == set(SHELLS)
    (path,) = ShellComplete(program, {}, PROGRAM, VARIABLE).get_completions(["plan"], "/da")
    assert path.type == "file"
    (lake,) = ShellComplete(program, {}, PROGRAM, VARIABLE).get_completions(["verify", "--lake"], "/da")
    assert lake.type == "dir"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_calls_the_program(cli, shell: str) -> None:
    script = cli("completion", shell).out
    assert f"{VARIABLE}={shell}_complete" in script
    assert PROGRAM in script


@pytest.mark.slow
def test_bash_completes_by_the_script(cli, tmp_path: Path) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(cli("completion", "bash").out)
    asked = (
        f'. "{script}"; COMP_WORDS=(storage-engine ver); COMP_CWORD=1; '
        '_storage_engine_completion storage-engine; echo "${COMPREPLY[*]}"'
    )
    done = subprocess.run(
        ["bash", "-c", asked],
        env={**os.environ, "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["verify"]


def test_every_command_has_a_page_with_all_its_options(cli, tmp_path: Path) -> None:
    assert cli("man", tmp_path / "man1").exit_code == 0
    pages = {path.stem: path.read_text() for path in (tmp_path / "man1").iterdir()}
    names = {f"{PROGRAM}-{name.replace(' ', '-')}" for name in EVERY}
    assert set(pages) == names | {PROGRAM, f"{PROGRAM}-lake", f"{PROGRAM}-kafka"}
    for name, command in EVERY.items():
        page = pages[f"{PROGRAM}-{name.replace(' ', '-')}"]
        for option in (
            option for parameter in command.params for option in parameter.opts if option[:2] == "--"
        ):
            assert option.replace("-", r"\-") in page, (name, option)
    assert cli("man").out.strip() == pages[PROGRAM].strip()


@pytest.mark.again
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("man") is None, reason="needs man")
def test_man_reads_every_page_without_a_warning(cli, tmp_path: Path) -> None:
    assert cli("man", tmp_path).exit_code == 0
    pages = sorted(map(str, tmp_path.glob("*.1")))
    done = subprocess.run(
        ["man", "--warnings=all", "-E", "UTF-8", "-l", *pages],
        env={**os.environ, "MANPAGER": "cat", "MANWIDTH": "100"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert "STORAGE-ENGINE-LAKE-COPY(1)" in done.stdout
