"""doctor: a diagnosis of a store, with advice for each finding. Nothing here changes anything."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from storage_engine.cli.options.options import is_lake_there, make_commands, pipeline_of, places_of
from storage_engine.cli.options.store_argument import has_lake, takes_store
from storage_engine.cli.options.stores_file import named_stores
from storage_engine.cli.output.output import (
    answer,
    findings_json,
    print_error,
    print_json,
    say_styled,
    store_head,
    store_name,
    terminal_width,
)
from storage_engine.cli.output.progress import waiting
from storage_engine.cli.shell.shared_options import (
    command,
    json_option,
    said_by,
    wants_json,
    with_store_of_connection,
)
from storage_engine.commands import Arguments, Command, Text, commands_in, render_command, with_arguments
from storage_engine.core.clock import DAY_MS, clock_ms
from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.wording import bytes_text, count_text, duration_text, printable, time_text
from storage_engine.exceptions import BadInputError, StorageEngineError, StoreNotFoundError
from storage_engine.model.disk import DiskUsage
from storage_engine.model.lag import touched_text
from storage_engine.model.report.diagnosis import (
    Finding,
    SettingFrom,
    Severity,
    sort_findings,
)
from storage_engine.retention.doctor.pipeline_findings import pipeline_findings

if TYPE_CHECKING:
    from storage_engine.retention.doctor.doctor import Diagnosis
    from storage_engine.retention.doctor.pipeline_findings import PipelineFacts
    from storage_engine.retention.doctor.space_and_time import Figures
    from storage_engine.retention.store.managed_store import ManagedStore


_COLORS = {Severity.URGENT: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
_LABEL_WIDTH = 11
_LAKE_LABELS = {"second lake": "lake 2"}
_LONG_MS = 365 * DAY_MS
_MOST_COLUMNS = 100
_MOST_LOGS = 8
_SHOWN_DEFAULTS = ("deleteWhen", "fileReservedTime", "diskMaxUsedSpaceRatio", "cleanFileForciblyEnable")
_SOURCES = {
    SettingFrom.CONFIG_FILE: "broker.conf",
    SettingFrom.OVERRIDE: "--set",
    SettingFrom.RUNNING_BROKER: "running broker",
    SettingFrom.DEFAULT: "default",
}


@command()
@takes_store(lake=None, second_lake=True, connection=True, each=True, policy=("undo_directories",))
@json_option
def doctor(managed: ManagedStore | None) -> int:
    """Describe STORE, what is wrong with it or risky, and what to do, the most urgent first.

    It needs only the store. With --lake it also looks at the lake and its proofs of the store, and with
    --conn-id also at the store's DAGs in Airflow. Without arguments it looks at each store in the file of
    stores. It ends with the command to type next. Exit code 1: a finding is urgent.
    """
    from storage_engine.retention.doctor.doctor import diagnose

    context = click.get_current_context()
    if managed is None:
        return max(_call_for(name, context) for name in sorted(named_stores()))
    conn_id = context.params.get("conn_id")
    pipeline, retention_dag = (None, "") if conn_id is None else pipeline_of(conn_id, managed)
    lake_dir: Path | None = context.params.get("lake_dir")
    lake_missing = lake_dir is not None and not is_lake_there(lake_dir)
    try:
        with waiting("Looking"):
            diagnosis = diagnose(
                managed,
                clock_ms(),
                has_lake=has_lake(managed) and not lake_missing,
                pipeline=pipeline,
                retention_dag=retention_dag,
                runs="" if conn_id is None else places_of(conn_id, managed),
            )
    except StoreNotFoundError as error:
        # Only an edge worker's host has the store's disk. Airflow's view is printed nevertheless.
        if pipeline is None or pipeline.queue is None:
            raise
        if not wants_json():
            print_pipeline(pipeline, said_by(context), clock_ms())
            raise
        print_json("doctor", _elsewhere_json(managed, pipeline, error, said_by(context), clock_ms()))
        return 2
    if lake_missing:
        diagnosis = _without_lake(diagnosis, str(lake_dir))
    arguments = said_by(context)
    if conn_id is not None:
        arguments = with_store_of_connection(arguments, managed)
    answer("doctor", diagnosis_json(diagnosis, arguments), lambda _: print_diagnosis(diagnosis, arguments))
    return 1 if diagnosis.is_urgent else 0


def _without_lake(diagnosis: Diagnosis, lake_dir: str) -> Diagnosis:
    """Return a diagnosis for a call that names a lake where none exists."""
    where = make_commands(Path(lake_dir), diagnosis.store.broker)
    finding = Finding.warning(
        "no-lake", f"no lake there yet: {lake_dir}", Text("mount its disk, or make a lake ", where)
    )
    step = diagnosis.next
    if isinstance(step.command, Command) and step.command.words == "init-lake":
        step = replace(step, command=commands_in(where)[0])
    return replace(diagnosis, findings=sort_findings([*diagnosis.findings, finding]), next=step)


def _call_for(name: str, context: click.Context) -> int:
    """Call a context's command for a store in the file of stores, and return its exit code."""
    try:
        with context.command.make_context(context.info_name, [name], parent=context.parent) as call:
            return int(context.command.invoke(call) or 0)
    except StorageEngineError as error:
        print_error(error, Arguments(), as_json=False)
        return 2 if isinstance(error, BadInputError) else 1


def print_diagnosis(diagnosis: Diagnosis, arguments: Arguments) -> None:
    """Print a store's description, settings and findings, and the next command with known arguments."""
    width = min(terminal_width() or 80, _MOST_COLUMNS)
    say_styled(click.style(printable(store_head(diagnosis.store)), bold=True))
    for label, text in _about(diagnosis):
        _print_labelled(label, text, width)
    _print_settings(diagnosis, width)
    for finding in diagnosis.findings:
        _print_finding(finding, arguments, width)
    if not any(finding.severity is not Severity.NOTE for finding in diagnosis.findings):
        say_styled("\nNothing is wrong.")
    _print_next(diagnosis, arguments)


def print_pipeline(pipeline: PipelineFacts, arguments: Arguments, now_ms: int) -> None:
    """Print Airflow's view of a store that isn't on this host, and the findings on its DAGs."""
    width = min(terminal_width() or 80, _MOST_COLUMNS)
    for label, text in pipeline.lines(now_ms):
        _print_labelled(label, text, width)
    for finding in sort_findings([*pipeline_findings(pipeline, now_ms)]):
        _print_finding(finding, arguments, width)


def _about(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    from storage_engine.brokers import find_broker

    broker, title = diagnosis.said, find_broker(diagnosis.store.broker).words.title
    state = {True: "running", False: "stopped", None: "running or not"}[broker.running]
    if broker.running_text:
        state += f" ({broker.running_text})"
    yield "broker", f"{title}, version {broker.version or 'unknown'}; {state}"
    if broker.layout:
        yield "layout", "; ".join(broker.layout)
    if diagnosis.figures is not None:
        yield from _about_figures(diagnosis.figures, broker.newest_message_ms)
    yield from _about_lakes(diagnosis)
    if diagnosis.runs:
        yield "runs", f"archive and consumer lag {diagnosis.runs}"
    if diagnosis.pipeline is not None:
        yield from diagnosis.pipeline.lines(diagnosis.at_ms)


def _about_figures(figures: Figures, newest_ms: int | None) -> Iterator[tuple[str, str]]:
    from storage_engine.retention.doctor.space_and_time import deletion_text, growth_text

    logs = figures.snapshot.logs
    segments = sum(len(log.segments) for log in logs)
    spans = [f"{log.name + ' ' if len(logs) > 1 else ''}{log.min_offset} to {log.max_offset}" for log in logs]
    offsets = "; ".join(spans[:_MOST_LOGS])
    if len(spans) > _MOST_LOGS:
        offsets += f"; and {count_text(len(spans) - _MOST_LOGS, 'more log')}"
    yield "size", f"{count_text(segments, 'segment')}, {bytes_text(figures.log_bytes)}; offsets {offsets}"
    if figures.oldest_message_ms is not None and newest_ms is not None:
        yield "messages", f"{time_text(figures.oldest_message_ms)} to {time_text(newest_ms)}"
    disks: dict[object, DiskUsage] = {}
    for disk in figures.snapshot.disks:
        disks.setdefault(disk.path if disk.device is None else disk.device, disk)
    for disk in disks.values():
        level = f"{disk.used_percent} % used, {bytes_text(disk.usable_bytes)} free"
        yield "disk", f"{disk.path}: {'level unknown' if disk.used_percent is None else level}"
    yield "growth", growth_text(figures.growth) + _full_text(figures)
    yield "deletes", deletion_text(figures)


def _full_text(figures: Figures) -> str:
    """Return a clause on when the disk will be too full for writes; "" if never or unknown."""
    if figures.full_in_ms is None:
        return ""
    if figures.full_in_ms > _LONG_MS:
        return "; not full within a year"
    return f"; above {figures.full_percent} % in {duration_text(figures.full_in_ms)}"


def _about_lakes(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    if not diagnosis.lakes:
        return
    # Imports the lake's libraries, which are needed only with a lake.
    from storage_engine.retention.doctor.lake_check import lake_text

    for lake in diagnosis.lakes:
        yield _LAKE_LABELS.get(lake.title, lake.title), lake_text(lake, diagnosis.at_ms)
    if diagnosis.unproven is not None and diagnosis.figures is not None:
        archivable = len(diagnosis.figures.archivable.segments)
        proven = archivable - len(diagnosis.unproven) - len(diagnosis.touched) - diagnosis.left_out
        text = f"{proven} of {count_text(archivable, 'sealed segment')}"
        if diagnosis.touched:
            text += f"; {touched_text(len(diagnosis.touched))}"
        if diagnosis.left_out:
            text += f"; {diagnosis.left_out} not archived, by rule"
        out = len(diagnosis.figures.sealed) - archivable
        yield "proven", f"{text}; {out} more may not be archived yet" if out else text


def _print_settings(diagnosis: Diagnosis, width: int) -> None:
    by_source: dict[str, list[str]] = {}
    for setting in diagnosis.said.settings:
        if setting.source is SettingFrom.DEFAULT and setting.name not in _SHOWN_DEFAULTS:
            continue
        note = f" ({setting.note})" if setting.note else ""
        is_of_connection = setting.source is SettingFrom.OVERRIDE and diagnosis.pipeline is not None
        source = "connection" if is_of_connection else _SOURCES[setting.source]
        by_source.setdefault(source, []).append(f"{setting.name} {setting.value}{note}")
    for number, (source, values) in enumerate(by_source.items()):
        _print_labelled("" if number else "settings", f"{source}: {', '.join(values)}", width)


def _print_finding(finding: Finding, arguments: Arguments, width: int) -> None:
    label = click.style(
        f"{finding.severity.value.upper():<{_LABEL_WIDTH}}", fg=_COLORS[finding.severity], bold=True
    )
    _print_wrapped(f"\n{label}", _sentence(finding.what, arguments), width)
    if finding.advice:
        arrow = f"{'':<{_LABEL_WIDTH}}{click.style('→', bold=True)} "
        _print_wrapped(arrow, _sentence(finding.advice, arguments), width, _LABEL_WIDTH + 2)


def _sentence(text: str, arguments: Arguments) -> str:
    words = printable(with_arguments(text, arguments))
    # A setting, a command or a path stays as it is written.
    first = words.partition(" ")[0]
    return (
        words[:1].upper() + words[1:] if first.isalpha() and first.islower() and first != "airflow" else words
    )


def _print_next(diagnosis: Diagnosis, arguments: Arguments) -> None:
    command = _next_command(diagnosis, arguments)
    if command:
        say_styled(f"\n{printable(diagnosis.next.why[:1].upper() + diagnosis.next.why[1:])}.")
        say_styled(f"Next: {click.style(printable(command), bold=True)}")
    else:
        say_styled(f"\nNext: {printable(diagnosis.next.why)}")


def _next_command(diagnosis: Diagnosis, arguments: Arguments) -> str:
    """Return the next command, with this call's options for the store."""
    step = diagnosis.next.command
    if isinstance(step, Command) and step.given.startswith("STORE") and arguments.store is not None:
        given = f"{shlex.quote(arguments.store)}{step.given.removeprefix('STORE')}"
        return " ".join([str(replace(step, given=given)), *map(shlex.quote, arguments.store_options)])
    text = step if isinstance(step, str) else render_command(step, arguments)
    return f"{text} {diagnosis.next.options}".rstrip()


def _print_labelled(label: str, text: str, width: int) -> None:
    _print_wrapped(f"  {label:<{_LABEL_WIDTH - 2}}", printable(text), width)


def _print_wrapped(lead: str, text: str, width: int, indent: int = _LABEL_WIDTH) -> None:
    room = max(20, width - indent)
    first, *more = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    say_styled(f"{lead}{first}")
    for line in more:
        say_styled(f"{'':<{indent}}{line}")


def diagnosis_json(diagnosis: Diagnosis, arguments: Arguments) -> dict[str, Any]:
    """Return a diagnosis for programs, with this call's arguments in its commands."""
    figures = diagnosis.figures
    return {
        "store": diagnosis.store.root,
        "name": store_name(diagnosis.store),
        "at_ms": diagnosis.at_ms,
        "urgent": diagnosis.is_urgent,
        "broker": {
            "name": diagnosis.store.broker,
            "version": diagnosis.said.version or None,
            "running": diagnosis.said.running,
            "layout": list(diagnosis.said.layout),
        },
        "settings": to_jsonable(diagnosis.said.settings),
        "figures": None if figures is None else _figures_json(figures, diagnosis),
        "lakes": to_jsonable(diagnosis.lakes),
        "pipeline": to_jsonable(diagnosis.pipeline),
        "runs": diagnosis.runs or None,
        "findings": findings_json(diagnosis.findings, ("what", "advice"), arguments),
        "next": {"command": _next_command(diagnosis, arguments) or None, "why": diagnosis.next.why},
    }


def _elsewhere_json(
    store: ManagedStore, pipeline: PipelineFacts, error: Exception, arguments: Arguments, now_ms: int
) -> dict[str, Any]:
    """Return Airflow's view of a store on another host, with the same keys as for a store on this host."""
    findings = sort_findings([Finding.warning("not-here", Text(error)), *pipeline_findings(pipeline, now_ms)])
    return {
        "store": store.root,
        "name": store_name(store),
        "at_ms": now_ms,
        "urgent": any(finding.severity is Severity.URGENT for finding in findings),
        "broker": {"name": store.broker, "version": None, "running": None, "layout": []},
        "settings": [],
        "figures": None,
        "lakes": [],
        "pipeline": to_jsonable(pipeline),
        "runs": None,
        "findings": findings_json(findings, ("what", "advice"), arguments),
        "next": {"command": None, "why": "look where the store's disk is"},
    }


def _figures_json(figures: Figures, diagnosis: Diagnosis) -> dict[str, Any]:
    logs = figures.snapshot.logs
    return {
        "segments": sum(len(log.segments) for log in logs),
        "sealed_segments": len(figures.sealed),
        "size_bytes": figures.log_bytes,
        "logs": [
            {"name": log.name, "min_offset": log.min_offset, "max_offset": log.max_offset} for log in logs
        ],
        "oldest_message_ms": figures.oldest_message_ms,
        "newest_message_ms": diagnosis.said.newest_message_ms,
        "disks": to_jsonable(figures.snapshot.disks),
        "growth": to_jsonable(figures.growth),
        "forces_in_ms": figures.forces_in_ms,
        "full_in_ms": figures.full_in_ms,
        "next_deletion_ms": figures.next_deletion_ms,
        "due_segments": diagnosis.due,
        "unproven_segments": None if diagnosis.unproven is None else len(diagnosis.unproven),
        "touched_segments": len(diagnosis.touched),
        "unread": to_jsonable(figures.unread),
        "pending": to_jsonable(figures.pending),
    }
