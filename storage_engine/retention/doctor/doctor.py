"""Diagnosis of a whole store: its state, its faults, and the next step. Changes nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from storage_engine.brokers import find_broker, kind_option
from storage_engine.commands import Text
from storage_engine.core.clock import DAY_MS, jumped_forward_ms, read_clock
from storage_engine.core.durable import writable_by_all
from storage_engine.core.extras import SparkPair
from storage_engine.core.host import user_name
from storage_engine.core.jsonable import filled
from storage_engine.core.wording import count_text, duration_text, reason_text, time_text
from storage_engine.exceptions import BrokerError, NotOnBrokerError, StorageEngineError, StoreNotFoundError
from storage_engine.model.broker.broker_store import BrokerStore, UnheldSegments
from storage_engine.model.hold import HoldMemory
from storage_engine.model.proof.receipt import LakeHead
from storage_engine.model.report.diagnosis import (
    BrokerDiagnosis,
    Finding,
    Severity,
    named_in_short,
    sort_findings,
)
from storage_engine.model.settings.policy import in_spark
from storage_engine.model.store import Segment
from storage_engine.retention.doctor.left_behind import (
    hold_end_findings,
    hold_findings,
    local_lakes,
    look_at_remains,
    refused_by_last_archive,
    refused_findings,
    usage_findings,
)
from storage_engine.retention.doctor.next_step import (
    NextStep,
    State,
    UnknownProof,
    in_airflow,
    next_step,
    unknown_proof_finding,
)
from storage_engine.retention.doctor.pipeline_findings import PipelineFacts, pipeline_findings
from storage_engine.retention.doctor.space_and_time import (
    Figures,
    consumer_findings,
    minimum_findings,
    pending_findings,
    retention_findings,
    space_findings,
    take_figures,
    touched_findings,
    unproven_findings,
)
from storage_engine.retention.ranges.seen_logs import Missing
from storage_engine.retention.store.broker_answers import ask, due_now
from storage_engine.retention.store.brokers import assumes_defaults, check_answers, open_store, settings_of
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import Stamp
from storage_engine.retention.store.unnamed_lakes import directory_of
from storage_engine.same_bytes.trusted_times import Mount, known_trust, mount_of

if TYPE_CHECKING:
    from storage_engine.journal.journal import Journal, StoreRecord
    from storage_engine.retention.doctor.lake_check import CheckedLake

_READINGS = 500
"""Number of clock readings to compare, which covers more than a day."""


@dataclass(frozen=True)
class Diagnosis:
    """Findings of a look at a store, its lakes and its journal.

    :param said: the findings of the broker's package.
    :param figures: figures of the store; None if the store can't be opened, as a finding says.
    :param unproven: sealed segments that no lake proves, or None if no lake was named or it can't be asked.
    :param touched: sealed segments that a lake has, but whose files were touched after their proof.
    :param due: number of segments that a cleanup would delete now, if a person asked for it.
    :param pipeline: Airflow's facts, for a store that an Airflow connection names.
    :param runs: where Airflow's tasks archive and measure consumer lag, or "" if the store isn't Airflow's.
    :param left_out: number of sealed segments that no lake proves because an archive rule leaves them out.
    """

    store: ManagedStore
    at_ms: int
    said: BrokerDiagnosis
    figures: Figures | None
    findings: tuple[Finding, ...]
    next: NextStep
    lakes: tuple[CheckedLake, ...] = ()
    unproven: tuple[Segment, ...] | None = None
    due: int = 0
    touched: tuple[Segment, ...] = ()
    pipeline: PipelineFacts | None = None
    runs: str = ""
    left_out: int = 0

    @property
    def is_urgent(self) -> bool:
        return any(finding.severity is Severity.URGENT for finding in self.findings)


@dataclass(slots=True)
class _Facts:
    """Facts about the store from its lakes and its journal, gathered step by step."""

    journal: Journal | None = None
    record: StoreRecord | None = None
    journalled_heads: tuple[LakeHead, ...] = ()
    samples: tuple[tuple[int, int], ...] = ()
    last_sample_ms: int | None = None
    jumped_ms: int = 0
    lakes: tuple[CheckedLake, ...] = ()
    unproven: tuple[Segment, ...] | None = None
    touched: tuple[Segment, ...] = ()
    left_out: int = 0
    refused: frozenset[str] = frozenset()
    some_unasked: bool = False
    unknown_proof: UnknownProof | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def memory(self) -> HoldMemory | None:
        if self.journal is None or self.record is None:
            return None
        from storage_engine.journal.journal import hold_memory

        return hold_memory(self.journal, self.record.store_id)


def diagnose(
    store: ManagedStore,
    now_ms: int,
    *,
    has_lake: bool,
    pipeline: PipelineFacts | None = None,
    retention_dag: str = "",
    runs: str = "",
) -> Diagnosis:
    """Look at a store, and at its lakes and journal if they were named.

    :param has_lake: lakes were named.
    :param pipeline: Airflow's facts about the store's DAGs, or None if it isn't Airflow's.
    :param retention_dag: the DAG that cleans the store, or "" if the store isn't Airflow's.
    :param runs: where Airflow's tasks archive and measure consumer lag, or "" if the store isn't Airflow's.
    :raises StoreNotFoundError: there is no such store.
    :raises BadInputError: settings that were given in addition to the broker's own settings are wrong.
    """
    check_answers(store.root)
    facts = _ask_journal(store, now_ms) if has_lake else _Facts()
    findings = facts.findings
    store, reply = _ask_broker(store, facts, now_ms)
    findings += reply.findings
    figures, stamp, due = None, None, 0
    if not reply.refused:
        figures, stamp, due = _open_and_look(store, reply, facts, now_ms, has_lake=has_lake)
    if pipeline is not None:
        findings += pipeline_findings(pipeline, now_ms)
    findings += pair_findings(SparkPair.installed(), has_spark=runs.startswith(in_spark("")))
    stamped = local_lakes(stamp)
    other_lake = ""
    if has_lake and (head := _find_misplaced(facts, stamp)) is not None:
        # The other lake may prove these segments, so they must not be archived a second time.
        facts.unproven, other_lake = None, directory_of(head) or head.location
    refused = facts.refused | reply.faulty_logs | (figures.archivable.refused if figures else {}).keys()
    if figures is not None and (facts.unproven is not None or not has_lake):
        findings += unproven_findings(
            figures,
            facts.unproven,
            stamped,
            running=reply.running,
            some_unasked=facts.some_unasked,
            refused=refused,
            kind_option=kind_option(store.broker),
        )
    findings += touched_findings(len(facts.touched))
    dags = () if pipeline is None else pipeline.dags
    dag_known = all(dag.known for dag in dags if dag.dag_id == retention_dag)
    if retention_dag:
        findings[:] = [in_airflow(item, retention_dag, known=dag_known) for item in findings]
    state = State(
        has_lake=has_lake,
        lake_refused=bool(facts.lakes) and all(lake.refused for lake in facts.lakes),
        stamped_lakes=stamped,
        other_lake=other_lake,
        unknown_proof=facts.unknown_proof,
        unproven=None if facts.unproven is None else sum(row.log not in refused for row in facts.unproven),
        refused_logs=len(refused),
        due=due,
        retention_dag=retention_dag,
        dag_known=dag_known,
    )
    return filled(
        Diagnosis,
        facts,
        store=store,
        at_ms=now_ms,
        said=reply,
        figures=figures,
        findings=sort_findings(findings),
        next=next_step(_with_store(state, store, reply, figures)),
        due=due,
        pipeline=pipeline,
        runs=runs,
    )


def _with_store(state: State, store: ManagedStore, reply: BrokerDiagnosis, figures: Figures | None) -> State:
    broker = find_broker(store.broker)
    state = replace(
        state,
        refused=figures is None,
        cleans_up=store.cleans_up or (not reply.running and store.cleans_up_on_request),
        assumes_defaults=assumes_defaults(store),
        running=reply.running,
        is_live=store.is_live or store.engine,
        live_option=reply.live_option,
        by_hand=broker.words.by_hand,
        kind_option=kind_option(store.broker),
    )
    if figures is None:
        return state
    return replace(
        state,
        due_by_rules=len(figures.going),
        replicas_elsewhere=figures.replicas_elsewhere,
        crashed=figures.snapshot.crashed,
        next_deletion_ms=figures.next_deletion_ms,
    )


def pair_findings(pair: SparkPair, *, has_spark: bool) -> Iterator[Finding]:
    """Judge the PySpark that is installed here. Pure.

    :param has_spark: the store's connection names a Spark connection.
    """
    if pair.is_unequal:
        text = f"the PySpark that is installed here can't be used: {pair.what}"
        severity = Severity.URGENT if has_spark else Severity.NOTE
        yield Finding(severity, "spark-pair", text, f"make them equal: {pair.install}")


def _find_misplaced(facts: _Facts, stamp: Stamp | None) -> LakeHead | None:
    """Return the lake that has the store's archive if the named lakes have none of it, and add a finding."""
    from storage_engine.retention.doctor.lake_check import find_other_lake, misplaced_findings

    store_id = stamp.store_id if stamp is not None else None
    heads = () if stamp is None else stamp.lakes
    if facts.record is not None:
        store_id, heads = facts.record.store_id, (*heads, *facts.journalled_heads)
    head = find_other_lake(store_id, heads, facts.lakes)
    facts.findings += misplaced_findings(head, facts.lakes)
    return head


def findings_of(
    store: ManagedStore, opened: BrokerStore, journal: Journal, record: StoreRecord, now_ms: int
) -> tuple[Finding, ...]:
    """Return findings about a store that its journal knows. Lakes aren't asked, since callers ask often.

    :param opened: the open store. The store is opened again only if its broker doesn't answer.
    :raises StorageEngineError: the store is missing, or its settings can't be used.
    """
    facts = _Facts(journal=journal, record=record)
    _read_samples(facts, now_ms)
    view, reply = _ask_broker(store, facts, now_ms)
    facts.findings += reply.findings
    if not reply.refused:
        # If the broker doesn't answer, the view is by the store's files, which are opened in its place.
        _look(view, opened if view is store else None, reply, facts, now_ms)
    return sort_findings(facts.findings)


def _ask_broker(store: ManagedStore, facts: _Facts, now_ms: int) -> tuple[ManagedStore, BrokerDiagnosis]:
    """Ask the broker's package. If a running broker doesn't answer, ask again about the store's files alone.

    :return: the store as it is to be opened, and the answers.
    """
    if (inspection := find_broker(store.broker).inspection) is None:
        return store, BrokerDiagnosis()
    diagnose = partial(inspection.diagnose, settings_of(store), facts.memory, now_ms)
    try:
        return store, ask(store.broker, "diagnose its store", diagnose)
    except (BrokerError, NotOnBrokerError) as error:
        if not store.is_live:
            raise
        facts.findings.append(Finding.urgent("broker-unreachable", Text(error).removesuffix(".")))
        return _ask_broker(replace(store, live=None), facts, now_ms)


def _open_and_look(
    store: ManagedStore, reply: BrokerDiagnosis, facts: _Facts, now_ms: int, *, has_lake: bool
) -> tuple[Figures | None, Stamp | None, int]:
    """Open the store and look at it; a failure becomes a finding.

    :return: the figures, the stamp, and the number of segments that could be deleted now.
    """
    looked = _look(store, None, reply, facts, now_ms)
    if looked is None:
        return None, None, 0
    unproven = _unproven_at_the_end(store, facts, looked, has_lake=has_lake)
    facts.findings += hold_end_findings(looked.figures.hold, unproven, now_ms)
    if has_lake:
        _ask_lakes(store, facts, looked)
        from storage_engine.retention.doctor.lake_check import lake_findings, place_findings

        waiting = None if facts.unproven is None else sum(segment.disk_bytes for segment in facts.unproven)
        facts.findings += [
            *lake_findings(facts.lakes, store.broker, waiting, now_ms),
            *place_findings(store, looked.data_paths),
        ]
    return looked.figures, looked.stamp, looked.due


def _unproven_at_the_end(store: ManagedStore, facts: _Facts, looked: _Looked, *, has_lake: bool) -> str:
    """Return the text on segments that may be deleted unproven soon after a hold's end, or ""."""
    if looked.unheld is None:
        return ""
    from storage_engine.retention.hold.holding import UnprovenSegments, find_unproven_segments

    if not has_lake or facts.journal is None or facts.record is None:
        segments, unknown = looked.unheld.segments, looked.unheld.unknown
        return UnprovenSegments(segments, unknown, ("none was named",) if segments else ()).text
    return find_unproven_segments(store, facts.journal, facts.record, looked.unheld).text


@dataclass(frozen=True, slots=True)
class _Looked:
    """Facts about a store, seen while it was open. In a store that the caller had opened, ``due``,
    ``missing`` and ``unheld`` aren't read.

    :param due: number of segments that could be deleted now.
    :param missing: logs that should exist according to the journal's memory.
    :param unheld: segments that may be deleted within a day of a hold's end, or None if the end is far off.
    """

    figures: Figures
    stamp: Stamp | None
    data_paths: tuple[Path, ...]
    due: int
    missing: tuple[Missing, ...]
    unheld: UnheldSegments | None


def _look(
    store: ManagedStore, at: BrokerStore | None, reply: BrokerDiagnosis, facts: _Facts, now_ms: int
) -> _Looked | None:
    """Look at a store. Faults become findings.

    :param at: the store, if the caller has opened it. Then no plan is made.
    :return: the facts, or None if the store can't be looked at.
    """
    findings, due, missing, unheld = facts.findings, 0, tuple[Missing, ...](), None
    try:
        with closing(open_store(store, facts.memory)) if at is None else nullcontext(at) as opened:
            data_paths = tuple(opened.data_paths)
            findings += access_findings(look_at_access(store.real_root, data_paths))
            directories = _known_quarantines(facts)
            remains, stamp = look_at_remains(
                store, data_paths, now_ms, running=reply.running, quarantines=directories
            )
            findings += remains
            figures = take_figures(opened, store.broker, now_ms, facts.samples, reply.full_percent)
            if facts.journal is not None and facts.record is not None:
                findings += usage_findings(store.broker, opened, facts.journal, facts.record)
            if at is None:
                due = len(due_now(opened, figures.snapshot, now_ms))
                hold = figures.hold
                if hold is not None and hold.ends_at_ms is not None and hold.is_half_over(now_ms):
                    from storage_engine.retention.hold.holding import unheld_by

                    unheld = unheld_by(opened, now_ms, (hold.deletes_from_ms or hold.ends_at_ms) + DAY_MS)
                if facts.journal is not None and facts.record is not None:
                    from storage_engine.retention.ranges.missing_logs import missing_logs

                    missing = missing_logs(store, facts.journal, facts.record, opened, figures.snapshot)
    except StoreNotFoundError:
        raise
    except (StorageEngineError, OSError) as error:
        findings.append(Finding.urgent("unreadable", reason_text(error).removesuffix(".")))
        return None
    segments = [segment for log in figures.snapshot.logs for segment in log.segments]
    places = look_at_mounts(data_paths, store.real_root)
    findings += mount_findings(places, segments, needs_shield=bool(reply.running))
    newest_ms = reply.newest_message_ms
    findings += clock_findings(segments, newest_ms, facts.last_sample_ms, now_ms, facts.jumped_ms)
    findings += [*space_findings(figures), *retention_findings(figures, reply.age_setting)]
    findings += minimum_findings(figures, store.policy.minimum_retention_hours)
    if store.cleans_up or store.is_live:
        unit = find_broker(store.broker).words.queue
        findings += [*consumer_findings(figures, unit), *hold_findings(figures.hold)]
    findings += pending_findings(figures)
    return _Looked(figures, stamp, data_paths, due, missing, unheld)


def _known_quarantines(facts: _Facts) -> frozenset[str] | None:
    """Return the directories of quarantines that the journal knows, or None if there is no journal to ask."""
    if facts.journal is None:
        return None
    from storage_engine.retention.quarantine.records import known_directories

    return frozenset() if facts.record is None else known_directories(facts.journal, facts.record.store_id)


def _ask_journal(store: ManagedStore, now_ms: int) -> _Facts:
    """Read the journal's record of the store. A missing journal isn't created."""
    # Imported here, because a look without a lake doesn't need the database's libraries.
    from storage_engine.journal.journal import Journal
    from storage_engine.journal.tables.database import missing_sqlite_file
    from storage_engine.retention.store.known_heads import journalled_heads

    facts = _Facts()
    if missing_sqlite_file(store.journal_url):
        return facts
    try:
        facts.journal = Journal(store.journal_url, read_only=True)
        facts.record = facts.journal.find_store(store.real_root, store.host)
        if facts.record is not None:
            facts.journalled_heads = tuple(journalled_heads(facts.journal, facts.record.store_id))
        _read_samples(facts, now_ms)
    except StorageEngineError as error:
        facts.journal, facts.unknown_proof = None, UnknownProof.JOURNAL
        text = Text("the journal can't be read: ", Text(error).removesuffix("."))
        facts.findings.append(Finding.warning("journal", text))
    return facts


def _read_samples(facts: _Facts, now_ms: int) -> None:
    """Read the logs' offsets of the last day, if the journal knows the store.

    :raises StorageEngineError: the journal can't be read.
    """
    if facts.journal is None or facts.record is None:
        return
    last = facts.journal.last_sample(facts.record.store_id)
    facts.last_sample_ms = None if last is None else last.at_ms
    readings = facts.journal.clock_readings(facts.record.store_id, _READINGS)
    facts.jumped_ms = jumped_forward_ms(read_clock(), readings)
    facts.samples = facts.journal.max_offsets(facts.record.store_id, now_ms - DAY_MS)


def _ask_lakes(store: ManagedStore, facts: _Facts, looked: _Looked) -> None:
    """Read the lakes' proofs of sealed segments and missing logs. An unreadable lake becomes a finding."""
    from storage_engine.retention.doctor.lake_check import has_segments_of, look_at_lakes, unproven_segments

    segments = looked.figures.archivable.segments
    facts.lakes = look_at_lakes(store, facts.record, facts.journal is not None)
    if all(lake.refused for lake in facts.lakes):
        return
    if facts.record is None and has_segments_of(facts.lakes, looked.stamp, store.real_root):
        facts.unknown_proof = facts.unknown_proof or UnknownProof.STORE
    if facts.unknown_proof is not None:
        facts.findings.append(unknown_proof_finding(facts.unknown_proof, len(segments)))
        return
    try:
        facts.unproven, facts.touched, notices, facts.left_out = unproven_segments(
            store, facts.journal, facts.record, segments
        )
        logs = refused_by_last_archive(facts.journal, facts.record, facts.unproven)
    except StorageEngineError as error:
        facts.findings.append(
            Finding.warning("proof-unknown", Text("it is unknown which segments the lake proves: ", error))
        )
        return
    facts.some_unasked = bool(notices) or any(lake.refused for lake in facts.lakes)
    if looked.missing and facts.journal and facts.record and not facts.some_unasked:
        from storage_engine.retention.ranges.missing_logs import missing_findings

        facts.findings += missing_findings(store, facts.journal, facts.record, looked.missing)
    facts.refused = frozenset(log.log for log in logs)
    facts.findings += refused_findings(logs)
    facts.findings += [
        Finding.warning("lake-unreachable", notice.removesuffix("."))
        for notice in notices
        if not any(lake.refused and lake.refused in notice for lake in facts.lakes)
    ]


SLACK_MS = 60_000
"""Largest difference between the clocks of two healthy machines, in milliseconds."""


def clock_findings(
    segments: Sequence[Segment],
    newest_message_ms: int | None,
    last_sample_ms: int | None,
    now_ms: int,
    jumped_ms: int = 0,
) -> Iterator[Finding]:
    """Yield findings on times later than now, and on a jump of the clock: both make ages unreliable.

    :param segments: segments with the times that they had before a hold.
    :param jumped_ms: how far this machine's clock was set forward within a day, in milliseconds.
    """
    latest = now_ms + SLACK_MS
    future = [segment for segment in segments if segment.mtime_ns // 1_000_000 > latest]
    advice = "put this machine's clock right (chronyc tracking), or find out who set the time"
    if jumped_ms:
        yield Finding.warning(
            "clock",
            f"this machine's clock was set forward by {duration_text(jumped_ms)} in the last day: segments "
            "look older than they are. For a day no run deletes by age",
            advice,
        )
    if future:
        last_ms = max(segment.mtime_ns for segment in future) // 1_000_000
        yield Finding.warning(
            "clock",
            f"{count_text(len(future), 'segment')} written in the future, the latest {future[-1].name} at "
            f"{time_text(last_ms)}: these and later segments don't expire before then",
            advice,
        )
    for at_ms, event in (
        (newest_message_ms, "newest message was stored"),
        (last_sample_ms, "last sample is of"),
    ):
        if at_ms is not None and at_ms > latest:
            yield Finding.warning(
                "clock",
                f"the {event} {time_text(at_ms)}, which is {duration_text(at_ms - now_ms)} after now: one of "
                "the two clocks is wrong, and ages can't be trusted",
                advice,
            )


@dataclass(frozen=True, slots=True)
class AccessRights:
    """The rights of this process's account on a store's directories.

    :param user: the account of this process.
    :param owner: the account that owns the store's root.
    :param unwritable: directories in which the account can't delete files.
    :param unreadable: directories that the account can't list.
    :param open_to_all: our directories and files that every account can write.
    """

    user: str
    owner: str
    unwritable: tuple[str, ...]
    unreadable: tuple[str, ...]
    open_to_all: tuple[str, ...] = ()


def look_at_access(root: str, directories: Sequence[Path]) -> AccessRights:
    """Look at the directories of the segments and of their dependents, if they exist."""
    paths = [path for path in dict.fromkeys((Path(root), *directories)) if path.is_dir()]
    return AccessRights(
        user=user_name(os.geteuid()),
        owner=user_name(Path(root).stat().st_uid),
        unwritable=tuple(str(path) for path in paths if not _may_delete(path)),
        unreadable=tuple(str(path) for path in paths if not _has_access(path, os.R_OK | os.X_OK)),
        open_to_all=tuple(map(str, writable_by_all(paths))),
    )


def _has_access(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _may_delete(path: Path) -> bool:
    status = path.stat()
    if status.st_mode & stat.S_ISVTX and os.geteuid() not in (0, status.st_uid):
        return False
    # A read-only mount counts as deletable here, because it has a finding of its own.
    return _has_access(path, os.W_OK | os.X_OK) or bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def access_findings(rights: AccessRights) -> Iterator[Finding]:
    """Judge the access rights. Pure."""
    advice = f"run as {rights.owner}: sudo -u {rights.owner} storage-engine …"
    if rights.unreadable:
        yield Finding.warning(
            "access",
            f"{rights.user} may not look into {named_in_short(rights.unreadable)}, which {rights.owner} owns",
            advice,
        )
    elif rights.unwritable:
        yield Finding.warning(
            "access",
            f"{rights.user} may read this store, but can't lock it or delete files in "
            f"{named_in_short(rights.unwritable)}",
            advice,
        )
    if rights.open_to_all:
        yield Finding.warning(
            "open-to-all",
            f"every account may write {named_in_short(rights.open_to_all)}, and could disturb a run or end a "
            "hold",
            f"run a command that writes to the store, such as archive, as {rights.owner}: it takes these "
            "rights away",
        )


_LEAST_FILES = 2
"""From this number of files on, times without a fraction of a second are no coincidence."""


@dataclass(frozen=True, slots=True)
class Place:
    """A directory of a store, and its mount.

    :param trusted: whether file times change with each write, as an earlier trial showed; None without one.
    """

    path: Path
    mount: Mount
    trusted: bool | None


def look_at_mounts(data_paths: Sequence[Path], root: str) -> tuple[Place, ...]:
    """Return a directory on each mount that has data of a store. The root's mount comes first."""
    places: dict[str, Place] = {}
    for path in (Path(root), *data_paths):
        mount = mount_of(path)
        if mount is not None and mount.mount_id not in places:
            places[mount.mount_id] = Place(path, mount, known_trust(path, root))
    return tuple(places.values())


def mount_findings(
    places: Sequence[Place], segments: Sequence[Segment], *, needs_shield: bool
) -> Iterator[Finding]:
    """Judge the mounts of a store's directories. Pure.

    :param places: one directory for each mount; the first has the store's root.
    :param needs_shield: a broker runs, and a shield has to keep unproven segments beside it.
    """
    for place in places:
        yield from _judge_mount(place)
    coarse = [segment for segment in segments if segment.facts.ctime_ns % 1_000_000_000 == 0]
    if len(segments) >= _LEAST_FILES and len(coarse) == len(segments):
        yield Finding.note(
            "coarse-times",
            f"{Path(segments[0].facts.path).parent}: file times have no fraction of a second, as with "
            "inodes of 128 bytes: a second write in the same second isn't seen, and each look takes 2 s for "
            "each segment",
            "make the file system again with larger inodes: mkfs.ext4 -I 256",
        )
    if paths := [str(place.path) for place in places[1:] if needs_shield and not place.mount.is_memory]:
        yield Finding.note(
            "no-shield",
            f"the shield can't link segments on another mount than the store's root: {named_in_short(paths)}",
            "archive ahead of deletion (archive_when: seal): then no shield is needed",
        )


def _judge_mount(place: Place) -> Iterator[Finding]:
    mount, where = place.mount, f"{place.path} is on {place.mount.kind}"
    if mount.is_read_only:
        text = f"{where}, mounted read-only: nothing there can be deleted or held"
        yield Finding.warning("read-only", text, f"mount it writable: mount -o remount,rw {mount.point}")
    if mount.is_memory:
        text = f"{where}, in memory: the store is lost when the machine restarts"
        yield Finding.warning("file-system", text, "keep the store on a disk")
    elif mount.is_volatile:
        text = f"{where} with the option volatile: nothing is durable, and file times don't show each write"
        yield Finding.warning("file-system", text, "mount it without volatile, or keep the store in a volume")
    elif mount.is_network:
        text = f"{where}: we can't see writers on other machines, and locks may not stop them"
        yield Finding.warning("file-system", text, "manage the store on the host that its broker runs on")
    elif place.trusted is False or (place.trusted is None and mount.is_fuse):
        verb = "don't" if place.trusted is False else "may not"
        yield Finding.note(
            "file-system",
            f"{where}: its file times {verb} show each write, so each segment is read once more before its "
            "deletion",
        )
