"""Data Docs without a network: our own page templates in front of Great Expectations' renderers.

The renderers' content is left as it is; only the frame around it (which would load styles and scripts
from public hosts) and the blocks that need scripts (index table, tabs, collapsibles) are ours.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, PackageLoader

from storage_engine.quality.gx import DefaultJinjaIndexPageView, DefaultJinjaPageView

SITE = "storage_engine"

_TEMPLATES = PackageLoader("storage_engine.quality", "templates/data_docs")


class OfflinePageView(DefaultJinjaPageView):  # type: ignore[misc]
    """Page of a suite or a validation result."""

    def __init__(self, **directories: Any) -> None:
        super().__init__(**directories)
        self.env.loader = ChoiceLoader([_TEMPLATES, self.env.loader])


class OfflineIndexPageView(DefaultJinjaIndexPageView):  # type: ignore[misc]
    """The site's start page."""

    def __init__(self, **directories: Any) -> None:
        super().__init__(**directories)
        self.env.loader = ChoiceLoader([_TEMPLATES, self.env.loader])


def site_config() -> dict[str, object]:
    """The Data Docs site, with our views."""
    page = {"module_name": __name__, "class_name": OfflinePageView.__name__}
    section = {"class_name": "DefaultSiteSectionBuilder", "view": page}
    return {
        "class_name": "SiteBuilder",
        "show_how_to_buttons": False,
        "store_backend": {
            "class_name": "TupleFilesystemStoreBackend",
            "base_directory": f"uncommitted/data_docs/{SITE}/",
        },
        "site_section_builders": {
            "expectations": {
                **section,
                "source_store_name": "expectations_store",
                "renderer": {"class_name": "ExpectationSuitePageRenderer"},
            },
            "validations": {
                **section,
                "source_store_name": "validation_results_store",
                "renderer": {"class_name": "ValidationResultsPageRenderer"},
            },
            "profiling": "None",
        },
        "site_index_builder": {
            "class_name": "DefaultSiteIndexBuilder",
            "view": {"module_name": __name__, "class_name": OfflineIndexPageView.__name__},
        },
    }


def tidy_site(directory: Path) -> None:
    """Drop the pictures and fonts that Great Expectations copies for its own templates."""
    shutil.rmtree(directory / "static", ignore_errors=True)
