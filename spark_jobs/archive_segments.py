"""spark-submit entry point: archive segments into the lake, with proof.

Arguments: REQUEST.json (storage_engine.spark.archive_segments.ArchiveRequest) and RESULT.json.
"""

import sys

from storage_engine.spark.archive_segments import ArchiveRequest, archive_request
from storage_engine.spark.job_io import run_job

if __name__ == "__main__":
    sys.exit(run_job(sys.argv[1:], "storage-engine archive", ArchiveRequest, archive_request))
