"""Environments of their own, into which freshly built wheels are installed as a user does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"


@dataclass(frozen=True)
class Install:
    """A virtual environment with one of the distributions in it."""

    home: Path

    def run(self, command: str, *words: object, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run one of its commands, with nothing of the environment that the tests run in."""
        return _run(self.home / "bin" / command, *words, **options)

    def python(self, code: str, *words: object) -> Any:
        """Run code in its interpreter, and return the JSON that it prints."""
        return json.loads(self.run("python", "-I", "-c", code, *words).stdout)

    @property
    def site_packages(self) -> Path:
        return Path(self.python("import json, sysconfig; print(json.dumps(sysconfig.get_path('purelib')))"))

    @property
    def versions(self) -> Mapping[str, str]:
        """Return what is installed, by names as package indexes write them."""
        listed = json.loads(self.run("python", "-m", "pip", "list", "--format", "json").stdout)
        return {re.sub("[-_.]+", "-", row["name"]).lower(): row["version"] for row in listed}

    @property
    def package_bytes(self) -> Mapping[str, int]:
        """Return what each entry of its site-packages takes without byte code, the largest first."""
        sizes: dict[str, int] = {}
        packages = self.site_packages
        for path in packages.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                top = path.relative_to(packages).parts[0]
                sizes[top] = sizes.get(top, 0) + path.stat().st_size
        return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def install(home: Path, wheels: Path, name: str) -> Install:
    """Make an environment and install a distribution in the versions that this release was tested with."""
    _run(sys.executable, "-m", "venv", home)
    pip = (home / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
    _run(*pip, "install", "--quiet", "--constraint", CONSTRAINTS, "--find-links", wheels, name)
    _run(*pip, "check")
    return Install(home)


def _run(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    expected = options.pop("exit_code", 0)
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    assert done.returncode == expected, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
