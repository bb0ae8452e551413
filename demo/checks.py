"""What has to hold after a demo, found out from the files and the lake and not from what the run says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.dag_run import Say
from storage_engine.exceptions import StorageEngineError
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.restore.restore import choose_segments, write_segments
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import current, list_stores, receipt_history
from storage_engine.project.init import Project
from storage_engine.project.up import SampleStore


@dataclass(frozen=True, slots=True)
class DemoCheck:
    """One thing that has to hold.

    :param text: what was expected; where it does not hold, what was found instead.
    """

    holds: bool
    text: str


def tell_checks(checks: Sequence[DemoCheck], where_from: str, tell: Say) -> None:
    """Say what held and what did not.

    :param where_from: it was found out.
    """
    tell("")
    tell(f"Checked afterwards, from {where_from}")
    for check in checks:
        tell(f"  {'ok  ' if check.holds else 'FAIL'} {check.text}")
    tell("")


def segment_hashes(store_root: Path) -> dict[str, str]:
    """SHA-256 of every file of the commitlog, by name."""
    return file_hashes((store_root / "commitlog").iterdir())


def file_hashes(paths: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of files, by name."""
    return {path.name: _sha256(path) for path in sorted(paths)}


def check_outcome(
    project: Project,
    sample: SampleStore,
    before: Mapping[str, str],
    run_state: str,
    result: Mapping[str, Any],
) -> tuple[DemoCheck, ...]:
    """Compare store, lake and report with what they have to be.

    :param before: the segments' hashes before the run.
    :param run_state: final state of the DAG run.
    :param result: what the report task gave.
    """
    old = {path.name for path in sample.old}
    left = segment_hashes(sample.root)
    kept = {name: digest for name, digest in before.items() if name not in old}
    return (
        DemoCheck(run_state == "success", f"the DAG run ended: {run_state}"),
        DemoCheck(not old & set(left), f"the {len(old)} expired segments are gone"),
        DemoCheck(left == kept, f"the {len(kept)} others are there, byte for byte as before"),
        *_check_lake(project, {name: before[name] for name in sorted(old)}),
        check_report(result),
    )


def _check_lake(project: Project, expected: Mapping[str, str]) -> tuple[DemoCheck, ...]:
    """The lake proves exactly the deleted segments, and gives each back as it was."""
    try:
        lake = open_lake(LakeConfig.local(project.lake))
        (store,) = list_stores(lake)
        history = receipt_history(lake, store.store_id)
        check_chain(history)
        rows = current(history)
        serving = [project.home / "broker.conf"]
        chosen = choose_segments(lake, store.store_id, serving=serving)
        restored = write_segments(chosen, project.home / "restored")
    except (StorageEngineError, ValueError) as error:
        return (DemoCheck(False, f"the lake can be read and restored from: {error}"),)
    proven = {f"{row.base_offset:020d}": row.sha256 for row in rows}
    returned = {Path(segment.path).name: _sha256(Path(segment.path)) for segment in restored}
    return (
        DemoCheck(
            proven == expected, f"the lake has a receipt for each of them, {len(rows)} in an unbroken chain"
        ),
        DemoCheck(
            returned == expected,
            f"restored from the lake to {project.home / 'restored'}, they are the original files",
        ),
    )


def check_report(result: Mapping[str, Any]) -> DemoCheck:
    """The report says that all went well, and that the validation found nothing."""
    if "report_json" not in result:
        return DemoCheck(False, "a report was written (the report task gave none)")
    report = json.loads(Path(result["report_json"]).read_text())
    validation = (report.get("validation") or {}).get("checks", [])
    broken = [check["expectation"] for check in validation if check["status"] != "OK"]
    holds = bool(report["ok"] and validation and not broken and Path(result["report_html"]).is_file())
    found = f"; broken: {', '.join(broken)}" if broken else ""
    return DemoCheck(holds, f"the report is there, and its {len(validation)} validation checks are OK{found}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
