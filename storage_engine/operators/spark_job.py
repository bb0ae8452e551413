"""Runs this package's Spark jobs through the apache-spark provider's SparkSubmitOperator."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.exceptions import AirflowProviderDeprecationWarning
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import (
    XCOM_RETURN_KEY,
    AirflowException,
    AirflowSkipException,
    SkipMixin,
)

from storage_engine import cycle, task_log
from storage_engine.assets import lake_messages, segments_archived
from storage_engine.brokers import find_broker
from storage_engine.commands import Text
from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.wording import count_text
from storage_engine.exceptions import BadInputError, LakeUnavailableError
from storage_engine.hooks.configured_stores import DEFAULT_LAKE
from storage_engine.hooks.storage_engine import airflow_home
from storage_engine.journal.records import Step
from storage_engine.lake.archive.threads import threads_for
from storage_engine.model.settings.policy import WorkPlace, archive_place
from storage_engine.operators.base import StoreOperator
from storage_engine.operators.lineage import Lineage, archive_lineage
from storage_engine.resources import project_path

if TYPE_CHECKING:
    from airflow.sdk import Context

    from storage_engine.lake.file.jobs import SegmentJob
    from storage_engine.model.proof.receipt import Receipt
    from storage_engine.retention.steps import ArchiveResult as ArchiveDone
    from storage_engine.retention.steps import LagQuestion
    from storage_engine.spark.consumer_lag import ConsumerLagResult

T = TypeVar("T")


class StoreSparkOperator(StoreOperator, SparkSubmitOperator):
    """Submits a Spark job of this package for a store. The request is in one file, the result in another.

    The store's connection names the Spark connection. If it names none, or if the work is less than its
    ``spark_from``, the task does the work itself. If Spark can't start, the task fails.

    The files are in the store's report directory. They are removed when the job has ended. If this process is
    killed, the next job removes them at its start.

    The driver gets credentials in its environment, not in files. So it runs in the deploy mode client.
    """

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "storage_engine_conn_id")
    ui_color = "#f7e3d4"

    entry_point: str
    """File name of the job in ``spark_jobs``."""

    def submit(self, context: Context, request: Any, result_kind: type[T]) -> T:
        """Run the job and wait for it.

        :raises StorageEngineError: the job failed, or it left no result.
        """
        from storage_engine.retention.store.managed_store import job_directory
        from storage_engine.spark.job_io import read_result, write_request
        from storage_engine.spark.session import environment

        with job_directory(Path(self.store.report_dir)) as directory:
            request_file, result_file = directory / "request.json", directory / "result.json"
            credentials = write_request(request_file, request)
            self._prepare(request_file, result_file)
            try:
                # Not as env_vars, which Kubernetes and YARN put on a command line.
                with environment(credentials):
                    SparkSubmitOperator.execute(self, context)
            except AirflowException:
                # The job's own error says more than that spark-submit failed.
                read_result(result_file, request_file, result_kind)
                raise
            return read_result(result_file, request_file, result_kind)

    def _prepare(self, request: Path, result: Path) -> None:
        from storage_engine.spark.session import (
            check_driver,
            driver_python,
            named_spark,
            spark_environment,
            spark_settings,
        )

        conn_id, spark = self.store_hook.spark_conn_id, self.store_hook.spark
        if conn_id is None or spark is None:
            raise BadInputError(
                f"connection {self.storage_engine_conn_id}: expected a Spark connection in the field "
                "spark_conn_id, found none, so no job can be submitted. Name one."
            )
        self._conn_id = conn_id
        master, fields = spark.master, self.store_hook.spark_fields
        variables = self.env_vars or {}
        settings = {name: str(value) for name, value in fields.items() if name.startswith("spark.")}
        self.conf = {**spark_settings(master), **settings, **(self.conf or {})}
        installation = named_spark(fields.get("spark_home") or variables.get("SPARK_HOME"))
        python = driver_python(self.conf, variables)
        check_driver(python)
        # The named Spark's own spark-submit is used, whatever PATH the worker has.
        path = os.pathsep.join([str(installation.home / "bin"), os.environ.get("PATH", os.defpath)])
        self.env_vars = {"PATH": path, **spark_environment(master, installation, python), **variables}
        self.name = f"storage-engine-{Path(self.entry_point).stem}"
        # If init wrote a copy, a person may have changed it.
        copy = airflow_home() / "spark_jobs" / self.entry_point
        self.application = str(copy if copy.is_file() else project_path(f"spark_jobs/{self.entry_point}"))
        self.application_args = [str(request), str(result)]
        # The provider keeps the hook of a task's first job, with that job's arguments.
        self._hook = None
        self._check_disks(master)

    def _check_disks(self, master: str) -> None:
        """:raises BadInputError: Spark's temporary files would be on a disk of the running broker."""
        from storage_engine.retention.store.brokers import open_store
        from storage_engine.retention.store.context import check_disks
        from storage_engine.spark.session import local_directories

        if self.store.may_share_disks:
            return
        directories = local_directories(master, self.conf or {}, {**os.environ, **(self.env_vars or {})})
        with closing(open_store(self.store)) as broker:
            check_disks(self.store, broker.data_paths, directories)


class StorageEngineConsumerLagOperator(StoreSparkOperator, SkipMixin):
    """Computes the lag of every consumer group, and which groups would lose unread messages by the plan.

    The whole table is kept with the run's reports, as Parquet. The groups at risk are written to the journal,
    and the release reads them there under ``lag_policy`` block.

    In a dry run, the tasks directly downstream are skipped: nothing is archived or deleted.
    """

    entry_point = "consumer_lag.py"

    def __init__(self, *, spark_above_positions: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if spark_above_positions is not None:
            text = "spark_above_positions has no effect any more. Set spark_from in the store's connection."
            warnings.warn(text, AirflowProviderDeprecationWarning, stacklevel=2)

    def do_step(self, context: Context) -> dict[str, Any]:
        from storage_engine.retention.steps import is_dry_run
        from storage_engine.retention.store.context import managed_of

        with self.cleanup(context, measure_lag=partial(self._measure, context)) as cleanup:
            lag = cycle.consumer_lag(cleanup)
            dry_run = is_dry_run(cleanup.store, cleanup.run_key)
            unit = find_broker(managed_of(cleanup.store).broker).words.queue
        self.say(task_log.lag_lines(lag, unit, dry_run=dry_run))
        self.warn(*lag.source.notices, task_log.at_risk_text(lag, unit))
        summary: dict[str, Any] = to_jsonable(lag)
        if dry_run:
            # Skipping ends the task here, before its result would be pushed.
            context["ti"].xcom_push(key=XCOM_RETURN_KEY, value=summary)
            self.skip(context["ti"], self.get_direct_relatives(upstream=False))
        return summary

    def _measure(self, context: Context, cleanup: cycle.Cleanup, question: LagQuestion) -> ConsumerLagResult:
        from storage_engine.retention.store.managed_store import LAG_TABLE, run_directory
        from storage_engine.spark.consumer_lag import ConsumerLagRequest, ConsumerLagResult, lag_without_spark

        table_path = str(run_directory(self.store, cleanup.run_key) / LAG_TABLE)
        request = ConsumerLagRequest.of(self.store, table_path, question.segments, question.decided_at_ms)
        spark = self.store_hook.spark
        result = lag_without_spark(request, spark)
        if result is None:
            assert spark is not None
            result = replace(self.submit(context, request, ConsumerLagResult), ran=spark.text)
        self.say([f"Consumer lag was measured {result.ran}"])
        return result


class _ArchivingOperator(StoreSparkOperator):
    """Copies, proves and commits segments.

    The work runs in the task, or in Spark if the connection names one and the work reaches ``spark_from``.

    If the task has an asset alias as outlet, it sends events on the archived segments and on the lake's table
    (:mod:`storage_engine.assets`).

    :param lake: the name of the store's lake in the asset of its table.
    """

    entry_point = "archive_segments.py"
    step = Step.ARCHIVE

    def __init__(self, *, lake: str = DEFAULT_LAKE, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lake = lake

    def lineage_so_far(self, cleanup: cycle.Cleanup) -> Lineage:
        from storage_engine.retention.report.report import archived_receipts

        by_lake = archived_receipts(cleanup.store, cleanup.run_key, self.step)
        return archive_lineage(self.store, [row for rows in by_lake.values() for row in rows], *by_lake)

    def _emit(self, context: Context, cleanup: cycle.Cleanup) -> None:
        from storage_engine.retention.report.report import archived_counts

        if not self.tells:
            return
        for counts in archived_counts(cleanup.store, cleanup.run_key, self.step):
            self.emit(context, segments_archived(self.storage_engine_conn_id), counts)
            second = counts.lake != self.store.lake.location
            self.emit(context, lake_messages(self.lake, second=second), counts)

    def _place(self, jobs: Sequence[SegmentJob]) -> WorkPlace:
        size_bytes = sum(job.facts.size_bytes for job in jobs)
        return archive_place(self.store_hook.spark, threads_for(jobs), size_bytes, len(jobs))

    def _means(self, context: Context) -> dict[str, Any]:
        from storage_engine.spark.archive_segments import ArchiveRequest, ArchiveResult

        def archive(jobs: Sequence[SegmentJob]) -> Sequence[Receipt]:
            place = self._place(jobs)
            self.say([f"{count_text(len(jobs), 'segment')} to archive {place.text}"])
            if not place.in_spark:
                return cycle.archive_here(jobs)
            request = ArchiveRequest(tuple(jobs), self.store_hook.agent)
            return self.submit(context, request, ArchiveResult).receipts

        return {"archive_with": archive, "where": lambda jobs: self._place(jobs).text}

    def _tell(self, result: ArchiveDone) -> dict[str, Any]:
        """Log the archived segments, and return a summary."""
        from storage_engine.retention.archive.archivable import kept_out_notices

        self.keep_lineage(lambda: archive_lineage(self.store, result.receipts, result.lake))
        self.say(task_log.archive_lines(result))
        self.warn(*result.notices, *kept_out_notices(result.kept_out))
        return {
            "archived_offsets": [receipt.base_offset for receipt in result.receipts],
            "messages": sum(receipt.message_count for receipt in result.receipts),
            # Segments may share a data file.
            "lake_bytes": sum({row.data_file: row.data_file_bytes for row in result.receipts}.values()),
            "lake": result.lake or None,
            "ran": result.ran,
        }


class StorageEngineArchiveOperator(_ArchivingOperator):
    """Archives the planned segments that no lake proves yet.

    If archiving fails, a person can waive the proof for this plan. Then this task succeeds.
    """

    def do_step(self, context: Context) -> dict[str, Any]:
        with self.cleanup(context, **self._means(context)) as cleanup:
            done = cycle.archive(cleanup)
            try:
                self._emit(context, cleanup)
            except LakeUnavailableError as error:
                if done.waiver is None:
                    raise
                self.warn(Text("could not send an event about the archived segments: ", error))
        summary = self._tell(done)
        if done.waiver is not None:
            person, why = done.waiver.person, done.waiver.reason
            self.warn(Text("not archived (", done.error, f"); {person} waived receipts for this plan: {why}"))
        return {**summary, "waived_by": done.waiver.person if done.waiver else None}


class StorageEngineArchiveSealedOperator(_ArchivingOperator):
    """Archives sealed segments ahead of deletion, if ``archive_when`` is seal or only the broker deletes.

    Otherwise the task is skipped. One run archives the oldest segments up to ``archive_budget_bytes``. If
    some logs can't be archived, the task archives the other logs first, and then fails.
    """

    step = Step.SEALED

    def do_step(self, context: Context) -> dict[str, Any]:
        from storage_engine.retention.proof.refusing import archive_error

        policy = self.store.policy
        if not self.store.archives_ahead:
            raise AirflowSkipException(
                f"{self.storage_engine_conn_id}: archive is {policy.archive.value}, archive_when is "
                f"{policy.archive_when.value}"
            )
        with self.cleanup(context, **self._means(context)) as cleanup:
            done = cycle.archive_sealed(cleanup)
            self._emit(context, cleanup)
        summary = self._tell(done)
        if error := archive_error(cleanup.run_key, self.store.real_root, done.refused, done.wrong_lakes):
            raise error
        return summary
