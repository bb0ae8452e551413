"""Reading compressed bodies in Spark SQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from storage_engine.rocketmq.body import decompressed_parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_decompress_body(spark: SparkSession, name: str = "decompress_body") -> None:
    """Make ``decompress_body(body, sys_flag)`` known to a session's SQL; a body that is damaged becomes null.

    This package must be installed on the executors. A task has one part of its bodies in memory at a time.

    :param name: of the function.
    """
    from pyspark.sql.functions import arrow_udf
    from pyspark.sql.types import BinaryType

    spark.udf.register(name, arrow_udf(_decompress, BinaryType()))


# Spark looks at these hints, and can't have them more exact.
def _decompress(
    batches: Iterator[tuple[pa.Array, pa.Array]],  # type: ignore[type-arg]
) -> Iterator[pa.Array]:  # type: ignore[type-arg]
    for bodies, sys_flags in batches:
        yield from decompressed_parts(bodies, sys_flags)
