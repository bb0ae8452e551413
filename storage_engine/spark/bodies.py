"""Reading compressed bodies in Spark SQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from storage_engine.rocketmq.body import decompressed_parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_decompress_body(spark: SparkSession, name: str = "decompress_body") -> None:
    """Make ``decompress_body(body, sys_flag)`` known to a session's SQL; a body that is damaged becomes null.

    This package must be installed on the executors. A task has one part of its bodies in memory at a time.

    :param name: of the function.
    """
    from pyspark.sql.functions import ArrowUDFType, arrow_udf
    from pyspark.sql.types import BinaryType

    spark.udf.register(name, arrow_udf(_decompress, BinaryType(), ArrowUDFType.SCALAR_ITER))


def _decompress(batches: Iterator[tuple[pa.Array[Any], pa.Array[Any]]]) -> Iterator[pa.Array[Any]]:
    for bodies, sys_flags in batches:
        yield from decompressed_parts(bodies, sys_flags)
