"""Drift of a held store since the hold's state was saved: other programs or the passage of time caused it.

Pure, except that the topics of a missing range are read from the consume queues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from storage_engine.core.wording import count_text, paths_text, time_text, times_text
from storage_engine.exceptions import CorruptFileError
from storage_engine.model.hold import Drift, DriftKind
from storage_engine.rocketmq.format.batch_consume_queue import all_queues
from storage_engine.rocketmq.format.consume_queue import EntryFormat
from storage_engine.rocketmq.format.layout import LOG, StoreLayout
from storage_engine.rocketmq.format.mapped_files import MappedFile
from storage_engine.rocketmq.hold.hold_state import (
    CLUSTER,
    FORCIBLY,
    NAME,
    RESERVED,
    SLAVE,
    HoldState,
    Observed,
    SeenFile,
)

ENDS_TRUST: Final = frozenset({DriftKind.BROKER_REPLACED, DriftKind.ROLE_CHANGED})
"""Drift that shows another store than the saved state's. Then nothing may be held, renewed or deleted."""

LASTS: Final = frozenset({DriftKind.SETTING_CHANGED, DriftKind.SETTING_NOT_SAVED})
"""Drift that may last although the hold is renewed. It is reported once, not at each look."""

_DEFAULTS: Final = {FORCIBLY: "true", RESERVED: "72"}
"""Defaults of settings that broker.conf doesn't have (MessageStoreConfig)."""


def new_drift(state: HoldState, observed: Observed) -> tuple[Drift, ...]:
    """Return all changes since the saved state, without lasting drift that was reported already.

    If the broker has another store now, only that drift is returned: the rest would compare two stores.
    """
    changes = tuple(chain(_find_role_change(state, observed), _find_replaced(state, observed)))
    if not changes:
        changes = tuple(
            chain(
                _find_move(state, observed),
                _find_restart(state, observed),
                _find_lapse(state, observed),
                _find_gone(state, observed),
                _find_touched(state, observed),
                _find_changed(state, observed),
                _find_unsaved(state, observed),
            )
        )
    return tuple(drift for drift in changes if name_of(drift) not in state.reported)


def all_drift(state: HoldState, observed: Observed) -> tuple[Drift, ...]:
    """Return all drift of a held store, also drift that was reported already."""
    return new_drift(replace(state, reported=()), observed)


def has_moved(state: HoldState, observed: Observed) -> bool:
    """Return whether another process, at another address than the held broker's, answers as the master."""
    is_elsewhere = bool(state.address) and observed.address != state.address
    return observed.role != SLAVE and is_elsewhere and _is_other_process(state, observed)


def name_of(drift: Drift) -> str:
    """Return the name of a drift in ``HoldState.reported``. It stays the same as long as the drift lasts.

    All releases must use the same texts for drift in :data:`LASTS`, or an upgrade would report it again.
    """
    d = drift
    text = d.detail if d.start_offset < 0 else f"{d.log} [{d.start_offset}, {d.end_offset})"
    return f"{d.kind.value}: {text}"


def _find_role_change(state: HoldState, observed: Observed) -> Iterator[Drift]:
    if observed.role == SLAVE:
        yield Drift(
            DriftKind.ROLE_CHANGED,
            f"{observed.address}: expected a master, found a slave (brokerRole={observed.role}): another "
            "broker is the master now. Nothing is held or deleted here. Manage the new master's store, and "
            "unmanage this one.",
        )
    elif has_moved(state, observed) and (why := _explain_other(state, observed)):
        yield Drift(
            DriftKind.ROLE_CHANGED,
            f"expected the master at {state.address}, found another process as the master at "
            f"{observed.address}, which isn't provably the same broker ({why.rstrip('.')}): a slave was "
            "promoted, or the broker has moved. Its segments need not be the files here, so nothing is held "
            "or deleted. Where they are the same files, unmanage the store, and the next run holds it again; "
            "where they aren't, manage the new master's store.",
        )


def _explain_other(state: HoldState, observed: Observed) -> str:
    """Return the reason why a broker at another address isn't provably the held one; empty if it is."""
    for key, expected in ((NAME, state.broker_name), (CLUSTER, state.cluster_name)):
        if not expected:
            return f"the hold doesn't know {key} of the one that was held"
        if (actual := observed.settings.get(key, "")) != expected:
            return f"expected {key}={expected}, found {actual}"
    return observed.unproven


def _find_move(state: HoldState, observed: Observed) -> Iterator[Drift]:
    if has_moved(state, observed):
        yield Drift(
            DriftKind.BROKER_MOVED,
            f"expected broker {state.broker_name} at {state.address}, found it at {observed.address}: the "
            "same name and cluster, the lock of this store on this host, and its messages. The hold goes on. "
            "Where the connection names the address, change it there.",
        )


def _find_replaced(state: HoldState, observed: Observed) -> Iterator[Drift]:
    text = ""
    if observed.max_offset < _newest_offset(state):
        text = (
            f"expected a log that reaches beyond {_newest_offset(state)}, where its newest segment began, "
            f"found one that ends at {observed.max_offset}"
        )
    elif _is_known_frame_other(state, observed):
        text = f"expected the message at offset {state.frame_offset} that was there, found other bytes"
    if text:
        yield Drift(
            DriftKind.BROKER_REPLACED,
            f"{observed.address}: {text}: the broker has another store than before (restored, wiped, or "
            "another broker). Nothing is held or deleted. Find out why; then `unmanage` the store, since "
            "what is remembered is of the other one, and begin a new lineage with `adopt`: what is in the "
            "lake stays.",
        )


def _find_restart(state: HoldState, observed: Observed) -> Iterator[Drift]:
    if not _is_other_process(state, observed):
        return
    shorter = (
        f" Its log ends at {observed.max_offset}, {state.max_offset - observed.max_offset} bytes before "
        "where it ended: the crash lost what was not flushed."
        if observed.max_offset < state.max_offset
        else ""
    )
    yield Drift(
        DriftKind.BROKER_RESTARTED,
        f"{observed.address}: expected the process started {time_text(state.boot_timestamp_ms)}, found one "
        f"started {time_text(observed.boot_timestamp_ms)}: the broker was restarted. The hold stands by its "
        f"files; settings are as broker.conf has them.{shorter}",
    )


def _find_lapse(state: HoldState, observed: Observed) -> Iterator[Drift]:
    if not 0 < state.ends_at_ms < observed.at_ms:
        return
    free_ms = max(state.ends_at_ms, state.deletes_from_ms)
    since = (
        f"since {time_text(free_ms)} the broker was"
        if free_ms < observed.at_ms
        else "the broker would soon be"
    )
    yield Drift(
        DriftKind.HOLD_LAPSED,
        f"expected the hold to be renewed before it ended {time_text(state.ends_at_ms)}, found no "
        f"renewal: {since} free to delete by its own rules. Let the pipeline run more often than hold_hours.",
    )


def _find_gone(state: HoldState, observed: Observed) -> Iterator[Drift]:
    """Yield one drift for each range of neighbouring segments that are gone."""
    if not state.segments:
        return  # the first look ended before it saved any
    present = {file.base_offset for file in observed.files}
    ends = [base for base, _ in state.segments[1:]] + [state.end_offset]
    start = end = -1
    for (base, _), behind in zip(state.segments, ends, strict=True):
        # Files behind the newest message are preallocated and have no messages.
        is_gone = base not in present and base not in state.releasing and base < state.max_offset
        if is_gone and start < 0:
            start = base
        if is_gone:
            end = min(behind, state.max_offset)
        elif start >= 0:
            yield _range_drift(start, end)
            start = -1
    if start >= 0:
        yield _range_drift(start, end)


def _range_drift(start: int, end: int) -> Drift:
    return Drift(
        DriftKind.SEGMENT_GONE,
        f"expected the log's bytes [{start}, {end}), found no file, and no run deleted them. Find out who "
        "deletes (the broker's own rules, an administrator, another tool), and stop it.",
        log=LOG,
        start_offset=start,
        end_offset=end,
    )


def _find_touched(state: HoldState, observed: Observed) -> Iterator[Drift]:
    """Yield one drift for files whose times were changed, and one for files that were replaced by others."""
    pairs = [(touched, observed.file_at(touched.base_offset)) for touched in state.touched]
    present = [(touched, file) for touched, file in pairs if file is not None]
    others = [(touched, file) for touched, file in present if file.inode != touched.inode]
    if others:
        inodes = [", ".join(str(of.inode) for of in side) for side in zip(*others, strict=True)]
        name = "its name" if len(others) == 1 else "each name"
        why = f"expected inode {inodes[0]}, found {inodes[1]}: another file has {name}"
        yield _mtime_drift([file for _, file in others], why)
    changed = [
        (touched, file)
        for touched, file in present
        if file.inode == touched.inode and file.mtime_ns not in touched.possible_mtimes_ns
    ]
    if changed:
        expected, now = (
            times_text([of.mtime_ns // 1_000_000 for of in side]) for side in zip(*changed, strict=True)
        )
        why = f"expected the modification time {expected} that the hold set, found {now}"
        why += f": another program touched {'it' if len(changed) == 1 else 'them'}"
        yield _mtime_drift([file for _, file in changed], why)


def _mtime_drift(files: Sequence[SeenFile], why: str) -> Drift:
    return Drift(
        DriftKind.MTIME_CHANGED,
        f"{paths_text([file.path for file in files])}: {why}. The hold rests on the rest of its fence until "
        "it is renewed. Find out who changes the store's files, and stop it.",
        log=LOG,
    )


def _find_changed(state: HoldState, observed: Observed) -> Iterator[Drift]:
    for key, expected in _expected_settings(state).items():
        value = observed.settings.get(key)
        if value != expected:
            yield Drift(
                DriftKind.SETTING_CHANGED,
                f"{observed.address}: expected {key}={expected}, found {value}: somebody changed it while "
                f"the store was held.{_explain_value(key, value)} Find out who, and set it back.",
            )


def _explain_value(key: str, value: str | None) -> str:
    """Explain a value that a broker accepts without a check."""
    if key != RESERVED or not (value or "").startswith("-"):
        return ""
    return (
        " Below 0 a segment has expired before it is written: the hold ends so much earlier, and makes up "
        "for it when it is renewed."
    )


def _find_unsaved(state: HoldState, observed: Observed) -> Iterator[Drift]:
    """Yield drift for settings that a restart would change back; nothing if broker.conf can't be read."""
    if observed.saved.values is None:
        return
    for key in _expected_settings(state):
        saved, works = observed.saved.values.get(key, _DEFAULTS[key]), observed.settings.get(key)
        if works is not None and saved != works:
            yield Drift(
                DriftKind.SETTING_NOT_SAVED,
                f"{observed.saved.path}: expected {key}={works}, as the broker works now, found {key}={saved}"
                f"{'' if key in observed.saved.values else ' (the default)'}: a restart brings that back. "
                "Make the file writable for the broker, or write it there.",
            )


def _expected_settings(state: HoldState) -> dict[str, str]:
    return {**state.expected_settings, **{changed.key: changed.ours for changed in state.changed_settings}}


def _newest_offset(state: HoldState) -> int:
    """Return the base offset of the last look's active segment. All older ones were sealed, and on disk."""
    return max((base for base, _ in state.segments if base <= state.max_offset), default=0)


def _is_known_frame_other(state: HoldState, observed: Observed) -> bool:
    return (
        state.frame_offset >= observed.min_offset
        and bool(state.frame_sha256)
        and observed.frame_sha256 is not None
        and observed.frame_sha256 != state.frame_sha256
    )


def _is_other_process(state: HoldState, observed: Observed) -> bool:
    return observed.boot_timestamp_ms != state.boot_timestamp_ms


_NAMED = 20
"""Largest number of topics in a drift's text. The list ``Drift.topics`` has all topics."""


def with_topics(drift: Iterable[Drift], layout: StoreLayout) -> tuple[Drift, ...]:
    """Add to each missing range the topics of its messages."""
    drift = tuple(drift)
    ranges = [d for d in drift if d.kind is DriftKind.SEGMENT_GONE and not d.topics]
    counted = topics_in(layout, [(d.start_offset, d.end_offset) for d in ranges])
    detailed = {id(d): _with_counts(d, counts) for d, counts in zip(ranges, counted, strict=True)}
    return tuple(detailed.get(id(d), d) for d in drift)


def topics_in(layout: StoreLayout, ranges: Sequence[tuple[int, int]]) -> tuple[Counter[str], ...]:
    """Count each topic's queue entries in each range of physical offsets [start, end).

    A queue with an unreadable or vanished file isn't counted.
    """
    counts = tuple(Counter[str]() for _ in ranges)
    if not ranges:
        return counts
    for queue, form in all_queues(layout):
        try:
            files = form.files(queue.path)
            for entries, range_counts in zip(_count_entries(form, files, ranges), counts, strict=True):
                if entries:
                    range_counts[queue.topic] += entries
        except (CorruptFileError, OSError):
            continue
    return counts


def _count_entries(
    form: EntryFormat, files: tuple[MappedFile, ...], ranges: Sequence[tuple[int, int]]
) -> Iterator[int]:
    if not files:
        yield from (0 for _ in ranges)
        return
    last = form.last_position(files)
    for start, end in ranges:
        first = _entry_number(form, form.first_at_or_above(files, start, last))
        yield _entry_number(form, form.first_at_or_above(files, end, last)) - first


def _entry_number(form: EntryFormat, at: tuple[MappedFile, int]) -> int:
    file, position = at
    return file.base_offset // form.dtype.itemsize + position


def _with_counts(drift: Drift, counts: Counter[str]) -> Drift:
    if not counts:
        text = "The consume queues don't tell any more whose messages were in it."
    else:
        named = [f"{topic} ({count_text(n, 'message')})" for topic, n in counts.most_common(_NAMED)]
        more = [f"{len(counts) - _NAMED} more"] if len(counts) > _NAMED else []
        text = f"By what the consume queues still have, of topics: {', '.join(named + more)}."
    return replace(drift, detail=f"{drift.detail} {text}", topics=tuple(sorted(counts)))
