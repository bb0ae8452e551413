"""Retries of requests to an object store that says "slow down" or doesn't answer."""

from __future__ import annotations

from pyarrow.fs import AwsStandardS3RetryStrategy


class LakeRetries(AwsStandardS3RetryStrategy):
    """Makes up to five attempts at a request. The pauses double: 7 s in all on average, 15 s at most.

    The property ``s3.retry-strategy-impl`` names this class. Such a class takes no arguments.
    """

    def __init__(self) -> None:
        super().__init__(max_attempts=5)
