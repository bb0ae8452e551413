"""The link from a task to the report of its run. :mod:`storage_engine.plugins` serves the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey

URL_PREFIX = "/storage-engine"
REPORT_PATH = "/report"
KEEP_PATH = "/keep"
CONSOLE_PATH = "/console"


class StorageEngineReportLink(BaseOperatorLink):
    """Link to the report of a task's run. It exists once the task has run, even if the task failed."""

    @property
    def name(self) -> str:
        return "Report"

    @property
    def xcom_key(self) -> str:
        return "storage_engine_report_link"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        # Airflow may be served below a path.
        base = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
        query = {"store": operator.storage_engine_conn_id, "dag_id": ti_key.dag_id, "run_id": ti_key.run_id}
        return f"{base}{URL_PREFIX}{REPORT_PATH}?{urlencode(query)}"
