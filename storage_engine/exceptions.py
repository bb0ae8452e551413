"""One exception for each kind of failure that a caller can act on.

Each message names the fault, its place (file and offset), the expected and the found state, and the remedy.
If an exception can be raised after a change was made, its docstring says so.
"""

from __future__ import annotations

from storage_engine.commands import Command, Part, Text, commands_in

_MAX_CHARACTERS = 10_000


class StorageEngineError(Exception):
    """Base of every error that this package raises on purpose.

    A message with quoted text of other programs is at most 10,000 characters long: its middle is left out.

    :param parts: parts of the message, some of them commands. ``str(error)`` has the commands without
        arguments. The caller that shows the error adds the known arguments.
    """

    def __init__(self, *parts: Part) -> None:
        super().__init__(Text(*parts).cut(_MAX_CHARACTERS))

    @property
    def then(self) -> tuple[Command, ...]:
        """Return the commands named in the message."""
        return commands_in(Text(self))


class BadInputError(StorageEngineError):
    """The caller's input can't be used; nothing was changed. Command line exit code 2.

    :param page: name of the documentation page with more information; "" if there is none.
    """

    def __init__(self, *parts: Part, page: str = "") -> None:
        super().__init__(*parts, *((" See: ", Command("docs", page)) if page else ()))


class NoSuchConnectionError(BadInputError):
    """A store's connection isn't in this Airflow. A person has to add it, or to name another connection."""


class SimulationTooLongError(BadInputError):
    """A simulation takes more processor time than permitted. Fewer days or larger segments take less time."""


class MissingExtraError(BadInputError):
    """The request needs libraries that aren't installed. The message has the command to install them."""


class StoreNotFoundError(BadInputError):
    """The store directory, or a part of it that must exist, is missing or empty."""


class UnsupportedLayoutError(BadInputError):
    """The store uses a layout that is recognized but not supported (RocksDB, DLedger, compaction)."""


class BrokerConfigError(BadInputError):
    """A key of broker.conf has a value that the broker itself would not work with."""


class StoreLayoutError(BadInputError):
    """The files aren't one store: a wrong name or size, a gap, a link, or another store's directory."""


class CorruptFileError(BadInputError):
    """A consume queue, index, checkpoint or config file has invalid content, or is no ordinary file."""


class BrokerPackageError(BadInputError):
    """A broker's package fails, or its answer is impossible. The fault is in that package.

    If a deletion raises it, the message names the segments that may be gone: only their intents are recorded.
    """


class CorruptFrameError(StorageEngineError):
    """Bytes inside a sealed segment are not a whole, valid frame."""

    @classmethod
    def at(cls, path: str, offset: int, expected: str, found: str) -> CorruptFrameError:
        """Return the error for an invalid frame.

        :param path: the segment file.
        :param offset: physical offset of the frame with the first bad byte.
        :param expected: the value that a valid frame has there.
        :param found: the value there.
        """
        return cls(
            f"{path}: bad frame at physical offset {offset}: expected {expected}, found {found}. "
            "Nothing was archived or deleted. Compare the file with a replica; to archive its bytes "
            "as they are, run archive with --accept-damage."
        )


class CorruptBodyError(StorageEngineError):
    """A body can't be decompressed as its system flag says, or is too large. Its stored bytes can be read."""


class WrongHostError(StorageEngineError):
    """A store was requested on a host that doesn't have its disk."""


class DiskUnavailableError(StorageEngineError):
    """A store's disk doesn't answer, such as a mount whose server is gone. The state is unknown."""


class StorageUnavailableError(StorageEngineError):
    """A disk, an object store or a catalog failed, and no layer has a more specific error for it."""


class StoreIdentityError(StorageEngineError):
    """The directory isn't the expected store: it is a copy, another store, or a store that was moved."""


class StoreBusyError(StorageEngineError):
    """Another process has the store: a running broker, another manager, or a process that maps its files."""


class TurnTakenError(StoreBusyError):
    """Another of our own processes has the store. It becomes free after a wait."""


class ChangedUnderUsError(StorageEngineError):
    """A file of a store changed a moment ago: another process changes it. The file was not deleted.

    :param path: the file's path, if the error is about a single file.
    """

    def __init__(self, *parts: Part, path: str = "") -> None:
        super().__init__(*parts)
        self.path = path


class FileGoneError(ChangedUnderUsError):
    """A store's file vanished between listing and reading, because a broker deletes and renames files."""

    @classmethod
    def at(cls, path: str, known: str = "Nothing was changed.") -> FileGoneError:
        """:param known: the known state of the store, as a sentence."""
        return cls(
            f"{path}: expected the file that was listed, found none: it was deleted or renamed meanwhile. "
            f"{known} Run it again: it then lists the present files.",
            path=path,
        )


class StoreCrashedError(StorageEngineError):
    """The store's broker didn't stop cleanly. The broker must recover the store before we may change it."""


class BrokerError(StorageEngineError):
    """A request to a running broker or name server failed. The message names the address and the request.

    :param may_have_acted: whether a request for a change was sent, so that the peer may have made it.
    """

    def __init__(self, *parts: Part, may_have_acted: bool = False) -> None:
        super().__init__(*parts)
        self.may_have_acted = may_have_acted


class BrokerUnavailableError(BrokerError):
    """The peer can't be reached, doesn't answer in time, or closed the connection. Its state is unknown."""


class BrokerProtocolError(BrokerError):
    """The peer's answer is invalid for every known release: it is garbage, too long or has other fields."""


class BrokerRefusedError(BrokerError):
    """The broker refused a request, or accepted it and did something else.

    :param code: the broker's response code (ResponseCode); 0 if it accepted the request.
    :param remark: the broker's own words.
    """

    def __init__(self, *parts: Part, code: int = 0, remark: str = "", may_have_acted: bool = False) -> None:
        super().__init__(*parts, may_have_acted=may_have_acted)
        self.code = code
        self.remark = remark


class NotOnBrokerError(BadInputError):
    """The broker, or every name server, does not know this topic, queue, group, broker or setting."""


class LakeUnavailableError(StorageEngineError):
    """The lake can't be reached, read or written (missing, read-only, full)."""


class LakeMissingError(LakeUnavailableError):
    """The lake is missing at the expected place: there is no catalog, or a catalog without our tables."""


class LakeIdentityError(LakeUnavailableError):
    """The lake isn't the expected one: it is a copy, has an older catalog, or is at another lake's place."""


class LakeConflictError(StorageEngineError):
    """Other bytes are already archived under this store, lineage, log and base offset."""


class JournalUnavailableError(StorageEngineError):
    """The journal can't be reached, read or written. Without it nothing is planned, archived or deleted."""


class JournalConflictError(JournalUnavailableError):
    """The journal already has a row that should be new: another process recorded it at the same time."""


class CommitStateUnknownError(StorageEngineError):
    """A commit's outcome is unknown, even after the table was read again."""


class ProofError(StorageEngineError):
    """The copy read back from the lake differs from the segment. The copy was not committed."""


class ReceiptError(StorageEngineError):
    """A receipt is missing, broken, or does not describe this segment."""


class QuarantineError(StorageEngineError):
    """A quarantine was changed, or a process wrote to the store later. The quarantined files aren't moved."""


class GateRefusedError(StorageEngineError):
    """A deletion was refused because an invariant does not hold. This call deleted nothing."""


class NotApprovedError(GateRefusedError):
    """A second person must approve the plan first. Nothing was deleted. Command line exit code 3."""


class LogsRefusedError(StorageEngineError):
    """The deletion was refused for some logs, which are unchanged. Deletions of other logs are recorded."""


class ShieldError(StorageEngineError):
    """A store's shield can't be read or written: its kept segments are unknown. Nothing was changed."""


class ReleasedTooMuchError(StorageEngineError):
    """A broker, or another program, deleted more than was approved. The additional segments may be lost."""


class RunStateError(StorageEngineError):
    """A step was called for a run that isn't ready for it (no plan, not approved, unknown key)."""


class RestoreError(StorageEngineError):
    """A restore can't be done: the target is in use, the range isn't in the lake, or bytes don't match."""


class ExportError(StorageEngineError):
    """Messages can't be exported as requested: the file exists already, or can't be written."""


class SparkJobError(StorageEngineError):
    """A Spark job couldn't start, or the whole job failed."""


class AgentError(StorageEngineError):
    """An agent can't be reached, isn't the expected agent, or its data is incomplete. Nothing is proven."""


OF_ONE_LOG = (
    ChangedUnderUsError,
    CorruptFileError,
    CorruptFrameError,
    LakeConflictError,
    ProofError,
    StoreLayoutError,
)
"""Errors that concern a segment or its log, not the whole store or a lake."""
