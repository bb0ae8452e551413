"""Consumer lag of a store. Run by: spark-submit consumer_lag.py REQUEST.json RESULT.json"""

from __future__ import annotations

import sys

from storage_engine.spark.consumer_lag import ConsumerLagRequest, consumer_lag
from storage_engine.spark.job_io import run_job

if __name__ == "__main__":
    sys.exit(run_job(sys.argv[1:], "storage-engine consumer lag", ConsumerLagRequest, consumer_lag))
