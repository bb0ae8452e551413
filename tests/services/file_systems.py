"""File systems that are mounted for a test: each tells in its own way that a file was written to."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

KINDS: dict[str, Sequence[str]] = {
    "ext4-128-byte-inodes": ("mkfs.ext4", "-q", "-I", "128"),
    "ext4": ("mkfs.ext4", "-q"),
    "xfs": ("mkfs.xfs", "-q"),
    "btrfs": ("mkfs.btrfs", "-q"),
    "overlay": (),
    "overlay-volatile": (),
}
"""How each is made; an overlay lies over what is there."""

_IMAGE_BYTES = 400 << 20
"""A sparse file; xfs takes no less than 300 MiB."""


@contextmanager
def mounted(kind: str, directory: Path) -> Iterator[Path]:
    """Mount a file system of a kind below a directory; the test is skipped by name where that can't be."""
    target = directory / kind
    target.mkdir()
    if os.geteuid() != 0:
        pytest.skip(f"{kind}: only root can mount a file system")
    done = subprocess.run(_mount(kind, directory, target), capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{kind}: can't be mounted here: {done.stderr.strip()}")
    try:
        yield target
    finally:
        subprocess.run(["umount", str(target)], check=True)


def _mount(kind: str, directory: Path, target: Path) -> list[str]:
    if not KINDS[kind]:
        layers = {name: directory / f"{kind}-{name}" for name in ("lower", "upper", "work")}
        for layer in layers.values():
            layer.mkdir()
        options = ",".join(f"{name}dir={layer}" for name, layer in layers.items())
        volatile = ",volatile" if kind.endswith("volatile") else ""
        return ["mount", "-t", "overlay", "overlay", "-o", options + volatile, str(target)]
    if shutil.which(KINDS[kind][0]) is None:
        pytest.skip(f"{kind}: no {KINDS[kind][0]} here")
    image = directory / f"{kind}.image"
    image.touch()
    os.truncate(image, _IMAGE_BYTES)
    subprocess.run([*KINDS[kind], str(image)], check=True, capture_output=True)
    return ["mount", "-o", "loop", str(image), str(target)]
