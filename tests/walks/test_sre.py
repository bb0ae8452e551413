"""An SRE at a shell: from the install of the small package to the first proven deletion, without any page."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import pytest

from storage_engine.project.up import unpack_sample_store
from tests.services.newcomer import Newcomer

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.timeout(1800)]

LIMIT_CPU_SECONDS = 60.0
"""From the end of the install to the end of the first proven deletion; half of it compiles, once."""


def next_command(said: str) -> str:
    """Return what a command's last line says to type next."""
    told = re.findall(r"^Next: (storage-engine .+)$", said, re.MULTILINE)
    assert len(told) == 1, said
    return str(told[0])


def cpu_seconds() -> float:
    """Return what the processes that have ended used: a busy machine makes them no dearer."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_four_commands_lead_to_the_first_proof(tmp_path: Path, wheels: Path) -> None:
    newcomer = Newcomer(tmp_path / "home", wheels)
    newcomer.installs("storage-engine")
    sample = unpack_sample_store(tmp_path / "data")
    lake = tmp_path / "lake"
    installed_cpu_seconds = cpu_seconds()
    typed = ["doctor"]
    # Unread messages are about to go, which is urgent.
    said = newcomer.types(
        f"storage-engine doctor {sample.root} --broker-conf {sample.broker_conf}", exit_code=1
    )
    while typed[-1] != "clean":
        # Each command says the next one; the newcomer fills in what only they know.
        command = next_command(said).replace("DIRECTORY", str(lake)).replace("STORE", str(sample.root))
        command = command.replace("FILE", str(sample.broker_conf))
        typed.append(command.split()[1])
        said = newcomer.types(command)
    assert typed == ["doctor", "init-lake", "archive", "clean"]
    # The last of them shows what would go; the newcomer types it again without that option.
    assert command.endswith(" --dry-run")
    newcomer.types(command.removesuffix(" --dry-run"))
    assert [path for path in sample.old if path.exists()] == []
    took_cpu_seconds = cpu_seconds() - installed_cpu_seconds
    told = newcomer.summary("sre")
    verified = newcomer.types(f"storage-engine verify {sample.root} --lake {lake} --level store")
    assert "LOST" not in verified
    assert took_cpu_seconds < LIMIT_CPU_SECONDS, told
