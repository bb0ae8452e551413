"""What verifying found wrong with a lake: reason to read a data file again before it is relied on."""

from __future__ import annotations

from dataclasses import replace

from storage_engine.lake.coverage.verify_turns import by_receipt, standing_fault
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.retention.proof.proofs import LakeProofs, Proofs
from storage_engine.retention.proof.verification_memory import VerificationMemory


def read_faulty_files(journal_url: str, proofs: Proofs) -> Proofs:
    """Read the data files that ``verify`` found a fault in, and take those that have it still for what they
    are: to read every file at each archiving would cost as much as verifying.

    :raises LakeUnavailableError: a file can't be read.
    """
    memory = VerificationMemory(journal_url)
    return replace(proofs, asked=tuple(_read_faulty_files(memory, lake) for lake in proofs.asked))


def _read_faulty_files(memory: VerificationMemory, proofs: LakeProofs) -> LakeProofs:
    history = by_receipt(memory.recall(str(proofs.lake.segments().metadata.table_uuid)))
    held = [row for rows in proofs.rows.values() for row in rows if row.identity not in proofs.faults]
    faulty = [row for row in held if standing_fault(history, row)]
    return replace(proofs, faults={**proofs.faults, **broken_receipts(proofs.lake, faulty, Depth.FILES)})
