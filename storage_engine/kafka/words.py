"""What people read of a node of Kafka, in its broker's own words."""

from __future__ import annotations

from typing import Final

from storage_engine.model.broker.broker_words import BrokerWords

WORDS: Final = BrokerWords(
    address_options=("--broker", "--client-config"),
    errors={
        "BrokerConfigError": "Correct the key in server.properties, then run again.",
        "CorruptFileError": (
            "Compare the file with that of a replica. A stopped broker makes missing indexes of a log again "
            "when it starts, and nothing else of it."
        ),
    },
    dependents="Indexes",
    queue="partition",
)
