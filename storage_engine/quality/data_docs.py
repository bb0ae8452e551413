"""Data Docs without a network: our own page templates in front of Great Expectations' renderers.

Of the renderers' content the text is escaped, since it has names that producers chose. The frame around it
(which would load styles and scripts from public hosts) and the blocks that need scripts (index table, tabs,
collapsibles) are ours.
"""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import BytecodeCache, ChoiceLoader, PackageLoader, pass_context
from jinja2.bccache import Bucket

from storage_engine.quality.gx import DefaultJinjaIndexPageView, DefaultJinjaPageView

SITE = "storage_engine"

_TEMPLATES = PackageLoader("storage_engine.quality", "templates/data_docs")


_MARKUP = re.compile(r"<(?!/?(?:br|b|i|em|strong|code|pre)>)")
"""The begin of whatever isn't one of the plain tags that templates of the renderers have."""


_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z| UTC)")
"""A moment as the renderers write it."""


class _CompiledTemplates(BytecodeCache):
    """Templates that this process has compiled: Great Expectations makes an environment for each page."""

    def __init__(self) -> None:
        self._code: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._code:
            bucket.bytecode_from_string(self._code[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[bucket.key] = bucket.bytecode_to_string()


_COMPILED = _CompiledTemplates()


class _EscapingView:
    """Escapes what the renderers pass on as markup, whoever wrote it."""

    def __init__(self, **directories: Any) -> None:
        super().__init__(**directories)
        self.env: Any
        self.env.loader = ChoiceLoader([_TEMPLATES, self.env.loader])
        self.env.bytecode_cache = _COMPILED
        self.env.filters["moment"] = _as_elsewhere

    @pass_context
    def render_content_block(self, context: Any, content_block: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(content_block, str):
            return _escaped(_as_elsewhere(content_block) if _TIME.fullmatch(content_block) else content_block)
        if isinstance(content_block, list):
            content_block = [_escaped(item) if isinstance(item, str) else item for item in content_block]
        inherited: Any = super()
        return inherited.render_content_block(context, content_block, *arguments, **options)

    def render_string_template(self, template: Any) -> Any:
        inherited: Any = super()
        if not isinstance(template, Mapping):
            return inherited.render_string_template(template)
        safe = {**template, "template": _MARKUP.sub("&lt;", template.get("template", ""))}
        if "tooltip" in template:
            tooltip = template["tooltip"]
            safe["tooltip"] = {**tooltip, "content": _escaped(str(tooltip["content"]))}
        # Great Expectations escapes parameters itself, but of styled templates only.
        if "styling" not in template:
            parameters = template.get("params", {})
            safe["params"] = {
                name: _escaped(value) if isinstance(value, str) else value
                for name, value in parameters.items()
            }
        return inherited.render_string_template(safe)


def _as_elsewhere(text: str) -> str:
    """Write the times in a text as everything else of this package does."""
    return _TIME.sub(r"\1 \2Z", text)


def _escaped(text: str) -> str:
    """Escape markup; what was escaped before stays as it is."""
    return html.escape(html.unescape(text))


class OfflinePageView(_EscapingView, DefaultJinjaPageView):  # type: ignore[misc]
    """Page of a suite or a validation result."""


class OfflineIndexPageView(_EscapingView, DefaultJinjaIndexPageView):  # type: ignore[misc]
    """The site's start page."""


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
