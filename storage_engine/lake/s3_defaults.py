"""Time limits of a lake's requests to an object store."""

from __future__ import annotations

S3_DEFAULTS = {
    "s3.connect-timeout": "10",
    # On Linux not of the whole request, but of silence: nothing came or went for so many seconds.
    "s3.request-timeout": "30",
    "s3.retry-strategy-impl": "storage_engine.lake.s3_retries.LakeRetries",
}
"""Time limits, so that a store that stalls or is gone ends in an error, not in a task that never ends."""
