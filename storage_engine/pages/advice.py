"""Advice for the findings of a report, in words: errors, checks, and reasons to keep a segment. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from storage_engine.commands import Command, Text
from storage_engine.model.broker.broker_words import BrokerWords

OTHERWISE = "Read the error and correct its cause, then run again. Finished work is not repeated."
"""Advice about an error that the table doesn't list."""

ERRORS: Mapping[str, str] = {
    "StorageEngineError": OTHERWISE,
    "BadInputError": "Correct what the error names, then run again.",
    "NoSuchConnectionError": "Define the connection that the error names, then run again.",
    "MissingExtraError": "Install the missing package on the host where the step runs, then run again.",
    "StoreNotFoundError": "Check the store's path, and that its disk is mounted, then run again.",
    "UnsupportedLayoutError": "This store can't be cleaned. Let its broker delete by its own rules.",
    "BrokerConfigError": "Correct the key in the broker's own file, or in the connection, then run again.",
    "StoreLayoutError": "Compare the directory with a replica. Restore missing files, then run again.",
    "CorruptFileError": "Compare the file with a replica or a backup before anything else is done.",
    "BrokerPackageError": (
        "Report this to the maintainers of the broker's package. Don't run again before the package is "
        "repaired."
    ),
    "CorruptFrameError": Text(
        "Compare the segment with a replica, and put the good copy back. To archive the damaged bytes as "
        "they are: ",
        Command("archive", "STORE --lake LAKE --accept-damage"),
        ".",
    ),
    "CorruptBodyError": "The message is archived as it was stored. Export it without --decompress.",
    "WrongHostError": "Run the tasks on the store's host. Check the host and queue of the connection.",
    "DiskUnavailableError": (
        "Check the mount and its server. Until the server answers, the store's state is unknown."
    ),
    "StoreIdentityError": Text(
        "Check that the path is right. After a real move: ",
        Command("move"),
        ". For a copy that is used as a separate store: ",
        Command("stamp --new"),
        ".",
    ),
    "StoreBusyError": "Wait for the other process, or stop it. Beside a running broker, use mode live.",
    "TurnTakenError": "Another run is using the store. Run again when it has ended, or wait longer: --wait.",
    "FileGoneError": "Run again. The run lists the files again. If a range is LOST, find out who deleted it.",
    "ChangedUnderUsError": "Stop the program that writes to the store, or use mode live. Then run again.",
    "StoreCrashedError": "Start the broker to recover the store. Then stop it cleanly, or use mode live.",
    "BrokerError": "Check the broker's log and its address, then run again.",
    "BrokerUnavailableError": "Check that the broker runs and this host reaches its address. Then run again.",
    "BrokerProtocolError": "Check that the address is a broker's, and that its release is supported.",
    "BrokerRefusedError": "Check the access key and its rights on the broker, then run again.",
    "NotOnBrokerError": "Check the name. The broker doesn't know it.",
    "StorageUnavailableError": "Check that the named disk or service answers and has space. Then run again.",
    "LakeUnavailableError": (
        "Check that the lake is mounted or reachable, its credentials are valid, and it has space. Then run "
        "again: proven segments are kept."
    ),
    "LakeMissingError": Text(
        "Check the lake's path and mount first. Only if the lake never existed: ", Command("init-lake"), "."
    ),
    "LakeIdentityError": Text(
        "Don't write to this lake. Check whether it is a copy or an older catalog: ",
        Command("lake info"),
        ".",
    ),
    "LakeConflictError": Text(
        "Other bytes are archived under these offsets. Check which store is right. A person must decide: ",
        Command("adopt"),
        ".",
    ),
    "JournalUnavailableError": "Check the journal's database, its disk and its credentials, then run again.",
    "JournalConflictError": "Another run wrote the same record at the same time. Run again.",
    "CommitStateUnknownError": (
        "Wait until the lake's catalog answers, then run again. That run checks the commit."
    ),
    "ProofError": (
        "The copy that was read back from the lake differs from the segment. It was not committed. "
        "Check the lake's disk and memory for faults, then run again."
    ),
    "ReceiptError": Text(
        "Check the lake: ",
        Command("verify", "--lake LAKE STORE"),
        ". Restore its files from a backup if needed.",
    ),
    "QuarantineError": "Leave the quarantine as it is, and look at the files that the error names.",
    "GateRefusedError": Text(
        "Nothing without a proof was deleted. Correct the cause that the error names, then run again. A "
        "person can also waive the proof: ",
        Command("waive"),
        ".",
    ),
    "NotApprovedError": (
        "Have another person approve the plan. Then run the same command again, or clear the task."
    ),
    "LogsRefusedError": (
        "The other logs are done. For each refused log, correct the named cause. The next run plans these "
        "logs again."
    ),
    "ShieldError": "Check the store's own directory .storage-engine and its disk, then run again.",
    "ReleasedTooMuchError": Text(
        "Stop the broker's own deletion first. See what is lost: ",
        Command("verify", "--lake LAKE STORE"),
        ".",
    ),
    "RunStateError": "Begin a new run, or name the right run key.",
    "RestoreError": "Choose a new empty directory, and a range of offsets that is in the lake.",
    "ExportError": "Choose a new file on a disk with space.",
    "SimulationTooLongError": "Ask for fewer days, or for a smaller ingest.",
    "AgentError": (
        "Check that the agent runs on the broker's host, with this release and the driver's token, then run "
        "again."
    ),
    "SparkJobError": "Read the job's log. Check the Spark connection and its memory, then run again.",
}
"""Remedy for a step that ends with an error, by the name of the error's class."""

_REPLICA = "Compare the named files with a replica or a backup before anything else is deleted."
_QUEUES = "The log itself is whole. Find out how the broker rebuilds its queues and index. Then rebuild them."
_LAKE = Text(
    "Restore the lake's files from a backup or the second lake, then check: ",
    Command("verify", "--lake LAKE STORE"),
    ".",
)

CHECKS: Mapping[str, str] = {
    "ExpectSegmentNamesToBeOffsets": f"A file's first offset is not the one in its name. {_REPLICA}",
    "ExpectSegmentsToBeBackToBack": f"The log has a hole or an overlap. {_REPLICA}",
    "ExpectSegmentsToHaveTheConfiguredSize": "Set the segment size with which the store was written.",
    "ExpectFramesToBeWhole": f"Bytes of the log are damaged. {_REPLICA}",
    "ExpectOffsetsToBeContiguous": f"A queue has a hole. {_QUEUES}",
    "ExpectFirstLiveEntryAtOrAboveMinOffset": f"A queue points at deleted segments. {_QUEUES}",
    "ExpectEntriesToPointIntoTheLog": f"A queue or index points to offsets after the log's end. {_QUEUES}",
    "ExpectFirstLiveEntryToNameItsMessage": f"A queue points at another message. {_QUEUES}",
    "ExpectDependentsToFollowTheLog": "The messages are in order. The broker or a run deletes these files.",
    "ExpectMessagesToBeInTheirQueues": (
        "Consumers don't find these messages. This is no fault if the topic was deleted and made again. "
        f"{_QUEUES}"
    ),
    "ExpectCheckpointInRange": Text(
        "A broker trusts this value when it starts. Stop the broker, and before the next start run ",
        Command("doctor"),
        ".",
    ),
    "ExpectReceiptsToFormAChain": Text(
        "Another program changed or removed receipts. Find out which. ", _LAKE
    ),
    "ExpectReceiptsToBeSound": Text(
        "A receipt is not valid, so no segment is deleted because of it. ", _LAKE
    ),
    "ExpectRowsToBeWhereTheyWereProven": Text(
        "Another engine rewrote the lake's files. Prove the rows again: ",
        Command("verify", "--lake LAKE --level bytes --renew"),
        ".",
    ),
    "ExpectDataFilesToMatchReceipts": Text("A file of the lake is missing or was changed. ", _LAKE),
    "ExpectDataFilesToBeInTheTableOnce": "Another engine changed the table. Restore a snapshot or catalog.",
    "ExpectRowsToCoverSegments": Text("Rows are missing from the lake's table. ", _LAKE),
    "ExpectRowsToBeUnique": (
        "Rows are in the lake's table twice. Find out which program wrote them, and go back to an earlier "
        "snapshot."
    ),
    "ExpectCountsToMatchReceipts": Text(
        "Rows are missing from the lake's table, or are in it twice. ", _LAKE
    ),
    "ExpectArchivedSegmentsToFollowOn": Text(
        "A gap is no fault if the segments in it were never archived. ",
        Command("validate"),
        " names the segments at the gap.",
    ),
    "ExpectOffsetsToFollowOn": Text("A stream in the lake has missing or wrong messages. ", _LAKE),
    "ExpectOffsetsNotToBeginAgain": (
        "Check whether the topic was deleted and made again. If so, these rows are no fault."
    ),
    "ExpectStoreAndLakeToFormOneInterval": f"Store and lake together have a hole. {_REPLICA}",
    "ExpectNoLostRanges": Text(
        "Stop deleting. Look for the range in a replica, a backup or a second lake. A person may accept the "
        "loss: ",
        Command("accept-loss"),
        ".",
    ),
    "ExpectNoRangesLetGoWithoutArchive": (
        "These bytes were deleted without a copy, as a person, the policy or the broker decided. Check that "
        "this was intended."
    ),
    "ExpectOverlapsToHoldTheSameBytes": Text(
        "Store and lake differ. Check which is right. After a crash recovery a person opens a new lineage: ",
        Command("adopt"),
        ".",
    ),
}
"""Remedy for rows that break an expectation, by the name of the expectation."""

CHECK_OTHERWISE = Text("Compare store and lake: ", Command("verify", "--lake LAKE STORE"), ".")
"""Advice about an expectation that a user has added."""

REASONS: Mapping[str, tuple[str, str]] = {
    "expired": ("older than the store keeps messages", ""),
    "forced": ("space was needed, so its age did not matter", ""),
    "no-cause": ("no cause for a deletion is present", ""),
    "active": ("the broker writes to it", ""),
    "not-expired": ("not old enough yet", ""),
    "behind-kept": ("a segment before it stays, and only the log's beginning can be deleted", ""),
    "batch-full": ("left for the next run: this run has reached its highest number of segments", ""),
    "target-reached": ("the requested disk level is reached without it", ""),
    "not-dispatched": (
        "the broker has not made its queue and index entries yet",
        "Wait until the broker has made these entries, then run again.",
    ),
    "store-crashed": (
        "the broker did not stop cleanly",
        "Start the broker, so that it recovers the store. Then run again.",
    ),
    "lag-blocked": (
        "consumers still have to read it, and lag_policy is block",
        "Wait until these groups have read the messages. Or set lag_policy to warn: missed messages stay in "
        "the lake.",
    ),
    "pending-blocked": (
        "the broker still has to deliver messages from it, and pending_policy is block",
        "Wait until these messages are delivered; or set pending_policy to warn.",
    ),
    "minimum-retention": ("younger than the minimum retention", ""),
    "refused": (
        "its log was refused",
        "Correct the cause that is named for the log. The next run plans the log again.",
    ),
    "unknown": (
        "a fact that is needed for the decision is unknown, so it stays",
        "Find out why the named fact is unknown, and correct that.",
    ),
    "unlimited": ("no limit of age or size applies to its log", ""),
    "size-not-reached": ("its log is smaller than its size limit", ""),
    "future-timestamp": (
        "its newest record has a time in the future",
        "Wait until that time, or set a size limit for the log.",
    ),
    "not-replicated": ("not all replicas have it yet", "Find the replica that is behind."),
    "replicas-elsewhere": (
        "other nodes have replicas of its log, and may be running",
        "Stop every node with a replica and confirm it (--replicas-stopped). Or leave the deletion to the "
        "brokers.",
    ),
    "compacted": ("only the broker's cleaner removes records from its log", ""),
    "not-archivable": ("it has expired, but can't be archived yet; the line says why", ""),
    "not-held": (
        "its log isn't on hold at this moment, or has no leader; the line names the reason",
        "Run again at the time that the line names. Find out who changes the log's settings, or bring its "
        "leader back.",
    ),
    "remote-storage": ("its log uses remote storage, so only its broker may delete it", ""),
}
"""A reason in words and the remedy, by the reason of a decision. The remedy is "" if none is needed."""

CAUSES: Mapping[str, str] = {
    "time-up": "Segments had expired",
    "space-full": "A disk was above its level for deletion",
    "manual": "A person asked for it",
}
"""A cause in words, by the cause of a run."""


def error_advice(error: str, words: BrokerWords) -> str:
    """Return the remedy for an error, by the name of the error's class."""
    return words.errors.get(error) or ERRORS.get(error, OTHERWISE)


def check_advice(expectation: str, words: BrokerWords) -> str:
    """Return the remedy for rows that break an expectation, by the name of the expectation's class."""
    return words.checks.get(expectation) or CHECKS.get(expectation, CHECK_OTHERWISE)


def cause_words(cause: str, words: BrokerWords) -> str:
    return words.causes.get(cause) or CAUSES.get(cause, cause)


def reason_words(reason: str) -> str:
    return REASONS.get(reason, (reason, ""))[0]


def reason_advice(reason: str) -> str:
    """Return the remedy for a reason to keep a segment; "" if no remedy is needed."""
    return REASONS.get(reason, ("", ""))[1]
