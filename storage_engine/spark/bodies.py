"""Reading compressed bodies in Spark SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_engine.rocketmq.body import decompress_bodies_or_null

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_decompress_body(spark: SparkSession, name: str = "decompress_body") -> None:
    """Make ``decompress_body(body, sys_flag)`` known to a session's SQL; a body that is damaged becomes null.

    This package must be installed on the executors.

    :param name: of the function.
    """
    from pyspark.sql.functions import arrow_udf
    from pyspark.sql.types import BinaryType

    spark.udf.register(name, arrow_udf(decompress_bodies_or_null, BinaryType()))
