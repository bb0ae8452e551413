"""Operators for Spark jobs that only read lakes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowSkipException

from storage_engine import task_log
from storage_engine.core.clock import DAY_MS
from storage_engine.core.jsonable import from_jsonable
from storage_engine.exceptions import BadInputError
from storage_engine.operators.base import run_key
from storage_engine.operators.spark_job import StoreSparkOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from storage_engine.retention.report.report import OffsetSpan


class _LakeJobOperator(StoreSparkOperator):
    def check_spark(self) -> None:
        """Skip the task if no job can be submitted.

        :raises AirflowSkipException: the store's connection names no Spark connection.
        """
        if self.store_hook.spark_conn_id is None:
            raise AirflowSkipException(
                f"{self.storage_engine_conn_id}: this job runs only in Spark, but the connection names no "
                "Spark connection (spark_conn_id)"
            )


class StorageEngineValidateRowsOperator(_LakeJobOperator):
    """Checks in Spark that the lake has each row of a store's archived segments exactly once.

    The segments' receipts say which rows these are.

    If asset events of archived segments started the run, it checks these segments and their neighbours. The
    task is skipped if the store's connection names no Spark connection.

    :param spans: offsets to check, as JSON text (templated): a list of objects with ``log``, ``first_offset``
        and ``end_offset``. An empty list means all segments in the store's lakes.
    """

    template_fields: Sequence[str] = (*StoreSparkOperator.template_fields, "spans")
    entry_point = "validate_rows.py"

    def __init__(self, *, spans: str = "[]", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.spans = spans

    def do_step(self, context: Context) -> dict[str, Any]:
        from storage_engine.retention.store.context import opened
        from storage_engine.spark.validate_rows import ValidateRowsResult, validate_rows_of

        self.check_spark()
        with opened(self.store) as store:
            submit = partial(self.submit, context, result_kind=ValidateRowsResult)
            result = validate_rows_of(store, run_key(context), submit, self._spans(context))
        self.tell_validation(result, "Validation of rows")
        return {"overall": result.overall.value, "checks": len(result.checks), "notes": list(result.notes)}

    def _spans(self, context: Context) -> tuple[OffsetSpan, ...]:
        from storage_engine.retention.report.report import OffsetSpan

        events = [event for group in context["triggering_asset_events"].values() for event in group]
        if any(event.extra.get("more_logs") for event in events):
            return ()
        spans: Iterable[Any] = [span for event in events for span in event.extra.get("spans", ())]
        try:
            return tuple(from_jsonable(OffsetSpan, span, "spans") for span in spans or json.loads(self.spans))
        except ValueError:
            raise BadInputError(f"spans: expected a JSON list, found {self.spans!r}.") from None


class StorageEngineRetentionReportOperator(_LakeJobOperator):
    """Counts messages in a store's lakes by topic, producer host, hour and size, and advises on retention.

    The task is skipped if the store's connection names no Spark connection.

    :param first_day: first counted day in UTC, as in 2026-11-24 (templated), or "" for the oldest day.
    :param last_day: last counted day, or "" for the newest day.
    """

    template_fields: Sequence[str] = (*StoreSparkOperator.template_fields, "first_day", "last_day")
    ui_color = "#f5efd9"
    entry_point = "retention_report.py"

    def __init__(self, *, first_day: str = "", last_day: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.first_day, self.last_day = first_day, last_day

    def do_step(self, context: Context) -> dict[str, Any]:
        from storage_engine.model.report.usage import RetentionReport
        from storage_engine.retention.store.context import opened
        from storage_engine.spark.retention_report import retention_report_of

        self.check_spark()
        first_ms = _day_ms("first_day", self.first_day)
        last_ms = _day_ms("last_day", self.last_day)
        until_ms = None if last_ms is None else last_ms + DAY_MS
        with opened(self.store) as store:
            submit = partial(self.submit, context, result_kind=RetentionReport)
            report = retention_report_of(store, run_key(context), submit, first_ms, until_ms)
        self.say(task_log.usage_lines(report))
        return {"messages": report.messages, "size_bytes": report.size_bytes, "usage": report.usage_path}


def _day_ms(name: str, day: str) -> int | None:
    """Return the beginning of a day in milliseconds since the epoch; None if no day is named.

    :raises BadInputError: the text isn't a day.
    """
    if not day:
        return None
    try:
        return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1000)
    except ValueError:
        raise BadInputError(
            f"{name}: expected a day such as 2026-11-24, found {day!r}. Nothing was changed."
        ) from None
