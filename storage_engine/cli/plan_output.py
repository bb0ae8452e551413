"""How a plan is shown: every segment with its verdict and the reason for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from storage_engine.cli.output import bytes_text, print_table
from storage_engine.model.jsonable import to_jsonable
from storage_engine.retention.preview import Preview


def plan_json(seen: Preview) -> dict[str, Any]:
    """A previewed plan as plain values, with what follows from it spelled out."""
    plan = seen.plan
    return {
        **to_jsonable(plan),
        "digest": plan.digest,
        "new_min_offset": plan.new_min_offset,
        "delete_offsets": [segment.base_offset for segment in plan.to_delete],
        "dependents": to_jsonable(seen.dependents),
        "disks": to_jsonable(seen.disks),
    }


def print_plan(seen: Preview) -> None:
    plan = seen.plan
    for trigger in plan.triggers:
        click.echo(f"Cause: {trigger.cause.value} ({trigger.urgency.value}): {trigger.detail}")
    if not plan.triggers:
        click.echo("Cause: none holds")
    for disk in seen.disks:
        level = f"unknown ({disk.error})" if disk.used_percent is None else f"{disk.used_percent} % used"
        click.echo(f"Disk {disk.path}: {level}")
    for notice in plan.notices:
        click.echo(f"Note: {notice}")
    print_table(
        f"Log {plan.log}",
        ("segment", "size#", "verdict", "reason", "why"),
        (
            (
                decision.segment.name,
                bytes_text(decision.segment.facts.size_bytes),
                "delete" if decision.deletes else "keep",
                decision.reason.value,
                decision.detail,
            )
            for decision in plan.decisions
        ),
    )
    if seen.dependents:
        print_table(
            "Files that go with them",
            ("kind", "file", "size#", "why"),
            (
                (
                    file.kind.value,
                    _within(file.facts.path, plan.store_root),
                    bytes_text(file.facts.size_bytes),
                    file.detail,
                )
                for file in seen.dependents
            ),
        )
    if not plan.to_delete:
        click.echo("Nothing would go.")
        return
    freed = sum(segment.facts.size_bytes for segment in plan.to_delete)
    freed += sum(file.facts.size_bytes for file in seen.dependents)
    click.echo(
        f"{len(plan.to_delete)} segments and {len(seen.dependents)} dependent files would go, "
        f"{bytes_text(freed)} in all; the log would begin at {plan.new_min_offset}. Plan {plan.digest}"
    )


def _within(path: str, root: str) -> str:
    return str(Path(path).relative_to(root)) if Path(path).is_relative_to(root) else path
