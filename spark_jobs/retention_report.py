"""Usage of a store by topic, producer, hour and size.

Run by: spark-submit retention_report.py REQUEST.json RESULT.json
"""

from __future__ import annotations

import sys

from storage_engine.spark.job_io import run_job
from storage_engine.spark.retention_report import RetentionReportRequest, retention_report

if __name__ == "__main__":
    sys.exit(
        run_job(sys.argv[1:], "storage-engine retention report", RetentionReportRequest, retention_report)
    )
