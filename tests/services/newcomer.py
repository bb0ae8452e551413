"""A newcomer: somebody with an empty home, who makes an environment, reads pages and types commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.services.installs import CONSTRAINTS, ROOT

PAGES = ROOT / "docs"
_KEPT = ("PATH", "LANG", "TZ", "JAVA_HOME", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE")
"""Of the environment: a newcomer has none of what this suite sets."""


@dataclass
class Newcomer:
    """What one does, and what it took.

    :param home: a directory of their own, which need not be there.
    :param wheels: where the release's wheels are, which no index has yet.
    """

    home: Path
    wheels: Path
    commands: list[str] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True)
        subprocess.run([sys.executable, "-m", "venv", str(self.venv)], check=True)
        self.environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self.environment |= {"HOME": str(self.home), "PATH": f"{self.venv / 'bin'}:{os.environ['PATH']}"}

    @property
    def venv(self) -> Path:
        return self.home / "venv"

    def installs(self, *requirements: str, constraints: bool = True) -> None:
        """Install what a page says, with the versions that the release was tested with."""
        words = ["pip", "install", "--quiet", "--disable-pip-version-check", "--find-links", str(self.wheels)]
        words += ["-c", str(CONSTRAINTS)] if constraints else []
        self.types([*words, *requirements], takes="install")

    def reads(self, page: str) -> str:
        """Open a page of the docs, and count it."""
        self.pages.append(page)
        return (PAGES / page).read_text(encoding="utf-8")

    def types(
        self,
        words: Sequence[str] | str,
        *,
        exit_code: int = 0,
        takes: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """Run a command to its end.

        :param words: of the command, or a line for a shell.
        :param takes: the stage that its time is counted to; "": its first word, or two of ``storage-engine``.
        :return: what it printed.
        """
        line = words if isinstance(words, str) else " ".join(words)
        began = time.monotonic()
        done = subprocess.run(
            words,
            shell=isinstance(words, str),
            cwd=self.home,
            env=self.environment | dict(environment or {}),
            capture_output=True,
            text=True,
            check=False,
        )
        stage = takes or " ".join(line.split()[: 2 if line.startswith("storage-engine") else 1])
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - began
        self.commands.append(line)
        assert done.returncode == exit_code, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def summary(self, name: str) -> str:
        """Return what the walk took as one line of JSON, and keep it where STORAGE_ENGINE_WALKS says."""
        told = json.dumps(
            {
                "walk": name,
                "seconds": {stage: round(seconds, 1) for stage, seconds in self.seconds.items()},
                "total_seconds": round(sum(self.seconds.values()), 1),
                "commands": len(self.commands),
                "pages": self.pages,
            }
        )
        if kept := os.environ.get("STORAGE_ENGINE_WALKS"):
            with Path(kept).open("a", encoding="utf-8") as file:
                file.write(told + "\n")
        return told
