"""What is lost when segments go: by consumers, by messages that wait, by what no lake proves. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence

from storage_engine.commands import Command, Text
from storage_engine.core.clock import DAY_MS
from storage_engine.core.wording import bytes_text, count_text, shortened, time_text
from storage_engine.model.broker.broker_store import Pending
from storage_engine.model.lag import UnreadMessages, touched_text
from storage_engine.model.report.diagnosis import Finding, Severity, named_in_short, reason_of
from storage_engine.model.store.store import Segment
from storage_engine.retention.doctor.space_and_time import Figures

_NAME_WIDTH = 30


def consumer_findings(found: Figures, unit: str = "queue") -> Iterator[Finding]:
    """Yield the groups that are about to lose messages.

    :param unit: what the messages of a topic are divided into.
    """
    severity = Severity.URGENT if found.leaves_in_ms <= DAY_MS else Severity.WARNING
    unread = found.unread
    if unread.error:
        # What can't be told may be anything: it is as urgent as a loss.
        yield Finding(
            severity,
            "consumers-unknown",
            f"what consumers lose {_when(found)} isn't known: {reason_of(unread.error)}",
            Text("look closer: ", Command("lag")),
        )
    known = [row for row in unread.rows if row.messages is not None]
    if known:
        groups = _by_group(known)
        listed = named_in_short([f"{shortened(name, _NAME_WIDTH)} {count}" for name, count in groups])
        more = f", and in {unread.more} more topics" if unread.more else ""
        yield Finding(
            severity,
            "consumers-lose",
            f"{count_text(len(groups), 'group')} {'loses' if len(groups) == 1 else 'lose'} "
            f"{count_text(sum(count for _, count in groups), 'unread message')} {_when(found)}: "
            f"{listed}{more}",
            Text("let them catch up, or archive first, which keeps them readable; details: ", Command("lag")),
        )
    unknown = sorted({row.group for row in unread.rows if row.messages is None})
    if unknown:
        yield Finding.warning(
            "consumers-unknown",
            f"in some {unit}s {count_text(len(unknown), 'group')} never committed an offset, and may need "
            f"what goes {_when(found)}: {named_in_short([shortened(one, _NAME_WIDTH) for one in unknown])}",
            Text("find out whether they are in use: ", Command("lag")),
        )


def _by_group(rows: Sequence[UnreadMessages]) -> list[tuple[str, int]]:
    found: dict[str, int] = {}
    for row in rows:
        found[row.group] = found.get(row.group, 0) + (row.messages or 0)
    return sorted(found.items(), key=lambda one: (-one[1], one[0]))


def _when(found: Figures) -> str:
    at_ms = _first_ms(found.leaving, found)
    if at_ms <= found.now_ms:
        return "at the next cleanup, which is due"
    return f"from {time_text(at_ms)} on"


def _first_ms(segments: Sequence[Segment], found: Figures) -> int:
    going = {segment.id for segment in found.going}
    known = [
        found.now_ms if segment.id in going else found.deletes_at_ms.get(segment.id) for segment in segments
    ]
    return min((at_ms for at_ms in known if at_ms is not None), default=found.now_ms)


def pending_findings(found: Figures) -> Iterator[Finding]:
    """Yield what the broker still has to deliver or to decide."""
    unknown = [item for item in found.pending if item.count is None]
    if unknown:
        kinds = " and ".join(item.kind.value for item in unknown)
        yield Finding.warning(
            "pending-unknown",
            f"whether {kinds} messages wait isn't known, and they go with their segments: "
            f"{reason_of(unknown[0].error)}",
            "give cleanups --pending-policy block, which keeps all segments",
        )
    there = [item for item in found.pending if item.count and item.first_offset is not None]
    leaving = [item for item in there if _leaves(item, found)]
    if leaving:
        yield Finding(
            Severity.URGENT if found.leaves_in_ms <= DAY_MS else Severity.WARNING,
            "pending-lose",
            f"{_listed(leaving)} in segments that go {_when(found)}{_consequences(leaving)}",
            "give cleanups --pending-policy block, which keeps those segments",
        )
    if staying := [item for item in there if item not in leaving]:
        yield Finding.note("pending", f"{_listed(staying)}{_until(staying)}")
    lost = [item for item in found.pending if item.lost]
    if lost:
        told = " and ".join(f"{item.lost} {item.kind.value}" for item in lost)
        yield Finding.note(
            "pending-lost",
            f"the broker waits for messages whose segments are gone: {told}{_consequences(lost)}",
        )


def _listed(items: Sequence[Pending]) -> str:
    told = " and ".join(f"{item.count} {item.kind.value}" for item in items)
    one = sum(item.count or 0 for item in items) == 1
    return f"{told} {'message waits' if one else 'messages wait'}"


def _until(items: Sequence[Pending]) -> str:
    due = [item.last_due_ms for item in items if item.last_due_ms is not None]
    return f", due until {time_text(max(due))}" if due else ""


def _leaves(item: Pending, found: Figures) -> bool:
    first = item.first_offset
    return first is not None and any(
        item.log in (None, segment.log) and first < segment.end_offset for segment in found.leaving
    )


def _consequences(items: Sequence[Pending]) -> str:
    return "".join(f"; {item.consequence}" for item in items if item.consequence)


def unproven_findings(
    found: Figures,
    unproven: Sequence[Segment] | None,
    stamped_lakes: Sequence[str],
    *,
    running: bool | None,
    some_unasked: bool = False,
    refused: Collection[str] = (),
    kind_option: str = "",
) -> Iterator[Finding]:
    """Yield the sealed segments that nothing proves, and when they go.

    :param unproven: that no lake proves; None: no lake was named, so that it counts as none.
    :param stamped_lakes: where the store's own stamp says that it was archived.
    :param running: a broker runs, which deletes by itself; None: that can't be told.
    :param some_unasked: one of two lakes couldn't be asked, and may prove some.
    :param refused: logs that no archive takes as they are.
    :param kind_option: by which a lake for the store's kind is made.
    """
    there = found.archivable.segments if unproven is None else tuple(unproven)
    if kept := [segment for segment in there if segment.log in refused]:
        logs = list(dict.fromkeys(segment.log for segment in kept))
        yield Finding(
            _urgency(kept, found, running),
            "unproven-refused",
            f"{count_text(len(kept), 'sealed segment')} of logs that no archive takes as they are, "
            f"{named_in_short(logs)}: {_plural(_span(kept, found, running), len(kept))}",
            "mend what is wrong with them, as said here; then archive them",
        )
    segments = [segment for segment in there if segment.log not in refused]
    if not segments:
        return
    size = bytes_text(sum(segment.disk_bytes for segment in segments))
    told = f"{count_text(len(segments), 'sealed segment')} ({size})"
    span = _span(segments, found, running)
    if unproven is None:
        proven = f"are proven in no lake that was named; {span}"
        make_options = f"--lake DIRECTORY{kind_option}" if kind_option else ""
        advice = (
            f"this store was archived before; name its lake: --lake {shlex.quote(stamped_lakes[0])}"
            if stamped_lakes
            else Text("make a lake and archive them: ", Command("init-lake", make_options))
        )
        yield Finding.warning("unproven", f"{told} {_plural(proven, len(segments))}", advice)
        return
    where = "no lake that could be asked" if some_unasked else "no lake"
    text = _plural(f"are proven in {where}; {span}", len(segments))
    severity = _urgency(segments, found, running)
    yield Finding(severity, "unproven", f"{told} {text}", Text("archive them: ", Command("archive")))


def touched_findings(count: int) -> Iterator[Finding]:
    """Yield that a lake has sealed segments whose files were touched since."""
    if count:
        yield Finding.note(
            "touched",
            touched_text(count),
            Text("a cleanup does it before it deletes them; to do it now: ", Command("archive")),
        )


def _urgency(segments: Sequence[Segment], found: Figures, running: bool | None) -> Severity:
    soon = _first_ms(segments, found) <= found.now_ms + DAY_MS and any(
        found.deletes_at_ms.get(one.id) is not None or one in found.going for one in segments
    )
    return Severity.URGENT if soon and running is not False else Severity.WARNING


def _plural(text: str, count: int) -> str:
    return text.replace("are ", "is ", 1).replace("them", "it") if count == 1 else text


def _span(segments: Sequence[Segment], found: Figures, running: bool | None) -> str:
    going = {one.id for one in found.going}
    moments = [found.now_ms if one.id in going else found.deletes_at_ms.get(one.id) for one in segments]
    known = sorted(at_ms for at_ms in moments if at_ms is not None)
    who = "its broker, once it runs, deletes them" if running is False else "its broker deletes them"
    if not known:
        never = all(one.id in found.deletes_at_ms for one in segments)
        return (
            "its broker never deletes them for their age" if never else f"{who} at an hour that isn't known"
        )
    first, last = (max(at_ms, found.now_ms) for at_ms in (known[0], known[-1]))
    if last <= found.now_ms:
        return f"{who} at any moment"
    begins = "now" if first <= found.now_ms else time_text(first)
    return f"{who} {begins}" if first == last else f"{who} from {begins} to {time_text(last)}"
