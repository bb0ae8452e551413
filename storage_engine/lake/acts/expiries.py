"""By which policy, and since when, segments expired."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from storage_engine.core.wording import time_text
from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.acts.act_files import read_acts
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.model.keep.acts import DECIDING, SHOWN_CHARACTERS, RecordedAct
from storage_engine.model.proof.receipt import Receipt


def read_expiries(lake: Lake, acts: Iterable[str]) -> Mapping[str, str]:
    """Return by which policy, and since when, acts expired something, as clauses by the SHA-256 of the act.

    Those that can't be read are left out: ``verify`` says what is wrong with them.

    :param acts: SHA-256 of acts, as receipts name them; where none is named nothing is read.
    """
    wanted = set(acts) - {""}
    if not wanted:
        return {}
    try:
        every_act = read_acts(lake)
    except LakeUnavailableError:
        return {}
    return {sha256: text for sha256, text in expiry_texts(every_act).items() if sha256 in wanted}


def merged_expiries(ended: Iterable[tuple[Lake, Iterable[Receipt]]]) -> Mapping[str, str]:
    """Return the same of receipts that may be of several lakes, each with a lake to look their acts up in."""
    found: dict[str, str] = {}
    for lake, rows in ended:
        found |= read_expiries(lake, (row.act_sha256 for row in rows))
    return found


def expiry_texts(acts: Sequence[RecordedAct]) -> dict[str, str]:
    """Return for each act the version of the policy that was in force, and when it was recorded. Pure.

    :param acts: of a lake, the newest last.
    """
    texts, version = {}, "unknown"
    for recorded in acts:
        if recorded.act.decision.kind in DECIDING:
            version = recorded.sha256
        since = time_text(recorded.act.at_ms)
        texts[recorded.sha256] = f"by policy {version[:SHOWN_CHARACTERS]} since {since}"
    return texts
