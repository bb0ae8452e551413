"""Make everything ready that Airflow's processes expect to find: schema, login, the lake and its bucket.

Runs once before them, and may run again.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from pyarrow.fs import FileSelector, S3FileSystem


def prepare_database() -> None:
    subprocess.run(["airflow", "db", "migrate"], check=True)


def prepare_login() -> None:
    """Write the simple auth manager's password file, readable by its owner alone."""
    path = Path(os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"])
    path.touch(mode=0o600)
    path.write_text(json.dumps({"admin": os.environ["ADMIN_PASSWORD"]}) + "\n", encoding="utf-8")


def prepare_bucket() -> None:
    """Create the warehouse's bucket: SeaweedFS answers a write into a missing one with success."""
    lake = json.loads(os.environ["AIRFLOW__STORAGE_ENGINE__LAKE"])
    bucket = lake["warehouse"].removeprefix("s3://").partition("/")[0]
    store = S3FileSystem(
        endpoint_override=lake["s3.endpoint"],
        access_key=lake["s3.access-key-id"],
        secret_key=lake["s3.secret-access-key"],
        region=lake["s3.region"],
        allow_bucket_creation=True,
    )
    store.create_dir(bucket)
    store.get_file_info(FileSelector(bucket))


def prepare_lake() -> None:
    """Make the lake of the store's connection; one that is there stays as it is."""
    connection = os.environ["AIRFLOW__STORAGE_ENGINE__STORES"]
    subprocess.run(["storage-engine", "init-lake", "--conn-id", connection], check=True)


if __name__ == "__main__":
    prepare_database()
    prepare_login()
    prepare_bucket()
    prepare_lake()
