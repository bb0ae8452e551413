"""Retries of requests to an object store that says "slow down" or doesn't answer."""

from __future__ import annotations

from pyarrow.fs import AwsStandardS3RetryStrategy


class LakeRetries(AwsStandardS3RetryStrategy):
    """Five attempts a request, with pauses that double: 7 s on average, 15 s at most, before it fails.

    Named by the property ``s3.retry-strategy-impl``, which takes a class without arguments.
    """

    def __init__(self) -> None:
        super().__init__(max_attempts=5)
