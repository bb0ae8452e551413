"""Advice on each finding of a report, in words: errors, checks, reasons to keep. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from storage_engine.commands import Command, Text
from storage_engine.model.broker.broker_words import BrokerWords

OTHERWISE = "Read the error, mend what it names, then run again. What is done already is not done twice."
"""Advice about an error that no table foresees."""

ERRORS: Mapping[str, str] = {
    "StorageEngineError": OTHERWISE,
    "BadInputError": "Correct what the error names, then run again.",
    "NoSuchConnectionError": "Define the connection that the error names, then run again.",
    "MissingExtraError": "Install what the error names, where the step runs. Then run again.",
    "StoreNotFoundError": "Check the store's path, and that its disk is mounted, then run again.",
    "UnsupportedLayoutError": "This store can't be cleaned. Let its broker delete by its own rules.",
    "BrokerConfigError": "Correct the key in the broker's own file, or in the connection, then run again.",
    "StoreLayoutError": (
        "Compare the directory with a replica or a backup. Put back what is missing, then run again."
    ),
    "CorruptFileError": "Compare the file with a replica or a backup before anything else is done.",
    "BrokerPackageError": (
        "Report this to whoever maintains the broker's package. Don't run again before it is mended."
    ),
    "CorruptFrameError": Text(
        "Compare the segment with a replica, and put the good copy back. To archive the bytes as they are: ",
        Command("archive", "STORE --lake LAKE --accept-damage"),
        ".",
    ),
    "CorruptBodyError": "The message is archived as it was stored. Export it without --decompress.",
    "WrongHostError": (
        "Run the store's tasks on the host that has its disk: check the connection's host and queue."
    ),
    "DiskUnavailableError": (
        "Check the mount and its server. Nothing is known of the store until its disk answers."
    ),
    "StoreIdentityError": Text(
        "Check that the path is right. After a real move: ",
        Command("move"),
        ". For a copy with a life of its own: ",
        Command("stamp --new"),
        ".",
    ),
    "StoreBusyError": "Wait for the other process, or stop it. Beside a running broker, use mode live.",
    "TurnTakenError": "Run again once the run that has the store has ended, or wait longer: --wait.",
    "FileGoneError": "Run again, which lists the files again. Of what is LOST, find out who deleted it.",
    "ChangedUnderUsError": "Find out who writes to the store. Stop it, or use mode live, then run again.",
    "StoreCrashedError": "Start the broker and let it recover the store. Stop it cleanly, or use mode live.",
    "BrokerError": "Check the broker's log and its address, then run again.",
    "BrokerUnavailableError": (
        "Check that the broker runs and its address is reachable from here, then run again."
    ),
    "BrokerProtocolError": "Check that the address is a broker's and its release is supported.",
    "BrokerRefusedError": "Check the access key and its rights on the broker, then run again.",
    "NotOnBrokerError": "Check the name. The broker doesn't know it.",
    "StorageUnavailableError": (
        "Check that the disk or the service that the error names answers and has space, then run again."
    ),
    "LakeUnavailableError": (
        "Check that the lake is mounted or reachable, its credentials valid, and that it has space. "
        "Then run again: what is proven is kept."
    ),
    "LakeMissingError": Text(
        "Check the lake's path and mount first. Only where there never was one: ", Command("init-lake"), "."
    ),
    "LakeIdentityError": Text(
        "Don't write to this lake. Check whether it is a copy or an older catalog: ",
        Command("lake info"),
        ".",
    ),
    "LakeConflictError": Text(
        "Other bytes are archived under these offsets. Check which store is right; a person decides: ",
        Command("adopt"),
        ".",
    ),
    "JournalUnavailableError": "Check the journal's database, its disk and its credentials, then run again.",
    "JournalConflictError": "Another run recorded the same at the same time. Run again.",
    "CommitStateUnknownError": (
        "Wait until the lake's catalog answers, then run again: it looks at what was committed."
    ),
    "ProofError": (
        "The copy read back from the lake was not the segment, and was not committed. "
        "Check the lake's disk and memory for faults, then run again."
    ),
    "ReceiptError": Text(
        "Check the lake: ",
        Command("verify", "--lake LAKE STORE"),
        ". Restore its files from a backup if needed.",
    ),
    "QuarantineError": "Leave the quarantine as it is, and look at the files that the error names.",
    "GateRefusedError": Text(
        "Nothing was deleted that was not proven. Mend what the error names, then run again; or a person "
        "decides by ",
        Command("waive"),
        ".",
    ),
    "NotApprovedError": "Have another person approve the plan, then run the same again, or clear its task.",
    "LogsRefusedError": (
        "The other logs are done. Mend what is named of each refused log; the next run plans them again."
    ),
    "ShieldError": "Check the store's own directory .storage-engine and its disk, then run again.",
    "ReleasedTooMuchError": Text(
        "Stop the broker's own deletion first. See what is lost: ",
        Command("verify", "--lake LAKE STORE"),
        ".",
    ),
    "RunStateError": "Begin a new run, or name the run key that was meant.",
    "RestoreError": "Choose a new empty directory, and a range that the lake has.",
    "ExportError": "Choose a new file on a disk with space.",
    "SimulationTooLongError": "Ask for fewer days, or for a smaller ingest.",
    "AgentError": (
        "See that the agent runs beside the broker, with this release and the driver's token, then run again."
    ),
    "SparkJobError": "Read the job's log. Check the Spark connection and its memory, then run again.",
}
"""By the name of an error's class, what to do when a step ends with it."""

_REPLICA = "Compare the named files with a replica or a backup before anything else is deleted."
_QUEUES = "The log itself is whole. Find out how its broker rebuilds its queues and index, and let it do so."
_LAKE = Text(
    "Restore the lake's files from a backup or the second lake, then check: ",
    Command("verify", "--lake LAKE STORE"),
    ".",
)

CHECKS: Mapping[str, str] = {
    "ExpectSegmentNamesToBeOffsets": f"A file is not what its name says. {_REPLICA}",
    "ExpectSegmentsToBeBackToBack": f"The log has a hole or an overlap. {_REPLICA}",
    "ExpectSegmentsToHaveTheConfiguredSize": (
        "Check the setting of a segment's size: it has to be what the store was written with."
    ),
    "ExpectFramesToBeWhole": f"Bytes of the log are damaged. {_REPLICA}",
    "ExpectOffsetsToBeContiguous": f"A queue has a hole. {_QUEUES}",
    "ExpectFirstLiveEntryAtOrAboveMinOffset": f"A queue points at deleted segments. {_QUEUES}",
    "ExpectEntriesToPointIntoTheLog": f"A queue or index points behind the log's end. {_QUEUES}",
    "ExpectFirstLiveEntryToNameItsMessage": f"A queue points at another message. {_QUEUES}",
    "ExpectDependentsToFollowTheLog": (
        "Nothing is wrong with messages: the broker or the next run deletes these files."
    ),
    "ExpectMessagesToBeInTheirQueues": (
        f"Consumers may not see these messages, unless the topic was deleted and made again. {_QUEUES}"
    ),
    "ExpectCheckpointInRange": Text(
        "A broker trusts this value when it starts. Stop it, and run ", Command("doctor"), ", before it does."
    ),
    "ExpectReceiptsToFormAChain": Text(
        "Another program changed or removed receipts. Find out which. ", _LAKE
    ),
    "ExpectReceiptsToBeSound": Text(
        "A receipt proves nothing as it is, so nothing is deleted on it. ", _LAKE
    ),
    "ExpectRowsToBeWhereTheyWereProven": Text(
        "Another engine rewrote the lake's files. Prove them again: ",
        Command("verify", "--lake LAKE --level bytes --renew"),
        ".",
    ),
    "ExpectDataFilesToMatchReceipts": Text("A file of the lake is missing or was changed. ", _LAKE),
    "ExpectDataFilesToBeInTheTableOnce": (
        "Another engine changed the table. Go back to an earlier snapshot, or restore the lake's catalog."
    ),
    "ExpectRowsToCoverSegments": Text("Rows are missing from the lake's table. ", _LAKE),
    "ExpectRowsToBeUnique": (
        "Rows are in the lake's table twice. Find out who wrote them, and go back to an earlier snapshot."
    ),
    "ExpectCountsToMatchReceipts": Text("Rows are missing from the lake's table, or there twice. ", _LAKE),
    "ExpectArchivedSegmentsToFollowOn": Text(
        "Nothing is wrong where segments in between were never archived: ",
        Command("validate"),
        " says which.",
    ),
    "ExpectOffsetsToFollowOn": Text("A stream of the lake lacks messages, or has others. ", _LAKE),
    "ExpectOffsetsNotToBeginAgain": (
        "Nothing is wrong where the topic was deleted and made again. Find out whether it was."
    ),
    "ExpectStoreAndLakeToFormOneInterval": f"Store and lake together have a hole. {_REPLICA}",
    "ExpectNoLostRanges": Text(
        "Stop deleting. Look for the range in a replica, a backup or a second lake; a person may "
        "accept the loss: ",
        Command("accept-loss"),
        ".",
    ),
    "ExpectNoRangesLetGoWithoutArchive": "A person or the policy decided this. Check that it was meant.",
    "ExpectOverlapsToHoldTheSameBytes": Text(
        "Store and lake differ. Check which is right. After a crash recovery a person opens a new lineage: ",
        Command("adopt"),
        ".",
    ),
}
"""By the name of an expectation, what to do when rows break it."""

CHECK_OTHERWISE = Text("Compare store and lake: ", Command("verify", "--lake LAKE STORE"), ".")
"""Advice about an expectation that a user has added."""

REASONS: Mapping[str, tuple[str, str]] = {
    "expired": ("older than the store keeps messages", ""),
    "forced": ("space was needed, whatever its age", ""),
    "no-cause": ("no cause to delete held", ""),
    "active": ("the broker writes to it", ""),
    "not-expired": ("not old enough yet", ""),
    "behind-kept": ("behind a segment that stays; only a prefix is deleted", ""),
    "batch-full": ("the next run's turn; a run deletes so many at most", ""),
    "target-reached": ("enough was deleted to reach the level that was asked for", ""),
    "not-dispatched": (
        "the broker has not made its queue and index entries yet",
        "Wait for the broker to make it, then run again.",
    ),
    "store-crashed": (
        "the broker did not stop cleanly",
        "Start the broker and let it recover the store, then run again.",
    ),
    "lag-blocked": (
        "consumers still have to read it, and lag_policy is block",
        "Let these groups read on; or set lag_policy to warn: what they miss stays in the lake.",
    ),
    "pending-blocked": (
        "the broker still has to deliver from it, and pending_policy is block",
        "Wait until these messages are delivered; or set pending_policy to warn.",
    ),
    "minimum-retention": ("younger than the minimum retention", ""),
    "refused": ("its log was refused", "Mend what is named of the log; the next run plans it again."),
    "unknown": ("a fact that decides is unknown, so it stays", "Make the named fact known."),
    "unlimited": ("no bound of age or size applies to its log", ""),
    "size-not-reached": ("its log is smaller than its bound", ""),
    "future-timestamp": (
        "its newest record is of the future",
        "Wait until then, or set a bound of size for the log.",
    ),
    "not-replicated": (
        "not all replicas have it yet",
        "Look for the replica that doesn't follow.",
    ),
    "replicas-elsewhere": (
        "other nodes have replicas of its log, and may run",
        "Stop every node with a replica and say so (--replicas-stopped), or let the brokers delete.",
    ),
    "compacted": ("the broker's cleaner alone takes records from its log", ""),
    "not-archivable": ("it has expired, and may not be archived yet: the line says why", ""),
    "not-held": (
        "its log isn't held at this moment, or it has no leader: the line says which",
        "Run again when the line says; find out who sets its settings, or bring its leader back.",
    ),
    "remote-storage": ("its broker deletes it by what remote storage has", ""),
}
"""By the reason of a decision: the reason in words, and what to do where something is to be done."""

CAUSES: Mapping[str, str] = {
    "time-up": "Segments had expired",
    "space-full": "A disk was fuller than its level allows",
    "manual": "A person asked for it",
}
"""By the cause of a run, the cause in words."""


def error_advice(error: str, words: BrokerWords) -> str:
    """Return the remedy for an error.

    :param error: the name of its class.
    :param words: of the store's broker.
    """
    return words.errors.get(error) or ERRORS.get(error, OTHERWISE)


def check_advice(expectation: str, words: BrokerWords) -> str:
    """Return the remedy for an expectation that rows break.

    :param expectation: the name of its class.
    :param words: of the store's broker.
    """
    return words.checks.get(expectation) or CHECKS.get(expectation, CHECK_OTHERWISE)


def cause_words(cause: str, words: BrokerWords) -> str:
    """Return the cause of a run in words.

    :param words: of the store's broker.
    """
    return words.causes.get(cause) or CAUSES.get(cause, cause)


def reason_words(reason: str) -> str:
    """Return a decision's reason in words."""
    return REASONS.get(reason, (reason, ""))[0]


def reason_advice(reason: str) -> str:
    """Return the remedy for a reason to keep; "" where there is none."""
    return REASONS.get(reason, ("", ""))[1]
