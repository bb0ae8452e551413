"""Care for a store's shield: link unproven segments, and archive deleted segments by means of their links.

A link is dropped in four cases:

- Its segment is in the log, and needs no link.
- One of our runs deleted the segment without a receipt, by the policy, a waiver or an archive rule.
- A lake proves the link's bytes, by the same rule as for a deletion.
- The disk is too full. Then the journal records the loss.

A link's bytes are read if its file facts leave open whether they changed. A call may be killed at any
instant, and repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from storage_engine.commands import Command, Text
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import (
    GateRefusedError,
    LakeUnavailableError,
    ShieldError,
    StorageEngineError,
    StoreLayoutError,
)
from storage_engine.journal.journal import Phase, Run, Step
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.storage.pace import pace_at
from storage_engine.model.hold import Drift, DriftKind, ShieldNeed
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.settings.policy import ArchiveMode, ShieldMode
from storage_engine.model.store import Lineages, Segment, SegmentState
from storage_engine.retention.archive.archivable import still_unproven
from storage_engine.retention.archive.archiving import archive_somewhere, begin_background_run
from storage_engine.retention.proof.gate import is_proven_file
from storage_engine.retention.proof.history import SegmentRelease, release_by_any_run, segment_subject
from storage_engine.retention.proof.proofs import Proofs, read_proofs, read_store_permits, witness_release
from storage_engine.retention.proof.shielding import (
    COMMAND,
    WAY_OUT,
    AskedGone,
    changed_text,
    shield_notices,
    written_text,
)
from storage_engine.retention.store.broker_answers import take_sealed_files
from storage_engine.retention.store.brokers import no_shield, refuse_shield
from storage_engine.retention.store.context import AnyStore, Context, open_context
from storage_engine.retention.store.known_heads import known_heads
from storage_engine.retention.store.stamp import mark_shield
from storage_engine.same_bytes.own_acts import read_own_acts
from storage_engine.shield.index import (
    Link,
    LinkKind,
    Place,
    SeenLink,
    Shield,
    Wanted,
    choose_links,
    digest_of,
    log_was_written,
    look_at_shield,
    pick_given_up,
    remove_shield,
    room_bytes,
    without_use,
)
from storage_engine.shield.links import drop_links, drop_unchanged, make_links, note_digest


@dataclass(frozen=True, slots=True)
class JudgedLink:
    """A link, and what the lakes' receipts say about its segment.

    :param receipt: the receipt that proves exactly the link's bytes, or None.
    :param problem: why the link's bytes may not be those of the segment, or "" if nothing shows that.
    """

    seen: SeenLink
    receipt: Receipt | None = None
    problem: str = ""

    @property
    def segment(self) -> Segment:
        """Return the segment to archive. It has the segment's log and offset, and the link's file."""
        link = self.seen.link
        return Segment(link.log, link.base_offset, self.seen.facts, SegmentState.SEALED, link.mtime_ns)


def counting(proofs: Proofs, slot: tuple[str, int]) -> Receipt | None:
    """Return the receipt that counts for a segment; None without a receipt, or if receipts disagree."""
    receipts = [lake.of(slot)[0] for lake in proofs.asked if len(lake.of(slot)) == 1 and lake.valid(slot)]
    hashes = {row.sha256 for lake in proofs.asked for row in lake.valid(slot)}
    return receipts[0] if receipts and len(hashes) == 1 else None


def unproven_segments(segments: Iterable[Segment], links: Sequence[JudgedLink]) -> tuple[Segment, ...]:
    """Return the segments of the log, without those whose links are proven by a receipt."""
    proven = {
        (judged.seen.link.segment.device, judged.seen.link.segment.inode)
        for judged in links
        if judged.receipt is not None
    }
    return tuple(segment for segment in segments if (segment.facts.device, segment.facts.inode) not in proven)


def judge_link(root: str, seen: SeenLink, proofs: Proofs, *, to_drop: bool = False) -> JudgedLink:
    """Compare a link with the receipt of its segment, if there is one.

    The link's bytes are read if the file facts leave open whether these bytes changed.

    :param to_drop: the caller drops a proven link, so a hard link is read whatever its facts say. A write to
        the segment changes the link as well, and a mended fence resets the mtime that would show the write.
    :raises ShieldError: the shield can't be read or written.
    """
    link, row = seen.link, counting(proofs, seen.link.slot)
    if row is not None:
        as_segment = JudgedLink(seen).segment
        if seen.is_same and link.sha256 and link.sha256 != row.sha256:
            return JudgedLink(seen, problem=_contradiction(seen, row))
        is_proven = bool(link.sha256) or is_proven_file(as_segment, row, proofs.acts)
        if seen.is_same and is_proven and not (to_drop and link.kind is LinkKind.HARD_LINK):
            return JudgedLink(seen, row)
        sha256 = digest_of(root, seen, pace_at(None).spend)
        if sha256 == row.sha256:
            return JudgedLink(_remember_digest(root, seen, sha256), row)
        if sha256 is not None and seen.is_same:
            # With a recorded digest the link isn't read again each time.
            seen = _remember_digest(root, seen, sha256)
        return JudgedLink(seen, problem=_contradiction(seen, row, sha256) if sha256 is not None else "")
    if seen.is_same:
        return JudgedLink(seen)
    if link.sha256 and digest_of(root, seen, pace_at(None).spend) == link.sha256:
        return JudgedLink(_remember_digest(root, seen, link.sha256))
    if not seen.has_left_log:
        # Even if it was changed, it is the file that the broker has in its log.
        return JudgedLink(seen)
    return JudgedLink(seen, problem="changed")


def _remember_digest(root: str, entry: SeenLink, sha256: str) -> SeenLink:
    note_digest(root, entry, sha256)
    link = replace(entry.link, sha256=sha256, kept=replace(entry.facts, path=entry.link.name))
    return replace(entry, link=link, is_same=True)


def _contradiction(entry: SeenLink, row: Receipt, sha256: str = "") -> str:
    return Text(
        f"{entry.facts.path}: expected SHA-256 {row.sha256}, which the receipt of offset {row.base_offset} "
        f"proves, found other bytes, {sha256 or entry.link.sha256}: the broker wrote these offsets again, or "
        "another program changed the file. It is kept, and not archived. If the broker did, run ",
        Command("adopt"),
        f" for what is in the log. {WAY_OUT}",
    )


def release_of(context: Context, seen: SeenLink) -> SegmentRelease | None:
    """Return the deletion by which one of our runs deleted a link's segment, or None if others deleted it."""
    link = seen.link
    segment = Segment(link.log, link.base_offset, link.segment, SegmentState.SEALED, link.mtime_ns)
    return release_by_any_run(context.journal, context.record.store_id, segment)


def ask_of_gone(context: Context, shield: Shield) -> AskedGone:
    """Ask journal and lakes about the shield's segments that are gone from the log. Changes nothing."""
    unreleased = [entry for entry in shield.left_log if release_of(context, entry) is None]
    unproven: list[SeenLink] = []
    unreachable: list[str] = []
    for links in by_lineage(unreleased).values():
        try:
            proofs = _proofs(_with_lineage(context, links), {entry.link.slot for entry in links})
        except StorageEngineError as error:
            unproven += links
            unreachable.append(Text(error))
            continue
        unproven += [entry for entry in links if not _may_be_proven(entry, counting(proofs, entry.link.slot))]
        unreachable += [reason for _, reason in proofs.unreachable]
    return AskedGone(tuple(unproven), tuple(dict.fromkeys(unreachable)))


def _may_be_proven(entry: SeenLink, row: Receipt | None) -> bool:
    """Return whether a receipt seems to prove a link's bytes. The bytes aren't read."""
    if row is None:
        return False
    return entry.link.sha256 == row.sha256 if entry.link.sha256 else entry.is_same


def asked_notices(context: Context, going: Sequence[Segment] = ()) -> tuple[str, ...]:
    """Ask lakes and journal about a shield's segments, and return notices on the shield.

    :raises ShieldError: the shield's content is unknown.
    """
    return shield_notices(context.store.real_root, going, partial(ask_of_gone, context))


def by_lineage(links: Sequence[SeenLink]) -> Mapping[int, list[SeenLink]]:
    groups: dict[int, list[SeenLink]] = {}
    for entry in links:
        groups.setdefault(entry.link.lineage, []).append(entry)
    return groups


def _record_drop(context: Context, run: Run, phase: Phase, link: Link, receipt: Receipt) -> None:
    payload = {"lineage": link.lineage, "sha256": receipt.sha256, "receipt_hash": receipt.row_hash}
    context.journal.record(run, Step.SHIELD, phase, [(segment_subject(link.log, link.base_offset), payload)])


@dataclass(frozen=True, slots=True)
class ShieldedLog:
    """The sealed segments of a log that has a shield.

    :param sealed: its sealed segments, oldest first.
    :param is_whole: no segment is missing between them; otherwise the list may be incomplete.
    """

    sealed: tuple[Segment, ...] = ()
    is_whole: bool = True
    is_known: bool = True


def look_at_log(context: Context, notices: list[str]) -> ShieldedLog:
    """Return a log's sealed segments, even if another program removed some from the middle of the log."""
    try:
        try:
            snapshot = context.snapshot(clock_ms())
            return ShieldedLog(tuple(segment for log in snapshot.logs for segment in log.sealed))
        except StoreLayoutError as error:
            notices.append(Text("the log isn't whole: ", error))
            return ShieldedLog(take_sealed_files(context.broker, context.store.broker), is_whole=False)
    except (StorageEngineError, OSError) as error:
        notices.append(
            Text("no further segment is shielded: the log can't be looked at: ", reason_text(error))
        )
        return ShieldedLog(is_known=False)


def give_up(context: Context, run: Run, reasons: Mapping[str, str], notices: list[str]) -> tuple[int, ...]:
    """Drop the oldest link that is its file's last name, if the disk is above the policy's level.

    Each call drops one link, after a new look at the disk: the space may be freed late, for example while a
    process has the file open. The loss is recorded before the link is dropped.

    :param reasons: name of a link → why the caller's attempt to archive it has just failed. A link without
        such an attempt isn't dropped.
    :return: base offset of the dropped link, if there is one.
    """
    root, percent = context.store.real_root, context.store.policy.shield_give_up_percent
    used_percent = _read_need(context).used_percent
    tried = tuple(entry for entry in look_at_shield(root).links if entry.link.name in reasons)
    entry = pick_given_up(Shield(tried), used_percent, percent)
    if entry is None:
        return ()
    link = entry.link
    loss = Drift(
        DriftKind.GIVEN_UP,
        Text(
            f"expected room for the log's bytes [{link.base_offset}, {link.end_offset}), which another "
            f"program deleted and only the shield had, found the disk {used_percent} % full, above "
            f"shield_give_up_percent {percent}: they were given up for space. Not archived before: ",
            reasons[link.name],
            ".",
        ),
        log=link.log,
        start_offset=link.base_offset,
        end_offset=link.end_offset,
    )
    _record_once(context, run, link, loss)
    drop_links(root, [link.name])
    notices.append(loss.detail)
    return (link.base_offset,)


def _record_once(context: Context, run: Run, link: Link, loss: Drift) -> None:
    """Record a loss before the link is dropped, unless a killed call has already recorded it."""
    subject = f"{loss.kind.value}: {loss.log} [{loss.start_offset}, {loss.end_offset})"
    events = context.journal.store_events(context.record.store_id, Step.DRIFT, Phase.RESULT)
    if any(event.subject == subject and event.payload["lineage"] == link.lineage for event in events):
        return
    payload = {"lineage": link.lineage, "disturbance": to_jsonable(loss)}
    context.journal.record(run, Step.DRIFT, Phase.RESULT, [(subject, payload)])


SHIELD_RUN = "shield"
"""Key of the run under which a store's shield is recorded."""

_TOGETHER = 2
"""Segments in one commit: enough for two threads, and few enough to free disk space soon."""


@dataclass(frozen=True, slots=True)
class ShieldResult:
    """Result of one look at a shield: changes, and the present content.

    :param gone: base offsets of unproven segments that only the shield has, even if other files now have the
        names of these segments.
    :param archived: base offsets of segments that were now archived from their links.
    :param given_up: base offsets of segments that were now given up for space.
    :param linked_paths: paths of segments in the log that have a link.
    :param next_segments: sealed and unproven segments to link next, oldest first.
    :param room_bytes: most bytes of these segments that may be linked, or None for no limit.
    :param log_lineages: name of a log → its own lineage, if it differs from the store's.
    """

    links: int = 0
    gone: tuple[int, ...] = ()
    archived: tuple[int, ...] = ()
    given_up: tuple[int, ...] = ()
    linked_paths: tuple[str, ...] = ()
    next_segments: tuple[Segment, ...] = ()
    room_bytes: int | None = None
    lineage: int = 0
    notices: tuple[str, ...] = ()
    log_lineages: Mapping[str, int] = field(default_factory=dict)
    is_log_known: bool = True

    @property
    def lineages(self) -> Lineages:
        return Lineages(self.lineage, self.log_lineages)

    def following(self, count: int) -> tuple[Segment, ...]:
        """Return the next segments to link after ``count`` segments were deleted, if there is room."""
        room_bytes, segments = self.room_bytes, []
        for segment in self.next_segments[:count]:
            if room_bytes is not None:
                room_bytes -= segment.facts.size_bytes
                if room_bytes < 0:
                    break
            segments.append(segment)
        return tuple(segments)


@dataclass(slots=True)
class _Tending:
    """One look at a shield, and its results so far.

    :param in_lake: names of links whose segments were archived now.
    :param failed: name of a link → why the attempt to archive its segment failed.
    """

    context: Context
    run: Run
    need: ShieldNeed
    archived: list[int] = field(default_factory=list)
    in_lake: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    given_up: list[int] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def fail(self, seen: SeenLink, why: str) -> None:
        """Note why a link's segment can't be archived, unless the segment has just been archived."""
        if seen.link.name not in self.in_lake:
            self.failed[seen.link.name] = why

    @property
    def root(self) -> str:
        return self.context.store.real_root


def _read_need(context: Context) -> ShieldNeed:
    """:raises BadInputError: this store can't have a shield."""
    if context.broker.shield is None:
        raise no_shield(context.store)
    return context.broker.shield.need()


def tend_shield(store: AnyStore, *, tends: bool = False) -> ShieldResult:
    """Link unproven segments, archive deleted ones, and drop links that are proven or given up for space.

    If a broker runs and a watch is alive, only that watch does this.

    :param tends: this process is the watch.
    :raises BadInputError: this kind of broker can't have a shield.
    :raises StorageEngineError: its broker can't be asked, or its shield can't be read.
    """
    context = open_context(store)
    refuse_shield(context.store)
    need = _read_need(context)
    shield = look_at_shield(context.store.real_root)
    unarchived = not context.store.archives and not shield.links
    if unarchived or (need.is_tended and not tends):
        return ShieldResult(len(shield.links), _gone_offsets(context, shield), notices=asked_notices(context))
    return _tend(_Tending(context, begin_background_run(context, SHIELD_RUN), need), shield, tends)


def _tend(tending: _Tending, shield: Shield, tends: bool) -> ShieldResult:
    context, root = tending.context, tending.root
    log = look_at_log(context, tending.notices)
    judged, proofs = _judge(tending, shield, log.sealed)
    unproven = still_unproven(context.journal, context.record, proofs, unproven_segments(log.sealed, judged))
    # Linking comes first, as archiving takes long. A failure doesn't stop the archiving of deleted segments.
    chosen = _link(tending, shield, log, (judged, proofs), unproven, tends) if log.is_known else Wanted()
    _save_gone(tending, [link for link in judged if link.seen.has_left_log])
    tending.given_up += give_up(context, tending.run, tending.failed, tending.notices)
    remaining = look_at_shield(root)
    if not remaining.links and remove_shield(root):
        # On a full disk a later call does it. A remaining mark keeps only older releases of the package away.
        with suppress(OSError):
            mark_shield(root, context.record.store_id, context.record.lineages, False)
    linked = {entry.link.segment.inode for entry in remaining.links}
    following = tuple(segment for segment in unproven if segment.facts.inode not in linked)
    return ShieldResult(
        links=len(remaining.links),
        gone=_gone_offsets(context, remaining),
        archived=tuple(tending.archived),
        given_up=tuple(tending.given_up),
        linked_paths=tuple(
            entry.link.segment.path for entry in remaining.links if entry.place is Place.IN_LOG
        ),
        next_segments=following if chosen.segments else (),
        room_bytes=room_bytes(remaining.links, tending.need),
        lineage=context.record.lineage,
        notices=tuple(dict.fromkeys((*tending.notices, *asked_notices(context)))),
        log_lineages=context.record.log_lineages,
        is_log_known=log.is_known,
    )


def _gone_offsets(context: Context, shield: Shield) -> tuple[int, ...]:
    return tuple(entry.link.base_offset for entry in ask_of_gone(context, shield).unproven)


def _link(
    tending: _Tending,
    shield: Shield,
    log: ShieldedLog,
    judgement: tuple[Sequence[JudgedLink], Proofs],
    unproven: Sequence[Segment],
    tends: bool,
) -> Wanted:
    context, root = tending.context, tending.root
    judged, proofs = judgement
    policy = context.store.policy
    mode = ShieldMode.OFF if policy.archive is ArchiveMode.OFF else policy.shield
    acts = read_own_acts(root)
    written = [entry for entry in shield.links if log_was_written(entry, acts)]
    chosen = choose_links(unproven, shield, tending.need, mode, tends=tends, written=written)
    try:
        if chosen.segments:
            mark_shield(root, context.record.store_id, context.record.lineages, True)
        for lineage, segments in context.record.lineages.grouped(chosen.segments).items():
            make_links(root, segments, lineage)
    except (ShieldError, OSError) as error:
        tending.notices.append(Text("not all that is unproven could be linked: ", reason_text(error)))
    if chosen.why_not:
        tending.notices.append(f"not all that is unproven is shielded: {chosen.why_not}")
    if mode is ShieldMode.OFF or (log.is_whole and not proofs.unreachable):
        # Only earlier links are dropped: a watch may have made more meanwhile.
        unused = without_use(shield, chosen.segments, context.record.lineages)
        in_lake = {link.seen.link.name for link in judged if link.receipt is not None}
        written = [entry for entry in unused if entry in written]
        tending.notices += [written_text(entry) for entry in written if entry.link.name not in in_lake]
        _drop_proven(tending, [entry for entry in written if entry.link.name in in_lake])
        drop_links(root, [entry.link.name for entry in unused if entry not in written], in_log=True)
    return chosen


def _judge(tending: _Tending, shield: Shield, sealed: Sequence[Segment]) -> tuple[list[JudgedLink], Proofs]:
    context = tending.context
    current = [entry for entry in shield.links if _is_of_present_lineage(context, entry)]
    proofs = _proofs(context, {*(segment.id for segment in sealed), *(entry.link.slot for entry in current)})
    judged = [judge_link(tending.root, entry, proofs) for entry in current]
    for links in by_lineage([entry for entry in shield.links if entry not in current]).values():
        old_proofs = _proofs(_with_lineage(context, links), {entry.link.slot for entry in links})
        judged += [judge_link(tending.root, entry, old_proofs) for entry in links]
    tending.notices += proofs.notices
    return judged, proofs


def _is_of_present_lineage(context: Context, entry: SeenLink) -> bool:
    return entry.link.lineage == context.record.lineage_of(entry.link.log)


def _with_lineage(context: Context, links: Sequence[SeenLink]) -> Context:
    """Return a context in which the logs of these links have the lineage of the links."""
    logs = {entry.link.log for entry in links}
    return replace(context, record=context.record.at_lineage(links[0].link.lineage, logs))


def _proofs(context: Context, wanted_slots: set[tuple[str, int]], *, to_delete: bool = False) -> Proofs:
    return read_proofs(
        context.store.lakes,
        context.record,
        wanted_slots,
        known=known_heads(context.journal, context.record),
        to_delete=to_delete,
        read_files=to_delete,
    )


def _save_gone(tending: _Tending, links: Sequence[JudgedLink]) -> None:
    """Archive segments that only the shield has, under the lineage of each link, and drop their links."""
    released = [
        link for link in links if link.receipt is None and _is_deleted_unproven(tending.context, link.seen)
    ]
    drop_links(tending.root, [link.seen.link.name for link in released])
    pending = [link for link in links if link not in released]
    for link in pending:
        if link.problem:
            problem = link.problem if link.problem != "changed" else changed_text(link.seen)
            tending.notices.append(problem)
            tending.fail(link.seen, problem)
    _drop_proven(tending, [link.seen for link in pending if link.receipt is not None])
    todo = [link for link in pending if link.receipt is None and not link.problem]
    for start in range(0, len(todo), _TOGETHER):
        batch = todo[start : start + _TOGETHER]
        try:
            _archive(tending, batch)
        except LakeUnavailableError as error:
            tending.notices.append(Text("segments that only the shield has can't be archived now: ", error))
            for link in batch:
                tending.fail(link.seen, Text(error))
            return
        except (StorageEngineError, OSError) as error:
            if len(batch) == 1:
                _keep(tending, batch[0], error)
                continue
            for link in batch:
                try:
                    _archive(tending, [link])
                except (StorageEngineError, OSError) as failure:
                    _keep(tending, link, failure)


def _keep(tending: _Tending, link: JudgedLink, error: Exception) -> None:
    tending.notices.append(Text(f"offset {link.seen.link.base_offset} stays in the shield: ", error))
    tending.fail(link.seen, Text(error))


def _is_deleted_unproven(context: Context, entry: SeenLink) -> bool:
    """Return whether one of our runs deleted the segment without a receipt.

    The policy, a waiver or an archive rule permits such a deletion.
    """
    release = release_of(context, entry)
    return release is not None and release.receipt_hash is None


def _archive(tending: _Tending, batch: Sequence[JudgedLink]) -> None:
    """Archive the links' segments at full speed, with the usual proof, and drop the proven links.

    One lineage is archived after another.
    """
    for links in by_lineage([link.seen for link in batch]).values():
        context = _with_lineage(tending.context, links)
        full_speed = replace(context.store.policy, archive_bytes_per_second=0)
        context = replace(context, store=replace(context.store, policy=full_speed))
        segments = tuple(link.segment for link in batch if link.seen in links)
        result = archive_somewhere(
            context,
            tending.run,
            Step.SEALED,
            _choose_all(segments),
            segments,
            lambda jobs: archive_all(open_lake(jobs[0].lake), jobs),
        )
        tending.archived += [receipt.base_offset for receipt in result.receipts]
        tending.in_lake |= {entry.link.name for entry in links}
        _drop_proven(tending, links)


def _choose_all(segments: Sequence[Segment]) -> Callable[[Proofs], Sequence[Segment]]:
    return lambda _proofs: segments


def _drop_proven(tending: _Tending, links: Sequence[SeenLink]) -> None:
    """Drop links of segments that a lake proves, by the same rule as for a deletion."""
    for group in by_lineage(links).values():
        context = _with_lineage(tending.context, group)
        proofs = _proofs(context, {entry.link.slot for entry in group}, to_delete=True)
        heads = known_heads(context.journal, context.record)
        try:
            tending.notices += witness_release(context, tending.run, proofs, heads)
        except GateRefusedError as error:
            tending.notices.append(Text("links of archived segments stay: ", error))
            continue
        for entry in group:
            present = next(
                (item for item in look_at_shield(tending.root).links if item.link.name == entry.link.name),
                None,
            )
            judged = None if present is None else judge_link(tending.root, present, proofs, to_drop=True)
            if judged is None or judged.receipt is None:
                if judged is not None and judged.problem:
                    tending.notices.append(judged.problem)
                continue
            if not _may_go(context, [judged]):
                continue
            _record_drop(context, tending.run, Phase.INTENT, judged.seen.link, judged.receipt)
            if drop_unchanged(tending.root, [judged.seen]):
                _record_drop(context, tending.run, Phase.RESULT, judged.seen.link, judged.receipt)
            else:
                tending.notices += _stay_notices(judged.seen)


def drop_released(context: Context, run: Run, proofs: Proofs) -> tuple[str, ...]:
    """Drop the links of segments that a run has just deleted by these proofs. That frees their space."""
    root = context.store.real_root
    judged = [
        judge_link(root, entry, proofs)
        for entry in look_at_shield(root).gone
        if _is_of_present_lineage(context, entry) and counting(proofs, entry.link.slot) is not None
    ]
    proven = [(link.seen, link.receipt) for link in _may_go(context, judged) if link.receipt is not None]
    for entry, receipt in proven:
        _record_drop(context, run, Phase.INTENT, entry.link, receipt)
    # In one call, so that the shield's records are read and written once.
    dropped = drop_unchanged(root, [entry for entry, _ in proven]) if proven else ()
    notices = [link.problem for link in judged if link.receipt is None and link.problem]
    for entry, receipt in proven:
        if entry.link.name in dropped:
            _record_drop(context, run, Phase.RESULT, entry.link, receipt)
        else:
            notices += _stay_notices(entry)
    return tuple(notices)


def _may_go(context: Context, judged: Sequence[JudgedLink]) -> list[JudgedLink]:
    """Return the links that may be dropped. If a receipt lacks topics, archive rules must leave them out now.

    The rules are read again: they may have changed while bytes were read.
    """
    if all(link.receipt is None or link.receipt.is_whole for link in judged):
        return list(judged)
    permits = read_store_permits(context.store, context.journal, context.record)
    return [
        link
        for link in judged
        if link.receipt is None or link.receipt.is_whole or permits.clause_of_receipt(link.receipt)
    ]


def _stay_notices(entry: SeenLink) -> list[str]:
    """Return why a link was not dropped, or nothing if another process has dropped it meanwhile."""
    if not Path(entry.facts.path).exists():
        return []
    return [
        Text(
            f"{entry.facts.path}: expected the file as it was when it was compared with its receipt, found "
            "it changed since, so it stays. A watch looks at it again, and so does ",
            COMMAND,
        )
    ]
