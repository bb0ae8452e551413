"""Validate a store: collect facts, run the expectations, write the results, and record them."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from storage_engine.core.clock import clock_ms
from storage_engine.core.durable import make_dirs, write_file
from storage_engine.core.extras import QUALITY
from storage_engine.core.jsonable import to_jsonable
from storage_engine.lake.catalog.nesting import refuse_inside_store
from storage_engine.model.report.validation import CheckResult, ValidationResult
from storage_engine.pages.report import render_page
from storage_engine.quality import expectation_rules
from storage_engine.quality.facts import Facts, collect_facts
from storage_engine.resources import project_path
from storage_engine.retention.report.report import build_report
from storage_engine.retention.steps import record_validation
from storage_engine.retention.store.context import AnyStore, managed_of
from storage_engine.retention.store.managed_store import (
    DATA_DOCS_DIRECTORY,
    PAGE,
    REPORT_JSON,
    VALIDATION_JSON,
    ManagedStore,
    claim,
    page_links,
    refuse_foreign,
    run_directory,
    store_name,
)


def validate_store(
    store: AnyStore,
    run_key: str | None = None,
    *,
    full: bool = False,
    with_lake: bool = True,
    output_dir: Path | None = None,
) -> ValidationResult:
    """Check that store and lake together still have all bytes, and that changed parts are right.

    Store and lake aren't changed. The results replace earlier results in ``output_dir``: ``validation.json``,
    ``report.html``, for a run ``report.json``, and with Great Expectations Data Docs.

    :param run_key: run whose segments are checked, and whose journal gets the result; None to check the
        boundaries of all ranges.
    :param full: check all frames, queues and archived rows.
    :param with_lake: False to check the store alone, without opening lake or journal.
    :param output_dir: directory for the results; None for :func:`validation_directory`.
    :raises BadInputError: ``output_dir`` has a page, JSON or Great Expectations project that no validation
        made, or is inside a store. Nothing was changed.
    :raises StoreNotFoundError: there is no such store.
    :raises LakeUnavailableError: the lake can't be read, so its state is unknown.
    :raises RunStateError: there is no such run.
    """
    started_ns = time.monotonic_ns()
    checked_at_ms = clock_ms()
    output_dir = output_directory(store, run_key, output_dir)
    facts = collect_facts(store, run_key, full=full, with_lake=with_lake)
    claim(output_dir)
    checks, notes = _judge(facts, output_dir)
    checks = tuple(check for check in checks if check.suite not in facts.without_suites)
    result = ValidationResult(
        store_root=managed_of(store).real_root,
        store_id=facts.store_id,
        run_key=run_key,
        scope="full" if full else "boundaries",
        checked_at_ms=checked_at_ms,
        duration_ms=(time.monotonic_ns() - started_ns) // 1_000_000,
        ranges=facts.ranges,
        checks=checks,
        notes=(*facts.notes, *notes),
        name=store_name(managed_of(store)),
    )
    save_validation(store, run_key, result, output_dir)
    return result


def output_directory(store: AnyStore, run_key: str | None, output_dir: Path | None) -> Path:
    """Return the directory for a validation's files. The directory isn't claimed yet.

    :raises BadInputError: ``output_dir`` has files that no validation made, or is inside a store.
    """
    # A run's default directory has the run's report from its first step on.
    files = () if output_dir is None else (VALIDATION_JSON, REPORT_JSON, PAGE)
    directory = output_dir or validation_directory(managed_of(store), run_key)
    refuse_inside_store({"reports": directory})
    if not _is_of_earlier_release(directory / DATA_DOCS_DIRECTORY):
        refuse_foreign(directory, (DATA_DOCS_DIRECTORY, *files))
    return directory


def save_validation(store: AnyStore, run_key: str | None, result: ValidationResult, output_dir: Path) -> None:
    """Write a validation's JSON and page, and record it in the journal of a run that requested it."""
    _write_json(output_dir / VALIDATION_JSON, result.to_dict())
    if run_key is not None:
        record_validation(store, run_key, result)
    write_page(store, run_key, result, output_dir)


def _judge(facts: Facts, output_dir: Path) -> tuple[tuple[CheckResult, ...], tuple[str, ...]]:
    """Run the suites, with Great Expectations and its Data Docs if it is installed.

    :return: the checks, and notes about them.
    """
    suites, docs = project_path("expectations"), output_dir / DATA_DOCS_DIRECTORY
    if QUALITY.is_installed:
        # Great Expectations takes seconds to import.
        from storage_engine.quality.engine import run_suites

        return run_suites(facts.tables, suites, docs, run_name=output_dir.name), ()
    if docs.exists():
        # Data Docs of an earlier validation would contradict the page beside them.
        shutil.rmtree(docs)
    return expectation_rules.run_suites(facts.tables, suites), (expectation_rules.NOTE,)


def validation_directory(store: ManagedStore, run_key: str | None) -> Path:
    """Return a validation's default directory under the store's reports. Each run has its own directory."""
    return run_directory(store, run_key or "by-hand")


def write_page(
    store: AnyStore,
    run_key: str | None,
    validation: ValidationResult | None = None,
    output_dir: Path | None = None,
) -> Path:
    """Write the run's page from the current facts of journal and lake. Later steps may write it again.

    :param validation: the result to show; None for the result in the run's journal.
    :return: path of the page.
    :raises RunStateError: there is no such run.
    """
    output_dir = output_dir or validation_directory(managed_of(store), run_key)
    make_dirs(output_dir)
    report = None
    if run_key is not None:
        built = build_report(store, run_key)
        report = {**to_jsonable(built), "ok": built.ok}
        validation = validation or built.validation
        _write_json(output_dir / REPORT_JSON, report)
    path = output_dir / PAGE
    links, broker = page_links(output_dir), managed_of(store).broker
    write_file(path, render_page(report, validation, links=links, broker=broker).encode())
    return path


def _is_of_earlier_release(directory: Path) -> bool:
    """Return whether an early release, which marked no directory, made this Great Expectations project."""
    if directory.is_symlink() or not (directory / "gx" / "great_expectations.yml").is_file():
        return False
    return {path.name for path in directory.iterdir()} <= {"gx", "checks.json"}


def _write_json(path: Path, data: object) -> None:
    write_file(path, (json.dumps(data, indent=2) + "\n").encode())
