"""Rows of archived segments, checked. Run by: spark-submit validate_rows.py REQUEST.json RESULT.json"""

from __future__ import annotations

import sys

from storage_engine.spark.job_io import run_job
from storage_engine.spark.validate_rows import ValidateRowsRequest, validate_rows

if __name__ == "__main__":
    sys.exit(run_job(sys.argv[1:], "storage-engine validate rows", ValidateRowsRequest, validate_rows))
