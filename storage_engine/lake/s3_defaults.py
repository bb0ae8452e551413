"""Time limits of a lake's requests to an object store."""

from __future__ import annotations

S3_DEFAULTS = {
    "s3.connect-timeout": "10",
    # On Linux this limits not the whole request, but the seconds in which nothing is sent or received.
    "s3.request-timeout": "30",
    "s3.retry-strategy-impl": "storage_engine.lake.s3_retries.LakeRetries",
}
"""Time limits, so that a request to a store that stalls or is gone ends with an error."""
