"""Hooks of the build: the documentation's site in the wheel, and what a package index shows of it."""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface
from mkdocs.commands.build import build
from mkdocs.config import load_config

PROJECT_URL = "STORAGE_ENGINE_PROJECT_URL"
"""Variable with the address of the repository on GitHub, for who publishes a release."""
_LINK = re.compile(r"(?P<image>!?)(?P<text>\[[^\]]*\])\((?!\w+:|#)(?P<target>[^)]+)\)")
_WITHOUT_ADDRESS = """
# Storage Engine

A message broker deletes old data by blunt rules. Storage Engine does that job safely. It archives each file
that is due to go to an Iceberg lake, and proves the copy byte for byte. Only then does it delete.

    pip install storage-engine                     # the command line
    storage-engine doctor STORE                    # what a store is, what is wrong, what to do
    pip install airflow-provider-storage-engine    # an Airflow provider, with all that it needs

The package brings its documentation as a site that needs no network: `storage-engine docs` says where it is.
"""
"""README.md's links and pictures would lead nowhere."""


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


class IndexHook(MetadataHookInterface):
    """Give a package index README.md and addresses; without the repository's, a text without links."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        url, text = os.environ.get(PROJECT_URL, "").rstrip("/"), _WITHOUT_ADDRESS
        metadata["urls"] = {}
        if url:
            readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
            text = with_addresses(readme, url, f"v{metadata['version']}")
            metadata["urls"] = {
                "Homepage": url,
                "Documentation": f"{url}/blob/v{metadata['version']}/docs/index.md",
                "Changelog": f"{url}/blob/v{metadata['version']}/CHANGELOG.md",
                "Issues": f"{url}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_addresses(text: str, url: str, tag: str) -> str:
    """Return a page of the repository with its links to other files made absolute.

    :param tag: of the release, whose files they lead to.
    """

    def absolute(link: re.Match[str]) -> str:
        view = "raw" if link["image"] else "blob"
        return f"{link['image']}{link['text']}({url}/{view}/{tag}/{link['target']})"

    return _LINK.sub(absolute, text)
