"""Findings on files that runs have left in a store, and findings from the store's journal.

The journal has the last retention report, and the logs that the last archive refused. Archiving such a log
again helps only after the log is mended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from storage_engine.brokers import find_broker
from storage_engine.commands import Command, Text
from storage_engine.core.clock import DAY_MS
from storage_engine.core.host import is_this_host
from storage_engine.core.jsonable import from_jsonable
from storage_engine.core.wording import bytes_text, count_text, shorten, time_text
from storage_engine.exceptions import StoreIdentityError
from storage_engine.journal.records import Phase, Step
from storage_engine.lake.catalog.config import CATALOG_FILE
from storage_engine.model.broker.broker_store import BrokerStore, course_of
from storage_engine.model.hold import HoldStatus
from storage_engine.model.report.diagnosis import Finding, Severity, named_in_short
from storage_engine.model.report.usage import DeletionHours, RetentionReport, hour_advice
from storage_engine.model.simulation import SettingType
from storage_engine.model.store import Segment
from storage_engine.retention.hold.hold_text import hold_end_text
from storage_engine.retention.proof.refusing import LOGS_SHOWN, REFUSED, RefusedLog
from storage_engine.retention.proof.shielding import ShieldSummary, shield_summary
from storage_engine.retention.quarantine.places import (
    QuarantineLook,
    look_at_quarantines,
    unknown_quarantines,
    unknown_text,
)
from storage_engine.retention.store.broker_answers import ask
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import Stamp, missing_stamps, read_stamp
from storage_engine.retention.store.unnamed_lakes import directory_of

if TYPE_CHECKING:
    from storage_engine.journal.journal import Journal, StoreRecord


def shield_findings(shield: ShieldSummary | None, *, running: bool | None) -> Iterator[Finding]:
    """Judge a shield. Pure.

    :param shield: the shield's content, or None if there is no shield.
    :param running: a broker runs on the store, or None if unknown.
    """
    if shield is None:
        return
    if shield.gone:
        yield Finding.warning(
            "shield",
            f"{count_text(len(shield.gone), 'segment')} deleted from the log, the first at offset "
            f"{shield.gone[0]}, are still in the shield. This command didn't ask whether a lake has them",
            Text("archive the segments that no lake has, and drop the others: ", Command("shield")),
        )
    elif shield.links and not running:
        yield Finding.note(
            "shield",
            f"a shield was left behind: {count_text(shield.links, 'segment')} are still linked there "
            f"({bytes_text(shield.kept_bytes)}), so deleting them frees no space",
            Text("remove it once they are archived: ", Command("shield")),
        )
    elif shield.notices:
        yield Finding.warning("shield", shield.notices[0])


def quarantine_findings(
    looks: Sequence[QuarantineLook], now_ms: int, known: Iterable[str] | None = None
) -> Iterator[Finding]:
    """Judge quarantines. Pure.

    :param known: directories of the quarantines that the journal knows, or None if the journal wasn't asked.
    """
    unknown = () if known is None else unknown_quarantines(looks, known)
    for look in unknown:
        yield Finding.warning("unknown-quarantine", *unknown_text(look))
    looks = [look for look in looks if look not in unknown]
    expired = [look for look in looks if look.until_ms is not None and look.until_ms <= now_ms]
    size = bytes_text(sum(look.size_bytes for look in looks))
    if expired:
        yield Finding.note(
            "quarantine",
            f"{size} are in quarantines. The first should have been emptied {time_text(expired[0].until_ms)}",
            "the next cleanup empties it if a lake still proves its files",
        )
    elif looks:
        yield Finding.note("quarantine", f"deleted files in quarantines still take {size} of space")


def stamp_findings(stamp: Stamp | None, real_root: str) -> Iterator[Finding]:
    """Judge where the stamp in a store's root was written."""
    if stamp is None or (stamp.root == real_root and is_this_host(stamp.machine)):
        return
    machine = f"machine {stamp.machine}"
    place = machine if stamp.root == real_root else f"{stamp.root} on {machine}"
    yield Finding.note(
        "moved",
        f"its stamp was written on {place}: this store was moved, or it is a copy",
        Text("if it was moved, and nobody manages the original: ", Command("move NAME")),
    )


def replaced_findings(missing: Sequence[Path]) -> Iterator[Finding]:
    """Judge directories without the store's stamp, if other directories have it. Pure."""
    for path in missing:
        yield Finding.warning(
            "directory-without-stamp",
            f"{path} has no stamp of the store, which its other directories have",
            "see whether its disk was replaced, and whether its logs are there",
        )


def look_at_remains(
    store: ManagedStore,
    data_paths: Sequence[Path],
    now_ms: int,
    *,
    running: bool | None,
    quarantines: Iterable[str] | None = None,
) -> tuple[tuple[Finding, ...], Stamp | None]:
    """Look at files that runs have left in a store.

    :param quarantines: directories of the quarantines that the journal knows; None if it wasn't asked.
    :return: findings, and the stamp; None if there is no stamp or it can't be read.
    """
    findings = [*shield_findings(shield_summary(store.real_root), running=running)]
    with suppress(OSError):
        findings += quarantine_findings(look_at_quarantines(store, data_paths), now_ms, quarantines)
    stamp = None
    try:
        stamp = read_stamp(store.real_root)
        findings += stamp_findings(stamp, store.real_root)
        findings += replaced_findings(missing_stamps(store.real_root))
    except StoreIdentityError as error:
        findings.append(Finding.warning("stamp", Text(error)))
    return tuple(findings), stamp


def hold_findings(hold: HoldStatus | None) -> Iterator[Finding]:
    """Judge the hold on a running broker's store. Pure.

    :param hold: the hold's status, or None if no broker was named.
    """
    if hold is None:
        return
    for drift in hold.disturbances:
        yield Finding.warning("drift", drift.detail.removesuffix("."))
    if hold.left_to_broker:
        yield Finding.note("hold", f"its broker deletes by its own rules; {hold.described}")
        return
    for alarm in hold.alarms:
        yield Finding.warning("not-held", alarm.removesuffix("."))
    if hold.unheld:
        text = f"not held at this moment: {named_in_short(sorted(hold.unheld))}"
        yield Finding.warning("not-held", text, Text("hold it: ", Command("hold")))
    if hold.held:
        for notice in hold.notices:
            yield Finding.note("hold", notice.removesuffix("."))
        return
    reason = Text(" (", hold.notices[0].removesuffix("."), ")") if hold.notices else ""
    text = Text("the store isn't held, so its broker deletes by its own rules", reason)
    yield Finding.warning("not-held", text, Text("hold it: ", Command("hold")))


def hold_end_findings(hold: HoldStatus | None, unproven: str, now_ms: int) -> Iterator[Finding]:
    """Judge when a hold runs out by itself. Pure.

    :param unproven: text on segments that may be deleted unproven within a day of the hold's end, or "".
    """
    if hold is None or not hold.is_half_over(now_ms):
        return
    severity = Severity.URGENT if unproven and (hold.ends_at_ms or 0) <= now_ms + DAY_MS else Severity.WARNING
    advice = Text("find out why it isn't renewed: ", Command("hold"), "; archive: ", Command("archive"))
    yield Finding(severity, "hold-ends", hold_end_text(hold, unproven), advice)


def local_lakes(stamp: Stamp | None) -> tuple[str, ...]:
    """Return the directories of the lakes that a stamp names, without those that are known to be missing."""
    places = [] if stamp is None else [directory_of(head) for head in stamp.lakes]
    return tuple(dict.fromkeys(place for place in places if place and _may_exist(Path(place) / CATALOG_FILE)))


def _may_exist(path: Path) -> bool:
    """Return whether a file exists. Return True also if this user may not look it up."""
    try:
        return path.is_file()
    except PermissionError:
        return True


_WHY_WIDTH = 600


def refused_by_last_archive(
    journal: Journal | None, record: StoreRecord | None, unproven: Sequence[Segment]
) -> tuple[RefusedLog, ...]:
    """Return the logs that the last archive refused and that have unproven segments, sorted by name.

    :param journal: None, like ``record``, if nothing was archived yet.
    :raises StorageEngineError: the journal can't be read.
    """
    if journal is None or record is None or not unproven:
        return ()
    logs = {segment.log for segment in unproven}
    last = journal.last_result(record.store_id, Step.SEALED)
    refused: dict[str, RefusedLog] = {}
    for event in journal.store_events(record.store_id, Step.SEALED, Phase.ERROR):
        is_last = last is None or event.event_id > last.event_id or event.run_key == last.run_key
        if is_last and event.subject in logs and REFUSED in event.payload:
            refused[event.subject] = from_jsonable(RefusedLog, event.payload[REFUSED])
    return tuple(refused[log] for log in sorted(refused))


def refused_findings(refused: Sequence[RefusedLog]) -> Iterator[Finding]:
    """Yield a finding for each of the first refused logs, and one finding on the number of further logs."""
    for log in refused[:LOGS_SHOWN]:
        reason = shorten(log.why, _WHY_WIDTH).rstrip(".")
        text = f"log {log.log} was refused by the last archive: {reason}"
        yield Finding.warning("archive-refused", text, log.remedy.rstrip("."))
    if (more := len(refused) - LOGS_SHOWN) > 0:
        text = f"the last archive refused {count_text(more, 'more log')}, as its report says"
        yield Finding.warning("archive-refused", text)


def deletion_hours(kind: str, broker: BrokerStore) -> DeletionHours | None:
    """Return the hours at which a broker deletes by age, or None if it deletes at any hour."""
    rules = find_broker(kind).rules
    names = [row.name for row in rules.settings if row.type is SettingType.HOURS] if rules else []
    if rules is None or not names:
        return None
    hours = ask(kind, "tell its rules", lambda: rules.hours(rules.values(course_of(broker).rule_config())))
    return DeletionHours(names[0], hours)


def usage_findings(
    kind: str, broker: BrokerStore, journal: Journal, record: StoreRecord
) -> Iterator[Finding]:
    """Yield a note on the quiet hour in the last retention report, with advice if the broker deletes at other
    hours.

    :raises StorageEngineError: the journal can't be read.
    """
    last = journal.last_result(record.store_id, Step.RETENTION_REPORT)
    if last is None:
        return
    quiet = from_jsonable(RetentionReport, last.payload["result"]).quiet
    advice = hour_advice(quiet, deletion_hours(kind, broker))
    if advice is not None:
        yield Finding.note("quiet-hour", advice.what, advice.advice)
