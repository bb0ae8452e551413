"""The units of docs/systemd: systemd takes them, and their commands take the options that they name."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.code_blocks import ROOT
from tests.services.command_line import run_command

UNITS = sorted((ROOT / "docs" / "systemd").glob("*.service"))
COMMAND = "/usr/local/bin/storage-engine"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_takes_a_unit(unit: Path, tmp_path: Path) -> None:
    # Where it is installed here; the host of the docs has it elsewhere.
    command = Path(sys.executable).with_name("storage-engine")
    copy = tmp_path / unit.name
    copy.write_text(
        unit.read_text().replace(COMMAND, str(command)).replace("man:storage-engine(1)", "man:sh(1)")
    )
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if unit.name in line]) == (0, [])


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_calls_a_command_as_it_is(unit: Path) -> None:
    (line,) = re.findall(rf"^ExecStart={COMMAND} (.*)$", unit.read_text(), re.MULTILINE)
    assert run_command(*shlex.split(line), "--no-such-option", "--help").exit_code == 2
    assert run_command(*shlex.split(line), "--help").exit_code == 0


def test_the_pages_name_each_unit() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    assert [unit.name for unit in UNITS if f"systemd/{unit.name}" not in pages] == []
    assert len(UNITS) == 3
