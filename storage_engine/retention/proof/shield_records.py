"""What the journal has of a shield: each last name that was dropped, on which receipt."""

from __future__ import annotations

from storage_engine.journal.journal import Phase, Run, Step
from storage_engine.model.proof.receipt import Receipt
from storage_engine.retention.proof.history import segment_subject
from storage_engine.retention.store.context import Context
from storage_engine.shield.index import Link


def record_meant(context: Context, run: Run, link: Link, receipt: Receipt) -> None:
    """Record that a link is about to be dropped."""
    _record(context, run, Phase.INTENT, link, receipt)


def record_dropped(context: Context, run: Run, link: Link, receipt: Receipt) -> None:
    """Record that a link was dropped."""
    _record(context, run, Phase.RESULT, link, receipt)


def _record(context: Context, run: Run, phase: Phase, link: Link, receipt: Receipt) -> None:
    said = {"lineage": link.lineage, "sha256": receipt.sha256, "receipt_hash": receipt.row_hash}
    subject = segment_subject(link.log, link.base_offset)
    context.journal.record(run, Step.SHIELD, phase, [(subject, said)])
