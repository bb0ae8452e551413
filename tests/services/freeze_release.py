"""Keep the package as it is at a commit, so that later code can be tried on what it writes.

Usage: python tests/services/freeze_release.py COMMIT NAME

Write tests/fixtures/releases/NAME.zip with the package and the project's expectations, which a run reads.
Names are sorted and times fixed: the same commit gives the same zip. Freeze before a durable format changes.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
RELEASES = REPOSITORY / "tests" / "fixtures" / "releases"
PARTS = ("storage_engine", "expectations")
NO_TIME = (1980, 1, 1, 0, 0, 0)
MODE = 0o644


def git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(REPOSITORY), *words], stdout=subprocess.PIPE, check=True).stdout


def freeze(commit: str, target: Path) -> None:
    """Write the zip; its comment is the commit's full id."""
    commit_id = git("rev-parse", "--verify", f"{commit}^{{commit}}").strip()
    source = io.BytesIO(git("archive", "--format=tar", commit_id.decode(), *PARTS))
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        tarfile.open(fileobj=source) as archive,
        zipfile.ZipFile(target, "w", compresslevel=9) as frozen,
    ):
        frozen.comment = commit_id
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            file = archive.extractfile(member)
            if file is None:  # a directory
                continue
            info = zipfile.ZipInfo(member.name, NO_TIME)
            info.external_attr = MODE << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            frozen.writestr(info, file.read())


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    freeze(sys.argv[1], RELEASES / f"{sys.argv[2]}.zip")
