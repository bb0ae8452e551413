"""Input and output of the archiving of one segment: plain data, picklable and JSON-able."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field, fields, replace
from pathlib import PurePosixPath

from storage_engine.lake.acts.unarchived import ArchivePermits
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.model.proof.receipt import ProvenRows, Receipt, SegmentIdentity
from storage_engine.model.store import FileFacts, SegmentContext, in_file_name

_LOG_BYTES = 148
"""Bytes of a log's name in a data file's name, which has at most 107 more while it is staged; file
systems take 255."""

_SHARED_FILE_NAME = re.compile(r"shared-[0-9a-f]{8,32}-\d{1,9}(?:-[0-9a-f]{8})?\.parquet")

_DATA_FILE_NAME = re.compile(r"(\d+-.+-\d{20}-)([0-9a-f]{16})(?:-([0-9a-f]{8}))?\.parquet")


@dataclass(frozen=True, slots=True)
class AgentAccess:
    """The address of the agent beside a broker, and the driver's access to it.

    :param address: HOST:PORT; plain://HOST:PORT without TLS.
    :param token: that the agent has as well; "": it asks for a certificate.
    :param authorities: PEM of who signed the agent's certificate; "": the system's.
    :param certificate_file: PEM of the driver's own certificate with its key; "": none.
    """

    address: str
    token: str = field(default="", repr=False)
    authorities: str = field(default="", repr=False)
    certificate_file: str = ""


@dataclass(frozen=True, slots=True)
class AgentRun:
    """Everything that a task needs to read the segments of one run from an agent.

    :param address: as of :class:`AgentAccess`, as is ``authorities``.
    :param run: the agent's name for the run: the digest of the files that it may read, and a number.
    """

    address: str
    authorities: str = field(repr=False)
    run: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SegmentJob:
    """One segment to archive.

    :param facts: the file as it was when it was chosen; a file that differs is refused.
    :param messages_location: the location of the table of rows, so that a task needs no catalog.
    :param accept_damage: archive bytes that don't decode as they are, instead of refusing them.
    :param original_mtime_ns: see ``Segment``; the receipt's time of the file.
    :param attempt: part of the data file's name, where one by that name was in the table and was lost or
        rewritten: another engine's snapshot expiry may still delete it.
    :param bytes_per_second: how fast this process may archive; None: as fast as it can. See ``pace``.
    :param store_name: the receipt's name of the store.
    :param store_host: the receipt's name of the machine on which the store lies.
    :param end_offset: see ``Segment.end``; None where it is base offset + size.
    :param companions: see ``Segment``, as they were when they were chosen.
    :param context: facts of its broker that its files don't have.
    :param permits: by which rows of some topics stay out of the lake; None: all rows enter.
    :param agent: where its files are read; None: on this host.
    :param found_in: a shared data file of the table that has its rows, without a receipt of it, and the row
        groups: a run was killed between its commits. None: there is none.
    :param shares: with which others it may lie in one data file: those with the same word; None: with none.
    """

    store_id: str
    lineage: int
    broker: str
    store_root: str
    log: str
    base_offset: int
    facts: FileFacts
    lake: LakeConfig
    messages_location: str
    accept_damage: bool = False
    attempt: str = ""
    original_mtime_ns: int | None = None
    bytes_per_second: int | None = None
    store_name: str | None = None
    store_host: str | None = None
    end_offset: int | None = None
    companions: tuple[FileFacts, ...] = ()
    context: SegmentContext = field(default_factory=SegmentContext)
    trees: bool = False
    permits: ArchivePermits | None = None
    agent: AgentRun | None = None
    found_in: tuple[str, str] | None = None
    shares: str | None = None

    @property
    def path(self) -> str:
        return self.facts.path

    @property
    def slot(self) -> SegmentIdentity:
        """Return the segment's identity, whatever bytes it has."""
        return SegmentIdentity(self.store_id, self.lineage, self.log, self.base_offset, "")

    def data_file(self, sha256: str) -> str:
        """Location of the segment's data file: one name for one identity and attempt.

        :param sha256: of the segment's bytes, in hex.
        """
        name = data_file_name(replace(self.slot, sha256=sha256), self.attempt)
        return f"{self.messages_location}/data/store_id={self.store_id}/{name}"


@dataclass(frozen=True, slots=True)
class ProvenSegment(ProvenRows):
    """A segment whose data file was read back from the lake and is the source file, byte for byte; or what of
    it isn't of topics that archive rules leave out.

    The fields are those of :class:`Receipt`, without those that make the chain; ``data_file`` is the whole
    location.

    :param staged_file: where the proven bytes lie until they are published under ``data_file``; equal
        to it when they are there already. Belongs to this attempt alone.
    :param manifest_facts: values for the data file's entry in the manifest; see
        :func:`~storage_engine.lake.file.table_entries.packed_facts`.
    """

    staged_file: str
    manifest_facts: bytes = field(repr=False)
    store_name: str | None = None
    store_host: str | None = None
    log_id: str | None = None
    evidence: str | None = None
    end_offset: int | None = None
    files: str | None = field(default=None, repr=False)
    root: str | None = None
    streams: str | None = field(default=None, repr=False)
    row_groups: str | None = None
    state: str | None = None
    act: str | None = None

    def receipt(self, data_file: str) -> Receipt:
        """Return the row that says so, not yet a link of its store's chain.

        :param data_file: the data file's name, relative to the table's location.
        """
        others = ("staged_file", "manifest_facts", "data_file")
        same = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in others}
        return Receipt(**same, data_file=data_file, moved_to=None, sequence=-1, previous_hash="", row_hash="")


def new_attempt() -> str:
    """Eight digits that no other attempt at any segment has."""
    return uuid.uuid4().hex[:8]


def data_file_name(identity: SegmentIdentity, attempt: str = "") -> str:
    """``<lineage>-<log>-<base offset, 20 digits>-<first 16 digits of the SHA-256>[-<attempt>].parquet``"""
    return f"{slot_prefix(identity)}{identity.sha256[:16]}{attempt and '-'}{attempt}.parquet"


def with_attempt(location: str, attempt: str) -> str:
    """Return a data file's location as another attempt names it."""
    directory, _, name = location.rpartition("/")
    slot, digits = split_data_file_name(name)
    return f"{directory}/{slot}{digits}-{attempt}.parquet"


def slot_prefix(identity: SegmentIdentity) -> str:
    """Return how the data files of every content ever seen in one (lineage, log, base offset) begin."""
    log = in_file_name(identity.log, _LOG_BYTES)
    return f"{identity.lineage}-{log}-{identity.base_offset:020d}-"


def split_data_file_name(name: str) -> tuple[str, str]:
    """Return the parts that :func:`slot_prefix` was made from, and the 16 digits of the content.

    :return: two empty strings when another program named the file.
    """
    match = _DATA_FILE_NAME.fullmatch(name)
    return (match[1], match[2]) if match else ("", "")


def shared_file_name(run: str, task: int) -> str:
    """Return the name of a data file of several segments: ``shared-<run>-<task>.parquet``.

    :param run: digits that no other run has.
    """
    return f"shared-{run}-{task}.parquet"


def is_shared_name(name: str) -> bool:
    """Return whether a data file's name is that of a file of several segments."""
    return _SHARED_FILE_NAME.fullmatch(name) is not None


def is_own_name(name: str) -> bool:
    """Return whether a data file has a name that archiving gives; else another program wrote it."""
    return is_shared_name(name) or split_data_file_name(name)[0] != ""


def attempt_of(name: str) -> str:
    """The attempt in a data file's name; "" when it has none, or another program named the file."""
    match = _DATA_FILE_NAME.fullmatch(name)
    return (match[3] or "") if match else ""


def file_name(location: str) -> str:
    """The last part of a file's location, whatever its scheme."""
    return PurePosixPath(location).name
