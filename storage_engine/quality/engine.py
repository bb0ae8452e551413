"""Runs the suites on fact tables with Great Expectations, and builds Data Docs that can be read offline.

Importing this module imports Great Expectations, which takes seconds. Data Docs need no network. This
package's templates take precedence over those of Great Expectations. They replace the frame, and the blocks
that need scripts: index table, tabs, collapsibles. Text is escaped, since it contains names from producers.
"""

from __future__ import annotations

import html
import json
import logging
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import new_class
from typing import Any, ClassVar, Literal

import pandas as pd
from jinja2 import BytecodeCache, ChoiceLoader, PackageLoader, pass_context
from jinja2.bccache import Bucket

from storage_engine.core.durable import make_dirs, settle_modes, write_file
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.model.report.validation import CheckResult, Status
from storage_engine.quality.expectation_rules import (
    EXAMPLES,
    EXPECTATIONS,
    SUBJECT,
    SUITES,
    Expectation,
    FactTable,
    Rows,
    Verdicts,
    example_text,
    not_a_suite,
    read_suite,
)
from storage_engine.retention.store.managed_store import DATA_DOCS_SITE

# It is read at the first import. No data about a store may leave this machine.
os.environ["GX_ANALYTICS_ENABLED"] = "false"

# Suppress hundreds of lines about its own decorators at each import.
logging.getLogger("great_expectations._docs_decorators").setLevel(logging.WARNING)

with warnings.catch_warnings():
    # Great Expectations 1.x imports two standard modules that Python deprecates since 3.11.
    warnings.filterwarnings("ignore", "module 'sre_(constants|parse)' is deprecated", DeprecationWarning)
    import great_expectations as gx
    from great_expectations.checkpoint import Checkpoint
    from great_expectations.checkpoint.actions import ActionContext, ValidationAction
    from great_expectations.checkpoint.checkpoint import CheckpointResult
    from great_expectations.core import ExpectationSuite, ValidationDefinition
    from great_expectations.execution_engine import PandasExecutionEngine, SparkDFExecutionEngine
    from great_expectations.expectations.expectation import MulticolumnMapExpectation
    from great_expectations.expectations.metrics.map_metric_provider import MulticolumnMapMetricProvider
    from great_expectations.expectations.metrics.map_metric_provider.multicolumn_condition_partial import (
        multicolumn_condition_partial,
    )
    from great_expectations.render.view import DefaultJinjaIndexPageView, DefaultJinjaPageView

SITE = "storage_engine"

_TEMPLATES = PackageLoader("storage_engine.quality", "templates/data_docs")
_MARKUP = re.compile(r"<(?!/?(?:br|b|i|em|strong|code|pre)>)")
"""The beginning of markup, except for plain tags of the renderers' own templates."""
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z| UTC)")
"""A time in the renderers' form."""


class _CompiledTemplates(BytecodeCache):
    """Cache of compiled templates for this process. Great Expectations makes an environment for each page."""

    def __init__(self) -> None:
        self._code: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._code:
            bucket.bytecode_from_string(self._code[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[bucket.key] = bucket.bytecode_to_string()


_COMPILED = _CompiledTemplates()


class _EscapingView:
    """Escapes the markup in all texts that renderers pass on."""

    def __init__(self, **directories: Any) -> None:
        super().__init__(**directories)
        self.env: Any
        self.env.loader = ChoiceLoader([_TEMPLATES, self.env.loader])
        self.env.bytecode_cache = _COMPILED
        self.env.filters["moment"] = _write_times

    @pass_context
    def render_content_block(self, context: Any, content_block: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(content_block, str):
            return _escaped(_write_times(content_block) if _TIME.fullmatch(content_block) else content_block)
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
        # Great Expectations escapes only the parameters of styled templates.
        if "styling" not in template:
            parameters = template.get("params", {})
            safe["params"] = {
                name: _escaped(value) if isinstance(value, str) else value
                for name, value in parameters.items()
            }
        return inherited.render_string_template(safe)


def _write_times(text: str) -> str:
    """Convert the times in a text to the format of this package."""
    return _TIME.sub(r"\1 \2Z", text)


def _escaped(text: str) -> str:
    """Escape markup. Text that was escaped before stays as it is."""
    return html.escape(html.unescape(text))


class OfflinePageView(_EscapingView, DefaultJinjaPageView):  # type: ignore[misc]
    """Page of a suite or a validation result."""


class OfflineIndexPageView(_EscapingView, DefaultJinjaIndexPageView):  # type: ignore[misc]
    """The first page of the site."""


def site_config() -> dict[str, object]:
    """Return the configuration of the Data Docs site, with this module's views."""
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


_LOGGER = "great_expectations"
_Frame = Any
"""A DataFrame of pandas or of Spark."""


class _Swallowed(logging.Handler):
    """Keeps the first file error that Great Expectations caught and logged. Passes all other records on."""

    def __init__(self) -> None:
        super().__init__()
        self.error: OSError | None = None

    def emit(self, record: logging.LogRecord) -> None:
        caught = sys.exc_info()[1]
        if isinstance(caught, OSError):
            self.error = self.error or caught
        else:
            logging.getLogger().handle(record)


@contextmanager
def files_written(directory: Path) -> Iterator[None]:
    """Run a block in which Great Expectations writes into a directory. File errors are raised, not logged.

    :raises OSError: a file can't be written, for example on a full disk. The error names the path.
    """
    logger, swallowed = logging.getLogger(_LOGGER), _Swallowed()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(swallowed)
    try:
        yield
    except OSError as error:
        swallowed.error = error
    except Exception:
        # After a swallowed file error, other errors are its consequences.
        if swallowed.error is None:
            raise
    finally:
        logger.removeHandler(swallowed)
        logger.propagate = propagate
    if (failure := swallowed.error) is not None:
        # The error of a write to an open file names no file.
        path = failure.filename or str(directory)
        raise OSError(failure.errno, failure.strerror or str(failure), path) from failure


@cache
def _metric(rule: Callable[[Rows], Verdicts]) -> str:
    """Register a rule as a row-wise metric for pandas and for Spark, and return the metric's name."""

    class Rule(MulticolumnMapMetricProvider):  # type: ignore[misc]
        condition_metric_name = f"storage_engine.{rule.__name__}"
        condition_value_keys: ClassVar[tuple[str, ...]] = ()

        @multicolumn_condition_partial(engine=PandasExecutionEngine)  # type: ignore[untyped-decorator]
        def _pandas(cls, column_list: pd.DataFrame, **_: Any) -> Verdicts:  # noqa: N805
            return rule(column_list)

        @multicolumn_condition_partial(engine=SparkDFExecutionEngine)  # type: ignore[untyped-decorator]
        def _spark(cls, column_list: Any, **_: Any) -> Any:  # noqa: N805
            return rule(column_list)

    return str(Rule.condition_metric_name)


class RowExpectation(MulticolumnMapExpectation):  # type: ignore[misc]
    """Base of the expectations. All rows count, even rows without any value."""

    ignore_row_if: str = "never"


def _make_class(kind: Expectation) -> type[RowExpectation]:
    """Create the class of an expectation, which Great Expectations then finds by its name."""
    content = {"__module__": __name__, "__doc__": kind.rule.__doc__, "map_metric": _metric(kind.rule)}
    return new_class(kind.name, (RowExpectation,), exec_body=lambda body: body.update(content))


CLASSES = {name: _make_class(expectation) for name, expectation in EXPECTATIONS.items()}
"""Classes by the names that suites use."""


def load_suite(directory: Path, name: str) -> ExpectationSuite:
    """Read one suite.

    :raises BadInputError: the file is missing, or it isn't a suite.
    """
    suite = read_suite(directory, name)
    try:
        return ExpectationSuite(**suite)
    except (ValueError, TypeError) as error:
        raise not_a_suite(directory / f"{name}.json", error) from error


_PROJECT = "gx"
_SOURCE = "facts"
_BATCH = "whole"


class RecordChecks(ValidationAction):  # type: ignore[misc]
    """Action of a checkpoint that writes its outcome as :class:`CheckResult` rows."""

    type: Literal["storage_engine_record_checks"] = "storage_engine_record_checks"
    path: str

    def run(
        self, checkpoint_result: CheckpointResult, action_context: ActionContext | None = None
    ) -> dict[str, Any]:
        checks = [
            _check(suite_result["suite_name"], result)
            for suite_result in (r.to_json_dict() for r in checkpoint_result.run_results.values())
            for result in suite_result["results"]
        ]
        write_file(self.path, json.dumps(to_jsonable(checks)).encode())
        return {"checks": len(checks)}


def run_suites(
    tables: Mapping[str, Any], suites: Path, directory: Path, *, run_name: str
) -> tuple[CheckResult, ...]:
    """Check each fact table against the suite of its name.

    :param tables: tables by suite name. Either all are fact tables, or all are DataFrames of Spark, and then
        the expectations run in Spark. A table without rows passes its checks with a count of 0.
    :param suites: directory with the suites' JSON.
    :param directory: the directory of the Great Expectations project. Contents of an earlier run are removed.
    :return: one row for each expectation, in the order of :data:`SUITES`.
    :raises OSError: the directory can't be written, for example on a full disk.
    """
    if directory.exists():
        shutil.rmtree(directory)
    make_dirs(directory / _PROJECT)
    frames = {
        name: pd.DataFrame(list(table.rows)) if isinstance(table, FactTable) else table
        for name, table in tables.items()
    }
    with files_written(directory):
        checks = _run(frames, suites, directory, run_name)
    # Remove pictures and fonts that Great Expectations copies for its own templates.
    shutil.rmtree(directory / DATA_DOCS_SITE / "static", ignore_errors=True)
    settle_modes(directory)
    return checks


def _run(
    tables: Mapping[str, _Frame], suites: Path, directory: Path, run_name: str
) -> tuple[CheckResult, ...]:
    names = [name for name in SUITES if name in tables]
    filled = [name for name in names if not _is_empty(tables[name])]
    engine = "pandas" if all(isinstance(table, pd.DataFrame) for table in tables.values()) else "spark"
    # JSON is YAML. It is written at once, since the interface would rewrite the file for each asset.
    config = json.dumps(_project_config(filled, engine), indent=2)
    write_file(directory / _PROJECT / "great_expectations.yml", config.encode())
    context = gx.get_context(mode="file", context_root_dir=str(directory / _PROJECT), cloud_mode=False)
    checks: list[CheckResult] = []
    for name in names:
        suite = context.suites.add(load_suite(suites, name))
        if name in filled:
            checks += _run_suite(context, suite, tables[name], directory / "checks.json", run_name)
        else:
            checks += [
                CheckResult(name, type(item).__name__, item.description or "", Status.OK, 0, 0)
                for item in suite.expectations
            ]
    context.build_data_docs(site_names=[SITE])
    return tuple(checks)


def _is_empty(table: _Frame) -> bool:
    return table.empty if isinstance(table, pd.DataFrame) else bool(table.isEmpty())


def _project_config(tables: Sequence[str], engine: str) -> dict[str, object]:
    def store(kind: str, directory: str) -> dict[str, object]:
        backend = {
            "class_name": "TupleFilesystemStoreBackend",
            "base_directory": f"{directory}/",
            "suppress_store_backend_id": True,
        }
        return {"class_name": kind, "store_backend": backend}

    asset = {"type": "dataframe", "batch_definitions": {_BATCH: {"partitioner": None}}}
    return {
        "config_version": 4.0,
        "stores": {
            "expectations_store": store("ExpectationsStore", "expectations"),
            "validation_results_store": store("ValidationResultsStore", "uncommitted/validations"),
            "checkpoint_store": store("CheckpointStore", "checkpoints"),
            "validation_definition_store": store("ValidationDefinitionStore", "validation_definitions"),
        },
        "expectations_store_name": "expectations_store",
        "validation_results_store_name": "validation_results_store",
        "checkpoint_store_name": "checkpoint_store",
        "data_docs_sites": {SITE: site_config()},
        "analytics_enabled": False,
        "progress_bars": {"globally": False, "metric_calculations": False},
        "fluent_datasources": {_SOURCE: {"type": engine, "assets": {name: dict(asset) for name in tables}}},
    }


def _run_suite(
    context: Any, suite: ExpectationSuite, table: _Frame, path: Path, run_name: str
) -> list[CheckResult]:
    batch = context.data_sources.get(_SOURCE).get_asset(suite.name).get_batch_definition(_BATCH)
    definition = context.validation_definitions.add(
        ValidationDefinition(name=suite.name, data=batch, suite=suite)
    )
    checkpoint = context.checkpoints.add(
        Checkpoint(
            name=suite.name,
            validation_definitions=[definition],
            actions=[RecordChecks(name="record", path=str(path))],
            result_format={"result_format": "SUMMARY", "unexpected_index_column_names": [SUBJECT]},
        )
    )
    checkpoint.run(batch_parameters={"dataframe": table}, run_id=gx.RunIdentifier(run_name=run_name))
    return [from_jsonable(CheckResult, row, str(path)) for row in json.loads(path.read_bytes())]


def _check(suite: str, result: Mapping[str, Any]) -> CheckResult:
    config, outcome = result["expectation_config"], result["result"]
    failed = Status.WARNING if config.get("severity") == "warning" else Status.FAILURE
    raised = _find_error(result.get("exception_info") or {})
    unexpected = outcome.get("partial_unexpected_index_list") or []
    kind = EXPECTATIONS.get(config["type"])
    examples = (
        example_text(row[SUBJECT], ((name, value) for name, value in row.items() if name != SUBJECT))
        for row in unexpected[:EXAMPLES]
    )
    return CheckResult(
        suite=suite,
        expectation=kind.name if kind else "".join(map(str.capitalize, config["type"].split("_"))),
        description=config.get("description") or "",
        status=Status.OK if result["success"] else failed,
        checked_count=outcome.get("element_count", 0),
        unexpected_count=outcome.get("unexpected_count", 0),
        examples=(raised,) if raised else tuple(examples),
    )


def _find_error(info: Mapping[str, Any]) -> str:
    """Return why an expectation could not be evaluated. The error may be nested in a metric's entry."""
    if info.get("raised_exception"):
        return f"could not be evaluated: {info.get('exception_message')}"
    nested = (value for value in info.values() if isinstance(value, Mapping))
    return next((text for value in nested if (text := _find_error(value))), "")
