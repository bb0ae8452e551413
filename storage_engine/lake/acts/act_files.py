"""A lake's acts: files below the location of ``segments``, each named by the SHA-256 of its bytes.

An act counts from the moment its file is durable. The mark of ``segments`` names the newest act, so that the
loss of that act is noticed. If the newest act's writer was killed, or another process committed at the same
time, the mark names an older act. No act is ever changed or removed. On this machine's file systems a lock
admits one writer at a time. On object stores each writer writes a claim, and continues only if no other claim
exists.

While a hold is in force, no file of the stores that it covers is removed for good.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from pyiceberg.io import FileIO

from storage_engine.brokers import store_text
from storage_engine.commands import Command
from storage_engine.core.clock import JUMP_MS, clock_ms
from storage_engine.core.host import person, this_host
from storage_engine.core.wording import time_text
from storage_engine.exceptions import BadInputError, LakeIdentityError, LakeUnavailableError
from storage_engine.lake.catalog.catalog import CHANGE_LOCK, Lake
from storage_engine.lake.catalog.identity import lake_id_of, read_mark_at, write_mark
from storage_engine.lake.catalog.tables import SCHEMA_VERSION, SCHEMA_VERSION_PROPERTY, has_trees
from storage_engine.lake.catalog.writing import ready_to_write, recording_acts
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.storage.errors import metadata_errors
from storage_engine.lake.storage.small_files import (
    OWN_FOLDER,
    delete_small_file,
    list_files,
    read_clock_at,
    read_small_file,
    replace_small_file,
)
from storage_engine.model.keep.acts import (
    DECIDING,
    SHOWN_CHARACTERS,
    Act,
    ActKind,
    KeepDecision,
    RecordedAct,
    decode_act,
    order_acts,
    policy_of,
    sha256_of_act,
)
from storage_engine.model.keep.keep_rules import Hold
from storage_engine.model.proof.receipt import Receipt

Acts = tuple[RecordedAct, ...]

_ACTS = f"{OWN_FOLDER}/acts"
_CLAIMS = f"{OWN_FOLDER}/claims"
_ACT_NAME = re.compile(r"([0-9a-f]{64})\.json")
_ADVICE = (
    "Nothing was changed, and nothing is removed from the lake until that is mended. Bring the file back "
    "from a copy of the lake. If a newer release wrote it, use that release."
)
_CLAIM_SECONDS = 600
"""A claim older than this belongs to a killed writer, because a writer gives up after half of this time."""


def read_acts(lake: Lake) -> Acts:
    """Return a lake's acts, the newest last.

    :raises LakeIdentityError: the acts form no single chain, or the act that the mark names is missing.
    :raises LakeUnavailableError: an act can't be read, or its bytes don't match its name.
    """
    segments = lake.segments()
    return read_acts_at(segments.io, segments.location().rstrip("/"))


def read_acts_at(file_io: FileIO, location: str) -> Acts:
    """Return the acts below a location of ``segments``; see :func:`read_acts`."""
    # The mark is read before the list, because the file of the act that it names exists then.
    mark = read_mark_at(file_io, location)
    named = "" if mark is None else mark.act
    acts = {sha256: _read_act(file_io, location, sha256) for sha256 in list_acts(file_io, location)}
    try:
        return order_acts(acts, named)
    except ValueError as error:
        raise LakeIdentityError(
            f"{location}/{_ACTS}: {error}: files were lost, put back from an older copy, or brought from "
            "another lake. Nothing was changed, and nothing is removed from the lake until that is mended. "
            "Bring the acts back from a copy of the lake. If two acts follow the same act, move away the one "
            "that must not count."
        ) from error


def list_acts(file_io: FileIO, location: str) -> tuple[str, ...]:
    """Return the SHA-256 of each act that has a file, in any order.

    :raises LakeUnavailableError: the files can't be listed.
    """
    files = list_files(file_io, f"{location}/{_ACTS}")
    return tuple(name[1] for file in files if (name := _ACT_NAME.fullmatch(file.inside)))


def lacks_acts(source: tuple[FileIO, str], target: tuple[FileIO, str]) -> bool:
    """Return whether an act at one location of ``segments`` is missing at another.

    :raises LakeUnavailableError: a location can't be listed.
    """
    return not set(list_acts(*source)) <= set(list_acts(*target))


def copy_acts(source: tuple[FileIO, str], target: tuple[FileIO, str]) -> None:
    """Copy the files of acts, byte for byte, from one location of ``segments`` to another.

    Existing files stay. An incomplete chain is copied as it is, because a backup should have all acts.

    :raises LakeUnavailableError: an act can't be read or written, or its bytes don't match its name.
    """
    existing = set(list_acts(*target))
    missing = [name for name in list_acts(*source) if name not in existing]
    # They are copied in the order of the chain, so that a kill leaves a chain.
    for name in sorted(missing, key=lambda name: _read_act(*source, name).number):
        replace_small_file(target[0], _location_of(target[1], name), _read_bytes(*source, name))


def record_act(lake: Lake, decide: Callable[[Acts], KeepDecision | None]) -> Acts:
    """Record a person's decision as an act, durably. It is safe to kill at any instant and to repeat.

    :param decide: gets the lake's acts, and returns the decision to record; None to record nothing.
    :return: the lake's acts, the newest last.
    :raises BadInputError: ``decide`` raised it, or older releases can use the lake and would ignore holds.
    :raises LakeIdentityError: the lake may not be written, or its acts form no single chain.
    :raises LakeUnavailableError: the lake can't be read or written, its clock is wrong, or another process
        records an act.
    """
    ready_to_write(lake)
    with CHANGE_LOCK, recording_acts(lake):
        segments = lake.segments()
        if not has_trees(segments.properties):
            version = segments.properties.get(SCHEMA_VERSION_PROPERTY, "1.0")
            raise BadInputError(
                f"{segments.location()}: expected a lake of version {SCHEMA_VERSION} or later, found "
                f"{version}. Older releases can use such a lake, and they know neither rules nor holds. "
                "Nothing was changed. Run ",
                Command("lake upgrade"),
                ", once every host that opens the lake has this release.",
            )
        location, lake_id = segments.location().rstrip("/"), lake_id_of(segments)
        assert lake_id is not None, location
        with _claim_turn(segments.io, location) as check_turn:
            acts = read_acts_at(segments.io, location)
            decision = decide(acts)
            if decision is not None:
                keeps = decision.kind in (ActKind.HOLD, ActKind.UNDO)
                now_ms = _read_clock(segments.io, location, keeps=keeps)
                # An act must not seem to be older than the act before it.
                at_ms = max(now_ms, acts[-1].act.at_ms) if acts else now_ms
                previous = acts[-1].sha256 if acts else ""
                data = Act(len(acts), previous, lake_id, person(), this_host(), at_ms, decision).encode()
                check_turn()
                replace_small_file(segments.io, _location_of(location, sha256_of_act(data)), data)
                acts = read_acts_at(segments.io, location)
            if acts:
                # The mark may lack the newest act, because the act's writer was killed.
                write_mark(segments.refresh(), lake_id, lake.catalog_id, act=acts[-1].sha256)
    return acts


def read_trusted_clock(lake: Lake) -> int:
    """Return the lake's time, in milliseconds since the epoch.

    :raises LakeUnavailableError: the lake's clock differs too much from this machine's, or the lake can't be
        written.
    """
    segments = lake.segments()
    return _read_clock(segments.io, segments.location().rstrip("/"), keeps=False)


def _read_clock(file_io: FileIO, location: str, *, keeps: bool) -> int:
    """Return the lake's time, in milliseconds since the epoch.

    :param keeps: the time is only for an act that keeps files. For such an act the clock may be wrong.
    :raises LakeUnavailableError: the clock differs from this machine's by more than ``JUMP_MS``, and a
        deletion may depend on the time.
    """
    now_ms, here_ms = read_clock_at(file_io, location) // 1_000_000, clock_ms()
    if not keeps and abs(now_ms - here_ms) > JUMP_MS:
        raise LakeUnavailableError(
            f"{location}: expected the time of this machine, {time_text(here_ms)}, found {time_text(now_ms)} "
            "as the time of a file that was just written: one of the two clocks is wrong, and messages could "
            "be deleted too early. Nothing was changed. Correct the wrong clock, and run again."
        )
    return now_ms


def _read_act(file_io: FileIO, location: str, sha256: str) -> Act:
    try:
        return decode_act(_read_bytes(file_io, location, sha256), _location_of(location, sha256))
    except BadInputError as error:
        raise LakeUnavailableError(f"{error}. {_ADVICE}") from error


def _read_bytes(file_io: FileIO, location: str, sha256: str) -> bytes:
    where = _location_of(location, sha256)
    data = read_small_file(file_io, where)
    if data is None or sha256_of_act(data) != sha256:
        actual = "no file" if data is None else sha256_of_act(data)
        raise LakeUnavailableError(f"{where}: expected bytes with this SHA-256, found {actual}. {_ADVICE}")
    return data


def _location_of(location: str, sha256: str) -> str:
    return f"{location}/{_ACTS}/{sha256}.json"


@contextmanager
def _claim_turn(file_io: FileIO, location: str) -> Iterator[Callable[[], None]]:
    """Keep other writers of acts away on object stores, which have no lock.

    :return: a function to call right before an act is written. It raises an error if this writer took too
        long.
    :raises LakeUnavailableError: another process records an act.
    """
    if local_path(location) is not None:
        yield lambda: None
        return
    name, begun = f"{uuid.uuid4()}.claim", time.monotonic()
    claim = f"{location}/{_CLAIMS}/{name}"

    def check_turn() -> None:
        if time.monotonic() - begun > _CLAIM_SECONDS / 2:
            raise _claim_error(location, "found that this process took too long")

    try:
        replace_small_file(file_io, claim, b"Somebody records an act.\n")
        claims = {file.inside: file.modified_ns for file in list_files(file_io, f"{location}/{_CLAIMS}")}
        oldest_ns = claims.get(name, 0) - _CLAIM_SECONDS * 1_000_000_000
        if others := [other for other, at_ns in claims.items() if other != name and at_ns > oldest_ns]:
            raise _claim_error(location, f"found the claim {others[0]} of another process")
        for other in claims.keys() - {name}:
            delete_small_file(file_io, f"{location}/{_CLAIMS}/{other}")
        yield check_turn
    finally:
        with suppress(LakeUnavailableError):
            delete_small_file(file_io, claim)


def _claim_error(location: str, reason: str) -> LakeUnavailableError:
    return LakeUnavailableError(
        f"{location}/{_CLAIMS}: expected that only this process records an act now, {reason}. Nothing was "
        "changed. Run the same command again. The claim of a killed process ends after "
        f"{_CLAIM_SECONDS // 60} minutes."
    )


def read_expiries(lake: Lake, acts: Iterable[str]) -> Mapping[str, str]:
    """Return a clause with the policy and time of each named act, by the act's SHA-256.

    If the lake's acts can't be read, no clause is returned, because ``verify`` reports the fault.

    :param acts: SHA-256 of the acts that receipts name. If there are none, no act is read.
    """
    hashes = set(acts) - {""}
    if not hashes:
        return {}
    try:
        every_act = read_acts(lake)
    except LakeUnavailableError:
        return {}
    texts, version = {}, "unknown"
    for recorded in every_act:
        if recorded.act.decision.kind in DECIDING:
            version = recorded.sha256
        if recorded.sha256 in hashes:
            since = time_text(recorded.act.at_ms)
            texts[recorded.sha256] = f"by policy {version[:SHOWN_CHARACTERS]} since {since}"
    return texts


def merged_expiries(ended: Iterable[tuple[Lake, Iterable[Receipt]]]) -> Mapping[str, str]:
    """Return the clauses of :func:`read_expiries` for receipts of several lakes.

    :param ended: each lake with its receipts of expired rows.
    """
    clauses: dict[str, str] = {}
    for lake, rows in ended:
        clauses |= read_expiries(lake, (row.act_sha256 for row in rows))
    return clauses


_STORE_FOLDER = "store_id="


@dataclass(frozen=True, slots=True)
class HeldStores:
    """A lake's holds, and the names of the stores that they may cover.

    :param names: by store id, all names of the store in its receipts, the newest last.
    """

    holds: tuple[Hold, ...]
    names: Mapping[str, tuple[str, ...]]

    def holds_of(self, store_id: str, *more_names: str) -> tuple[Hold, ...]:
        """Return the holds that cover at least one topic of a store."""
        names = (*self.names.get(store_id, ()), *more_names)
        return tuple(hold for hold in self.holds if hold.covers_store(store_id, names))

    def holds_file(self, inside: str) -> bool:
        """Return whether a hold covers the store of a data file or of a file of receipts.

        A hold on one topic is enough, because the file may have rows of every topic.

        :param inside: path of the file, relative to its table's location.
        """
        folder, *below = inside.split("/")
        if folder != "data":
            return False
        stores = [part.removeprefix(_STORE_FOLDER) for part in below if part.startswith(_STORE_FOLDER)]
        return bool(self.holds_of(stores[0]) if stores else self.holds)


def read_held_stores(lake: Lake) -> HeldStores:
    """Return the stores of a lake that are held now.

    :raises LakeUnavailableError: the lake or its acts can't be read. Then no file may be removed.
    """
    return held_stores(lake, read_acts(lake))


def held_stores(lake: Lake, acts: Acts) -> HeldStores:
    """Return which stores of a lake are held according to its acts.

    :raises LakeUnavailableError: the receipts can't be read.
    """
    holds = policy_of(acts).holds
    return HeldStores(holds, read_store_names(lake) if holds else {})


def read_store_names(lake: Lake) -> dict[str, tuple[str, ...]]:
    """Return all names that each store had, by store id, the newest last.

    Names that are made from a store's paths come before names that people gave it.

    :raises LakeUnavailableError: the receipts can't be read.
    """
    table = lake.segments()
    slot = ("store_id", "lineage", "log", "base_offset", "store_name")
    with metadata_errors(table.location(), "read receipts"):
        receipts = table.scan(selected_fields=(*slot, "broker", "store_root", "sequence")).to_arrow()
    places = receipts.group_by(["store_id", "broker", "store_root"], use_threads=False).aggregate([])
    by_place = (
        (row["store_id"], store_text(None, row["broker"], row["store_root"])) for row in places.to_pylist()
    )
    # Later receipts of a segment repeat its store's name in the first one.
    first = receipts.group_by(list(slot), use_threads=False).aggregate([("sequence", "min")])
    names = first.group_by(["store_id", "store_name"], use_threads=False).aggregate([("sequence_min", "max")])
    ordered = names.sort_by("sequence_min_max").to_pylist()
    by_time = ((row["store_id"], row["store_name"]) for row in ordered)
    return newest_last((*by_place, *by_time))


def newest_last(rows: Iterable[tuple[str, str | None]]) -> dict[str, tuple[str, ...]]:
    """Return each store's names, the newest last. Pure.

    :param rows: pairs of a store id and a name of the store, or None without a name; the oldest first.
    """
    names: dict[str, dict[str, None]] = {}
    for store_id, name in rows:
        of_store = names.setdefault(store_id, {})
        if name:
            of_store.pop(name, None)
            of_store[name] = None
    return {store_id: tuple(of_store) for store_id, of_store in names.items()}
