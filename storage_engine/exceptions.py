"""One exception per failure that a caller can act on.

Each message says what is wrong, where (file and offset), what was expected, what was found, and what
to do about it. None of these is raised after something was changed, unless its docstring says so.
"""

from __future__ import annotations

from storage_engine.commands import Command, Part, Text, commands_in

_MAX_CHARACTERS = 10_000


class StorageEngineError(Exception):
    """Base of every error that this package raises on purpose.

    A message that quotes what others wrote is never longer than 10,000 characters: its middle is left out.

    :param parts: of the message, commands among them: ``str(error)`` has these without arguments, and the
        caller that shows the error adds the known ones.
    """

    def __init__(self, *parts: Part) -> None:
        super().__init__(Text(*parts).cut(_MAX_CHARACTERS))

    @property
    def then(self) -> tuple[Command, ...]:
        """Return the commands that the message names."""
        return commands_in(Text(self))


class BadInputError(StorageEngineError):
    """The caller named something that can't be used; nothing was changed. Command line exit code 2.

    :param page: of the documentation that says more, by its name; "": none.
    """

    def __init__(self, *parts: Part, page: str = "") -> None:
        super().__init__(*parts, *((" See: ", Command("docs", page)) if page else ()))


class NoSuchConnectionError(BadInputError):
    """A store's connection isn't in this Airflow; somebody has to add it, or to name another."""


class SimulationTooLongError(BadInputError):
    """A simulation takes more processor time than it may; fewer days or larger segments take less."""


class MissingExtraError(BadInputError):
    """The request needs libraries that this install lacks; the message has the command for them."""


class StoreNotFoundError(BadInputError):
    """The store directory, or a part of it that must exist, is missing or empty."""


class UnsupportedLayoutError(BadInputError):
    """The store uses a layout that is recognised but not handled (RocksDB, DLedger, compaction)."""


class BrokerConfigError(BadInputError):
    """A key of broker.conf has a value that the broker itself would not work with."""


class StoreLayoutError(BadInputError):
    """Files don't form one store: a wrong name or size, a hole, a link, another store's directory."""


class CorruptFileError(BadInputError):
    """A consume queue, index, checkpoint or config file can't be what its name says."""


class BrokerPackageError(BadInputError):
    """A broker's package fails, or what it answers can't be true; the package has to be mended.

    Raised of a deletion, it says what may be gone: then nothing is recorded of it but the intents.
    """


class CorruptFrameError(StorageEngineError):
    """Bytes inside a sealed segment are not a whole, valid frame."""

    @classmethod
    def at(cls, path: str, offset: int, expected: str, found: str) -> CorruptFrameError:
        """Return the error of a frame that is not valid.

        :param path: the segment file.
        :param offset: physical offset of the first bad byte's frame.
        :param expected: the value of a valid frame there.
        :param found: the value there.
        """
        return cls(
            f"{path}: bad frame at physical offset {offset}: expected {expected}, found {found}. "
            "Nothing was archived or deleted. Compare the file with a replica; to archive its bytes "
            "as they are, run archive with --accept-damage."
        )


class CorruptBodyError(StorageEngineError):
    """A body can't be decompressed as its system flag says; the message itself is as it was stored."""


class WrongHostError(StorageEngineError):
    """A store is asked about on a host that isn't the one where its disk is."""


class DiskUnavailableError(StorageEngineError):
    """A store's disk doesn't answer, as a mount does whose server is gone: nothing is known of the store."""


class StorageUnavailableError(StorageEngineError):
    """A disk, an object store or a catalog failed where no layer knows better what that means."""


class StoreIdentityError(StorageEngineError):
    """The directory isn't the store that it was taken for: a copy, another one, or one that was moved."""


class StoreBusyError(StorageEngineError):
    """Somebody else holds the store: a running broker, another manager, or a process mapping its files."""


class TurnTakenError(StoreBusyError):
    """Another of our own processes has the store: who waits gets it."""


class ChangedUnderUsError(StorageEngineError):
    """A file of a store isn't as it was a moment ago: another process changes it. It was not deleted.

    :param path: of the file, where the error is of one alone.
    """

    def __init__(self, *parts: Part, path: str = "") -> None:
        super().__init__(*parts)
        self.path = path


class FileGoneError(ChangedUnderUsError):
    """A file of a store vanished between being listed and being read, as a broker deletes and renames."""

    @classmethod
    def at(cls, path: str, known: str = "Nothing was changed.") -> FileGoneError:
        """:param known: the known state of the store, as a sentence."""
        return cls(
            f"{path}: expected the file that was listed, found none: it was deleted or renamed meanwhile. "
            f"{known} Run it again, which lists the files as they are by then.",
            path=path,
        )


class StoreCrashedError(StorageEngineError):
    """The store's broker didn't stop cleanly: it must recover the store before that may be changed."""


class BrokerError(StorageEngineError):
    """A request to a live broker or name server failed; the message names the address and the request.

    :param may_have_acted: the request asks for a change and was sent, so that the peer may have made it.
    """

    def __init__(self, *parts: Part, may_have_acted: bool = False) -> None:
        super().__init__(*parts)
        self.may_have_acted = may_have_acted


class BrokerUnavailableError(BrokerError):
    """The peer can't be reached, doesn't answer in time, or closed the connection: nothing is known of it."""


class BrokerProtocolError(BrokerError):
    """The peer answers with what no broker of a known release would say: garbage, too much, other fields."""


class BrokerRefusedError(BrokerError):
    """The broker answered that it won't, or said yes and did something else.

    :param code: the broker's response code (ResponseCode); 0 where it said yes.
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
    """There is no lake where one is expected: no catalog, or one without our tables."""


class LakeIdentityError(LakeUnavailableError):
    """The lake isn't the one that it should be: a copy, an older catalog, another lake's place."""


class LakeConflictError(StorageEngineError):
    """Other bytes are already archived under this store, lineage, log and base offset."""


class JournalUnavailableError(StorageEngineError):
    """The journal can't be reached, read or written; without it nothing is planned, archived or deleted."""


class JournalConflictError(JournalUnavailableError):
    """The journal has a row already that was to be new: another process recorded it at the same time."""


class CommitStateUnknownError(StorageEngineError):
    """A commit's outcome could not be found out, not even by reading the table again."""


class ProofError(StorageEngineError):
    """The copy read back from the lake is not the segment, byte for byte; it was not committed."""


class ReceiptError(StorageEngineError):
    """A receipt is missing, broken, or does not describe this segment."""


class QuarantineError(StorageEngineError):
    """A quarantine isn't as it was left, or its store has gone on since: what is there isn't moved."""


class GateRefusedError(StorageEngineError):
    """A release was refused because an invariant does not hold; nothing was deleted by this call."""


class NotApprovedError(GateRefusedError):
    """A second person has to approve the plan, and none has; nothing was deleted.

    Command line exit code 3.
    """


class LogsRefusedError(StorageEngineError):
    """Some logs of a release were refused and stay as they are; what the other logs lost is recorded."""


class ShieldError(StorageEngineError):
    """The shield of a store can't be read or written, so what it keeps is unknown. Nothing was changed."""


class ReleasedTooMuchError(StorageEngineError):
    """A broker, or somebody beside it, deleted more than was approved; what exceeds it may be lost."""


class RunStateError(StorageEngineError):
    """A step was called for a run that is not at this step (no plan, not approved, unknown key)."""


class RestoreError(StorageEngineError):
    """A restore can't be done as asked: target in use, range not in the lake, bytes don't match."""


class ExportError(StorageEngineError):
    """Messages can't be exported as asked: the file is there already, or can't be written."""


class SparkJobError(StorageEngineError):
    """A Spark job could not start or failed as a whole."""


class AgentError(StorageEngineError):
    """An agent can't be reached, isn't who it should be, or what came isn't whole: nothing is proven."""


OF_ONE_LOG = (
    ChangedUnderUsError,
    CorruptFileError,
    CorruptFrameError,
    LakeConflictError,
    ProofError,
    StoreLayoutError,
)
"""A fault of a segment or its log, and not of its store or a lake."""
