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
"""Maximum size of a log's name within a data file's name, in bytes. File systems allow 255 bytes for a name.
The rest of a staged file's name needs up to 107."""

_SHARED_FILE_NAME = re.compile(r"shared-[0-9a-f]{8,32}-\d{1,9}(?:-[0-9a-f]{8})?\.parquet")

_DATA_FILE_NAME = re.compile(r"(\d+-.+-\d{20}-)([0-9a-f]{16})(?:-([0-9a-f]{8}))?\.parquet")


@dataclass(frozen=True, slots=True)
class AgentAccess:
    """The address of the agent on a broker's host, and the driver's access to it.

    :param address: HOST:PORT; plain://HOST:PORT without TLS.
    :param token: token that the agent has as well; "" if the agent requires a certificate instead.
    :param authorities: PEM of the authority that signed the agent's certificate; "" for the system's
        authorities.
    :param certificate_file: PEM of the driver's own certificate with its key; "" if the driver has none.
    """

    address: str
    token: str = field(default="", repr=False)
    authorities: str = field(default="", repr=False)
    certificate_file: str = ""


@dataclass(frozen=True, slots=True)
class AgentRun:
    """The access of one run's tasks to an agent.

    :param address: as in :class:`AgentAccess`; likewise ``authorities``.
    :param run: the agent's name for the run: the digest of the files that the run may read, and a number.
    :param key: the agent's secret for this run.
    """

    address: str
    authorities: str = field(repr=False)
    run: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SegmentJob:
    """One segment to archive.

    :param facts: facts of the file when it was chosen. A file with another inode or size is refused.
    :param messages_location: the location of the table of rows, so that a task needs no catalog.
    :param accept_damage: archive undecodable bytes unchanged, instead of refusing them.
    :param original_mtime_ns: see ``Segment``; the receipt gets this time as the file's.
    :param attempt: part of the data file's name; "" for the plain name. It avoids the name of a file that was
        lost, rewritten or expired: another engine's snapshot expiry or our own may still delete that file.
    :param bytes_per_second: limit for this process, see ``pace``; None for no limit.
    :param store_host: the machine with the store, for the receipt.
    :param end_offset: see ``Segment.end``; None if it is base offset + size.
    :param companions: see ``Segment``; their facts when they were chosen.
    :param context: facts that the broker knows and the segment's files don't contain.
    :param permits: rules that leave rows of some topics out of the lake; None if all rows are archived.
    :param agent: the agent from which the files are read; None if they are read on this host.
    :param found_in: location and row groups of the segment's rows in a shared data file of the table, if a
        killed run left them without a receipt. Otherwise None.
    :param shares: jobs with the same word here may share a data file; None if the segment shares none.
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
        """Return the segment's identity without its bytes."""
        return SegmentIdentity(self.store_id, self.lineage, self.log, self.base_offset, "")

    def data_file(self, sha256: str) -> str:
        """Return the location of the data file for this attempt and the segment's SHA-256, in hex."""
        name = data_file_name(replace(self.slot, sha256=sha256), self.attempt)
        return f"{self.messages_location}/data/store_id={self.store_id}/{name}"


@dataclass(frozen=True, slots=True)
class ProvenSegment(ProvenRows):
    """A segment whose data file was read back from the lake and is equal to the source file, byte for byte.

    If archive rules leave out topics, only the other topics' rows are compared. The fields are those of
    :class:`Receipt`, without the fields of the chain. ``data_file`` is the whole location.

    :param staged_file: location of the proven bytes until they are published under ``data_file``; equal to
        ``data_file`` if they are there already. The staged file belongs to this attempt alone.
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
        """Return the segment's receipt, which isn't linked into its store's chain yet.

        :param data_file: the data file's name, relative to the table's location.
        """
        left_out = ("staged_file", "manifest_facts", "data_file")
        same = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in left_out}
        return Receipt(**same, data_file=data_file, moved_to=None, sequence=-1, previous_hash="", row_hash="")


def new_attempt() -> str:
    """Return eight random hex digits, for one attempt at a segment."""
    return uuid.uuid4().hex[:8]


def data_file_name(identity: SegmentIdentity, attempt: str = "") -> str:
    """Return ``<lineage>-<log>-<base offset, 20 digits>-<first 16 of the SHA-256>[-<attempt>].parquet``.

    The log's name is in the form for file names (:func:`storage_engine.model.store.in_file_name`).
    """
    return f"{slot_prefix(identity)}{identity.sha256[:16]}{attempt and '-'}{attempt}.parquet"


def with_attempt(location: str, attempt: str) -> str:
    """Return a data file's location under the name for another attempt."""
    directory, _, name = location.rpartition("/")
    slot, digits = split_data_file_name(name)
    return f"{directory}/{slot}{digits}-{attempt}.parquet"


def slot_prefix(identity: SegmentIdentity) -> str:
    """Return the beginning of all data files' names for one lineage, log and base offset."""
    return f"{identity.lineage}-{in_file_name(identity.log, _LOG_BYTES)}-{identity.base_offset:020d}-"


def split_data_file_name(name: str) -> tuple[str, str]:
    """Return :func:`slot_prefix` and the SHA-256's first 16 digits in a name, or two empty strings."""
    match = _DATA_FILE_NAME.fullmatch(name)
    return (match[1], match[2]) if match else ("", "")


def shared_file_name(run: str, task: int) -> str:
    """Return the name of a data file of several segments, for the digits of a run and a task's number."""
    return f"shared-{run}-{task}.parquet"


def is_shared_name(name: str) -> bool:
    """Return whether a data file's name is of the form that :func:`shared_file_name` gives."""
    return _SHARED_FILE_NAME.fullmatch(name) is not None


def is_own_name(name: str) -> bool:
    """Return whether a data file has a name that archiving gives. If not, another program wrote it."""
    return is_shared_name(name) or split_data_file_name(name)[0] != ""


def attempt_of(name: str) -> str:
    """Return the attempt in a data file's name, or "" if the name has none or another program gave it."""
    match = _DATA_FILE_NAME.fullmatch(name)
    return (match[3] or "") if match else ""


def file_name(location: str) -> str:
    """Return the last part of a file's location, for any scheme."""
    return PurePosixPath(location).name
