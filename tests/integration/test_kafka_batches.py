"""Mutated batches: the codec reads those that Kafka's own classes read, as they do, and no others."""

from __future__ import annotations

import pytest

from tests.integration.kafka_batches import compare, kafka_reader
from tests.kafka.batch_mutations import CODECS
from tests.rounds import rounds

pytestmark = [pytest.mark.integration, pytest.mark.timeout(14_400)]

BATCHES = rounds("STORAGE_ENGINE_KAFKA_BATCHES", 300, 100_000)
"""Of each codec."""


def test_mutated_batches_are_read_as_kafka_reads_them() -> None:
    with kafka_reader() as reader:
        for codec, name in enumerate(CODECS):
            outcome = compare(reader, codec, BATCHES, seed=20_261_128)
            assert min(outcome.read, outcome.refused) > BATCHES // 10, name
            for batch, theirs, ours in outcome.different[:3]:
                raise AssertionError(f"{name}: {batch.hex()}: Kafka says {theirs}, the codec {ours}")
