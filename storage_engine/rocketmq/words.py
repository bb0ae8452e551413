"""What people read of a store of RocketMQ, in its broker's own words."""

from __future__ import annotations

from typing import Final

from storage_engine.model.broker.broker_words import BrokerWords
from storage_engine.rocketmq.format.releases import SERVED_WITHOUT_QUEUES

_QUEUES = (
    "The log itself is whole. Stop the broker and move its whole directories consumequeue and index away: "
    "it builds them again from the log when it starts."
)

WORDS: Final = BrokerWords(
    address_options=("--broker", "--name-servers"),
    by_hand="It deletes outside deleteWhen, too",
    causes={"time-up": "It was an hour that deleteWhen names"},
    errors={
        "BrokerConfigError": "Correct the key in broker.conf, or in the connection, then run again.",
        "CorruptFileError": (
            "Compare the file with a replica. A stopped broker's whole directories consumequeue and index "
            "can be moved away: it builds them again from the log when it starts."
        ),
    },
    checks={
        "ExpectSegmentsToHaveTheConfiguredSize": (
            "Check mappedFileSizeCommitLog in broker.conf: it has to be what the store was written with."
        ),
        "ExpectOffsetsToBeContiguous": f"A consume queue has a hole. {_QUEUES}",
        "ExpectFirstLiveEntryAtOrAboveMinOffset": f"A consume queue points at what is gone. {_QUEUES}",
        "ExpectEntriesToPointIntoTheLog": f"A consume queue or index points behind the log's end. {_QUEUES}",
        "ExpectFirstLiveEntryToNameItsMessage": f"A consume queue points at another message. {_QUEUES}",
        "ExpectMessagesToBeInTheirQueues": (
            f"Consumers may not see these messages, unless the topic was deleted and made again. {_QUEUES}"
        ),
    },
    dependents="Consume queues and index",
    files_only=(
        "Put the old store's config directory beside them before a broker starts: without it no topic is "
        f"served, and what was delayed is delivered again. {SERVED_WITHOUT_QUEUES} Restored without "
        "--files-only, each of them serves all."
    ),
)
