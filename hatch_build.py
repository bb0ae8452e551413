"""Build hook of the wheel: puts the documentation's site into it, or fails."""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from mkdocs.commands.build import build
from mkdocs.config import load_config


def build_site(root: Path, directory: Path) -> None:
    """Build the documentation into a directory; a warning is an error.

    :param root: where ``mkdocs.yml`` is.
    :raises mkdocs.exceptions.Abort: a link leads nowhere, a page isn't in the navigation, or the like.
    """
    config = load_config(str(root / "mkdocs.yml"), site_dir=str(directory))
    # Whoever builds a wheel is told what is wrong: MkDocs says it only to who listens.
    told, log = logging.StreamHandler(), logging.getLogger("mkdocs")
    told.setLevel(logging.WARNING)
    log.addHandler(told)
    config.plugins.on_startup(command="build", dirty=False)
    try:
        build(config)
    finally:
        config.plugins.on_shutdown()
        log.removeHandler(told)


class SiteHook(BuildHookInterface):  # type: ignore[type-arg]
    """Add the site as ``storage_engine/site``; a checkout that is installed editably has none."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self.site = Path(tempfile.mkdtemp(prefix="storage-engine-site-"))
        if version != "editable":
            build_site(Path(self.root), self.site)
            build_data["force_include"][str(self.site)] = "storage_engine/site"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self.site, ignore_errors=True)
