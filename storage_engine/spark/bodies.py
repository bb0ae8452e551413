"""Decompression of message bodies in Spark SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from storage_engine.brokers import default_broker, find_broker
from storage_engine.exceptions import BadInputError
from storage_engine.model.broker.codec import Bodies

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_decompress_body(
    spark: SparkSession, name: str = "decompress_body", broker: str | None = None
) -> None:
    """Register ``decompress_body(body, sys_flag)`` in a session's SQL. For a damaged body it returns null.

    This package must be installed on the executors. A task has one part of its bodies in memory at a time.

    :param broker: broker whose bodies are read; None for the default broker.
    :raises BadInputError: the broker's producers don't compress bodies, or this PySpark is older than 4.1.
    """
    kind = find_broker(broker or default_broker())
    if (bodies := kind.codec.bodies) is None:
        raise BadInputError(f"expected a broker whose producers compress bodies, found {kind.words.title}")
    try:
        from pyspark.sql.functions import arrow_udf
    except ImportError as error:
        raise BadInputError(
            f"{name}: expected PySpark 4.1 or newer, which has arrow_udf, found {spark.version}. Nothing was "
            "changed. Read the lake with a newer Spark, or decompress bodies in Python or DuckDB.",
            page="query",
        ) from error
    from pyspark.sql.types import BinaryType

    spark.udf.register(name, arrow_udf(_decompress(bodies), BinaryType()))


# Spark reads the inner function's hints, and accepts no more exact ones.
def _decompress(bodies: Bodies) -> Callable[..., Any]:
    def parts(
        batches: Iterator[tuple[pa.Array, pa.Array]],  # type: ignore[type-arg]
    ) -> Iterator[pa.Array]:  # type: ignore[type-arg]
        for values, flags in batches:
            yield from bodies.decompressed_parts(values, flags)

    return parts
