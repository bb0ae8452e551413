"""Receipts: proof that a segment and its companions are in a lake. Also the last receipt of a store's chain.

``files`` of a receipt is a JSON list with an object for each companion, sorted by name. ``content`` is the
file, compressed by zlib, in base64. A reader trusts nothing of it: sizes, hashes and names are checked.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from storage_engine.core.jsonable import from_jsonable
from storage_engine.exceptions import BadInputError, ReceiptError, StoreLayoutError
from storage_engine.model.store import FileFacts

MAX_COMPANION_BYTES: Final = 1 << 20
"""The most bytes of all companions of one segment. The limit is low because whole receipts are read often."""

_LONGEST_NAME_BYTES: Final = 255


@dataclass(frozen=True, slots=True)
class _CompanionFacts:
    """A companion file's name, size, hash, times, device and inode, without its content.

    :param name: name within the segment's directory.
    """

    name: str
    size_bytes: int
    sha256: str
    device: int
    inode: int
    mtime_ns: int
    ctime_ns: int


@dataclass(frozen=True, slots=True)
class Companion(_CompanionFacts):
    """A companion file of a segment, as it was when it was proven."""

    content: bytes = field(repr=False)

    @classmethod
    def of(cls, facts: FileFacts, content: bytes) -> Companion:
        return cls(
            name=Path(facts.path).name,
            size_bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            device=facts.device,
            inode=facts.inode,
            mtime_ns=facts.mtime_ns,
            ctime_ns=facts.ctime_ns,
            content=content,
        )

    def facts_in(self, directory: Path) -> FileFacts:
        """Return the file's facts, with a path in the given directory."""
        path = str(directory / self.name)
        return FileFacts(path, self.device, self.inode, self.size_bytes, self.mtime_ns, self.ctime_ns)


def companions_text(companions: Iterable[Companion]) -> str | None:
    """Return a receipt's record of a segment's companions; None if there are none."""
    rows = [
        {**asdict(companion), "content": base64.b64encode(zlib.compress(companion.content)).decode()}
        for companion in sorted(companions, key=lambda item: item.name)
    ]
    return json.dumps(rows, separators=(",", ":")) if rows else None


def read_companions(text: str | None) -> tuple[Companion, ...]:
    """Return the companions from a text of :func:`companions_text`.

    :raises ReceiptError: the text isn't from that function; the error names the fault.
    """
    if text is None:
        return ()
    try:
        rows = json.loads(text, object_pairs_hook=_each_key_once)
        if not isinstance(rows, list) or not rows:
            raise ValueError(f"expected a list of files, found {_show(rows)}")
        companions = tuple(_read_companion(row) for row in rows)
        names = [companion.name for companion in companions]
        if sorted(set(names)) != names:
            raise ValueError(f"expected each file once and by name, found {', '.join(map(repr, names))}")
        if (total := sum(companion.size_bytes for companion in companions)) > MAX_COMPANION_BYTES:
            raise ValueError(f"expected at most {MAX_COMPANION_BYTES} bytes in all, found {total}")
    except (ValueError, RecursionError, BadInputError) as error:
        raise ReceiptError(f"its files are not sound: {error}") from error
    return companions


def files_fault(text: str | None) -> str:
    """Return the fault in a receipt's record of its segment's companions. "" if there is none."""
    try:
        read_companions(text)
    except ReceiptError as error:
        return str(error)
    return ""


def check_size(own: FileFacts, companions: Iterable[FileFacts]) -> None:
    """Make sure that a segment's companions fit into a receipt.

    :raises StoreLayoutError: the files are too long.
    """
    files = list(companions)
    total = sum(file.size_bytes for file in files)
    if total > MAX_COMPANION_BYTES:
        largest = max(files, key=lambda file: file.size_bytes)
        raise StoreLayoutError(
            f"{largest.path}: expected at most {MAX_COMPANION_BYTES} bytes in the companions of segment "
            f"{own.path}, found {total}, of which this one has {largest.size_bytes}. Nothing was archived. "
            "Find out why the file is so long. The segment isn't deleted until the file is shorter."
        )


def _read_companion(row: Any) -> Companion:
    file = from_jsonable(_CompanionRecord, row, "file")
    if not _is_name(file.name):
        raise ValueError(f"expected the name of a file in the segment's directory, found {_show(file.name)}")
    if not 0 <= file.size_bytes <= MAX_COMPANION_BYTES:
        raise ValueError(f"{file.name}: expected 0 to {MAX_COMPANION_BYTES} bytes, found {file.size_bytes}")
    content = _decompress(file)
    if (sha256 := hashlib.sha256(content).hexdigest()) != file.sha256:
        raise ValueError(f"{file.name}: expected content with SHA-256 {_show(file.sha256)}, found {sha256}")
    return Companion(**{**asdict(file), "content": content})


@dataclass(frozen=True, slots=True)
class _CompanionRecord(_CompanionFacts):
    """A companion as its JSON object describes it."""

    content: str


def _decompress(file: _CompanionRecord) -> bytes:
    """Return a companion's decompressed content. This never takes more memory than the recorded size."""
    inflate = zlib.decompressobj()
    try:
        content = inflate.decompress(base64.b64decode(file.content, validate=True), file.size_bytes + 1)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"{file.name}: expected content of zlib in base64, found other: {error}") from error
    if len(content) != file.size_bytes or not inflate.eof or inflate.unused_data:
        raise ValueError(
            f"{file.name}: expected {file.size_bytes} bytes and nothing behind, found "
            f"{'more' if len(content) > file.size_bytes or inflate.unused_data else len(content)}"
        )
    return content


def _is_name(name: str) -> bool:
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:
        return False
    fits = 0 < len(encoded) <= _LONGEST_NAME_BYTES
    return fits and name not in (".", "..") and not {"/", "\0"} & set(name)


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError(f"expected each key once, found {', '.join(key for key, _ in pairs)}")
    return fields


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]} …"


PROOF_VERSION = 3
"""Version of receipts. It rises when "proven" gets another meaning, or when receipts get another field. Older
code doesn't trust a receipt with a higher version. In version 1, a receipt names data files by their whole
locations, and has no field after ``row_hash``. In version 3, a receipt has a root.
"""

_VERSION_WITHOUT_ROOT = 2


def proof_version_of(root: str | None) -> int:
    """Return the version of a proof with this root, or of a proof without a root if ``root`` is None."""
    return _VERSION_WITHOUT_ROOT if root is None else PROOF_VERSION


EXPIRED = "expired"
"""State of a receipt: a keep rule removed the segment's rows from the lake. Persisted: never renamed."""

PARTIAL = "partial"
"""State of a receipt: the lake has only some of the segment's streams. Persisted: never renamed."""

NOT_ARCHIVED = "not archived, by rule "
"""Beginning of the text on bytes that a rule keeps out of the lake. Persisted: never changed."""

_ARCHIVE_RULE = "archive"
"""Kind of a receipt's act if archive rules left streams out when the segment was archived. Persisted."""

NO_EXPIRIES: Mapping[str, str] = MappingProxyType({})

_ROW_GROUPS = re.compile(r"(\d{1,9})-(\d{1,9})")

_SHOWN_CHARACTERS = 12
"""Number of digits of an act's SHA-256 that name the act in texts."""

SETTLED = json.dumps({"settled": True})
"""Evidence that the file was settled at its proof: any later write would have changed the file's facts."""


def settled_with(evidence: Mapping[str, Any]) -> str:
    """Return :data:`SETTLED` with further facts of the proof."""
    return json.dumps({**evidence, **json.loads(SETTLED)}, sort_keys=True)


@dataclass(frozen=True, slots=True)
class SegmentIdentity:
    """Identifies a segment in receipts. Two identities that differ only in the SHA-256 are a conflict."""

    store_id: str
    lineage: int
    log: str
    base_offset: int
    sha256: str


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the table of rows as it was when the rows in it were proven."""

    location: str
    size_bytes: int
    sha256: str


def files_text(files: Iterable[StoredFile]) -> str:
    """Return files as JSON text. In a column of lists, some engines would mix up null and an empty list."""
    return json.dumps([[file.location, file.size_bytes, file.sha256] for file in files])


@dataclass(frozen=True, slots=True)
class ProvenRows:
    """A receipt's record of a segment, before its place in the chain is known; see :class:`Receipt`."""

    store_id: str
    lineage: int
    log: str
    base_offset: int
    size_bytes: int
    sha256: str
    broker: str
    store_root: str
    message_count: int
    row_count: int
    damaged_bytes: int
    first_store_timestamp_ms: int | None
    last_store_timestamp_ms: int | None
    source_path: str
    source_device: int
    source_inode: int
    source_mtime_ns: int
    source_ctime_ns: int
    data_file: str
    data_file_bytes: int
    data_file_sha256: str
    proof_version: int
    proven_at_ms: int

    @property
    def identity(self) -> SegmentIdentity:
        return SegmentIdentity(self.store_id, self.lineage, self.log, self.base_offset, self.sha256)

    @property
    def slot(self) -> SegmentIdentity:
        """Return the identity without the SHA-256 of the segment's bytes."""
        return SegmentIdentity(self.store_id, self.lineage, self.log, self.base_offset, "")


@dataclass(frozen=True, slots=True)
class Receipt(ProvenRows):
    """One row of the lake's ``segments`` table. If several rows have the same identity, the last one counts.

    ``source_*`` are the file's facts when it was proven. ``sequence`` counts the store's rows from 0.
    ``previous_hash`` is the ``row_hash`` of the row before, or 64 zeros for the first row. This chain shows
    tampering. Times are in milliseconds since the epoch. The first and last store timestamps are None if the
    segment has no message.

    The fields after ``row_hash`` came later and may be empty in any row. A field that is None isn't part of
    the row's hash.

    :param data_file: relative to the location of the table of rows; the whole location in rows of version 1.
    :param moved_to: the files into which another engine has moved the segment's rows, and their delete files,
        as text of :func:`files_text`; None while the rows are in ``data_file`` as written.
    :param end_offset: offset behind the segment's last offset; None means ``base_offset`` + ``size_bytes``.
    :param files: the segment's companion files, as text of :func:`companions_text`; None if there are none.
    :param store_name: the store's name when the segment was proven.
    :param store_host: the machine that had the store when the segment was proven.
    :param log_id: the broker's own identity of the log, if the name alone doesn't identify the log.
    :param digest: the broker's digest of the segment's content; None if ``sha256`` is that digest.
    :param evidence: further known facts of the proof, as JSON; see :data:`SETTLED`.
    :param root: root of the hash tree over the segment's rows, in hex; None if there is no root yet.
    :param streams: JSON list of the streams below the root; None if the lake has the only stream.
    :param row_groups: the row groups of ``data_file`` that have the segment's rows, as ``FIRST-END``, END
        exclusive; None means all row groups.
    :param state: ``partial`` or ``expired``; None if the segment is whole.
    :param act: JSON object of the act that caused the row; None if archiving or a new proof did.
    """

    moved_to: str | None
    sequence: int
    previous_hash: str
    row_hash: str
    end_offset: int | None = None
    files: str | None = None
    store_name: str | None = None
    store_host: str | None = None
    log_id: str | None = None
    digest: str | None = None
    evidence: str | None = None
    root: str | None = None
    streams: str | None = None
    row_groups: str | None = None
    state: str | None = None
    act: str | None = None

    @property
    def is_whole(self) -> bool:
        """Return whether the lake has the whole segment, as archived. Only then its bytes are proven."""
        return self.state is None

    @property
    def has_rows(self) -> bool:
        """Return whether the lake has at least some rows of the segment."""
        return self.state != EXPIRED

    @property
    def groups(self) -> range | None:
        """Return the row groups of ``data_file`` that have the segment's rows. They may also have rows of
        other segments. None means all row groups.

        :raises ReceiptError: the row's ``row_groups`` is invalid.
        """
        return read_row_groups(self.row_groups)

    @property
    def lacks_by_rules(self) -> bool:
        """Return whether archive rules kept streams out of the lake, and no row left the lake later.

        Each deletion has to check again that such a rule permits it.
        """
        return self.state == PARTIAL and _json_object(self.act).get("kind") == _ARCHIVE_RULE

    @property
    def gone_streams(self) -> Mapping[str, Mapping[str, Any]]:
        """Return, by name, the entry in ``streams`` of each stream that isn't in the lake."""
        streams = json.loads(self.streams or "[]")
        return {stream["name"]: stream for stream in streams if stream["gone"] is not None}

    @property
    def kept_streams(self) -> frozenset[str]:
        """Return the names of the streams that the lake still has, as ``streams`` says."""
        return frozenset(row["name"] for row in json.loads(self.streams or "[]") if row["gone"] is None)

    @property
    def act_sha256(self) -> str:
        """Return the SHA-256 of the act that caused the row. "" if the row names no act."""
        return act_sha256(self.act)

    @property
    def end_text(self) -> str:
        """Return the state of a segment that isn't whole, as a clause."""
        return end_text(self.state, self.act)

    @property
    def proven_files(self) -> tuple[StoredFile, ...]:
        """The data files that the proof depends on, with their locations as in the row."""
        if self.moved_to is not None:
            return tuple(StoredFile(*file) for file in json.loads(self.moved_to))
        return (StoredFile(self.data_file, self.data_file_bytes, self.data_file_sha256),)

    @property
    def source_facts(self) -> FileFacts:
        """Facts of the file that was archived, with the mtime that the file had before a hold."""
        times = (self.source_mtime_ns, self.source_ctime_ns)
        return FileFacts(self.source_path, self.source_device, self.source_inode, self.size_bytes, *times)

    @property
    def was_settled(self) -> bool:
        """Return whether the proof was made of a settled file. Older releases didn't check that."""
        return self.known.get("settled") is True

    @property
    def known(self) -> Mapping[str, Any]:
        """Return the values of ``evidence``. Empty if there is no evidence."""
        return _json_object(self.evidence)

    @property
    def end(self) -> int:
        """The offset behind the segment's last offset."""
        return self.base_offset + self.size_bytes if self.end_offset is None else self.end_offset

    @property
    def content(self) -> tuple[str, int, tuple[tuple[str, str], ...]]:
        """Return what all receipts of a segment share: SHA-256, end, names and hashes of its companions.

        :raises ReceiptError: the row's record of companions is invalid.
        """
        return self.sha256, self.end, tuple((file.name, file.sha256) for file in self.companions)

    @property
    def companions(self) -> tuple[Companion, ...]:
        """The segment's companion files.

        :raises ReceiptError: the row's record of companions is invalid.
        """
        return read_companions(self.files)


def read_row_groups(text: str | None) -> range | None:
    """Return a receipt's ``row_groups`` as a range. None if the receipt names no row groups.

    :raises ReceiptError: the text is invalid.
    """
    if text is None:
        return None
    match = _ROW_GROUPS.fullmatch(text)
    groups = range(int(match[1]), int(match[2])) if match else range(0)
    if not groups:
        raise ReceiptError(f"row_groups: expected FIRST-END of a data file, END above FIRST, found {text!r}")
    return groups


def row_groups_text(groups: range) -> str:
    return f"{groups.start}-{groups.stop}"


def act_sha256(act: str | None) -> str:
    """Return the SHA-256 in a receipt's ``act``. "" if ``act`` has no SHA-256."""
    return str(_json_object(act).get("sha256") or "")


def end_text(state: str | None, act: str | None, expiries: Mapping[str, str] = NO_EXPIRIES) -> str:
    """Return the state of a segment whose receipt has these fields, as a clause. "" if the segment is whole.

    :param expiries: a clause on the policy and time of each expiry, by its act's SHA-256. For an act that is
        missing here, the clause names the act.
    """
    if state is None:
        return ""
    named_act = _json_object(act)
    if state == PARTIAL and named_act.get("kind") == _ARCHIVE_RULE:
        return f"{NOT_ARCHIVED}{named_act.get('id')}, in part: the lake has what other topics have of it"
    clause = "expired" if state == EXPIRED else f"in the lake in part only ({state})"
    digest = act_sha256(act)
    return f"{clause} {expiries.get(digest) or 'by act ' + (digest[:_SHOWN_CHARACTERS] or 'unknown')}"


def end_word(text: str) -> str:
    """Return the report's word for the state of bytes that :func:`end_text` describes."""
    return "NOT ARCHIVED" if text.startswith(NOT_ARCHIVED) else "EXPIRED"


def act_text(sha256: str, kind: str, *others: str) -> str:
    """Return a receipt's record of the act that caused it. ``others`` are SHA-256 of further such acts."""
    act_id = " and ".join(digest[:_SHOWN_CHARACTERS] for digest in (sha256, *others))
    return json.dumps({"id": act_id, "kind": kind, "sha256": sha256})


def rules_text(rules: Iterable[str]) -> str:
    """Return the ``act`` of a receipt whose segment has streams that archive rules kept out of the lake.

    :param rules: SHA-256 of these rules.
    """
    first, *others = sorted(set(rules))
    return act_text(first, _ARCHIVE_RULE, *others)


def gone_by(streams: str | None, act_id: str, names: Collection[str] | None = None) -> str | None:
    """Return a receipt's ``streams`` after an act has removed some streams. A stream that an earlier act
    removed stays removed by that act. None for a receipt of a single stream, which has no list of streams.

    :param names: the removed streams; None means all streams.
    """
    return _mark_gone(
        streams, lambda row: row["gone"] is None and (names is None or row["name"] in names), act_id
    )


def back_from(streams: str | None, act_id: str) -> str | None:
    """Return a receipt's ``streams`` after the undo of an act that removed some streams."""
    return _mark_gone(streams, lambda row: row["gone"] == act_id, None)


def _mark_gone(
    streams: str | None, is_changed: Callable[[Mapping[str, Any]], bool], act_id: str | None
) -> str | None:
    if streams is None:
        return None
    changed = [{**row, "gone": act_id} if is_changed(row) else row for row in json.loads(streams)]
    return json.dumps(changed, separators=(",", ":"))


def select_whole(rows: Iterable[Receipt]) -> tuple[Receipt, ...]:
    """Return the receipts that prove their segments' bytes."""
    return tuple(row for row in rows if row.is_whole)


def with_rows(rows: Iterable[Receipt]) -> tuple[Receipt, ...]:
    """Return the receipts of segments of which the lake has at least some rows."""
    return tuple(row for row in rows if row.has_rows)


def ended(rows: Iterable[Receipt]) -> tuple[Receipt, ...]:
    """Return the receipts of segments that the lake no longer has as a whole."""
    return tuple(row for row in rows if not row.is_whole)


def _json_object(text: str | None) -> Mapping[str, Any]:
    """Return a field's JSON object. An empty object if the field has none."""
    try:
        value = json.loads(text or "null")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


CHAIN_START = "0" * 64
"""``previous_hash`` of a store's first row."""


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The last row of a store's chain, or the last known row."""

    sequence: int
    row_hash: str

    @classmethod
    def of(cls, receipts: Iterable[Receipt]) -> ChainHead:
        """Return the last of some rows of one store. If there are no rows, return the start of the chain."""
        last = max(receipts, key=lambda row: row.sequence, default=None)
        return EMPTY_CHAIN if last is None else cls(last.sequence, last.row_hash)


EMPTY_CHAIN = ChainHead(-1, CHAIN_START)


@dataclass(frozen=True, slots=True)
class LakeHead:
    """The last receipt of the store that a lake was known to have.

    :param location: the lake's location in its configuration.
    :param place: location of its table ``segments``; "" where an older version recorded none.
    """

    lake_id: str
    location: str
    sequence: int
    row_hash: str
    place: str = ""

    @property
    def chain_head(self) -> ChainHead:
        return ChainHead(self.sequence, self.row_hash)
