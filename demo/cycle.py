"""The demo: one whole cycle on the sample store in a real Airflow, then checked without trusting it.

Ends by itself. Whatever way it ends, no process that it started lives on.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from demo.checks import DemoCheck, check_outcome, segment_hashes, tell_checks
from demo.dag_run import DagRun, DemoAirflow, Say
from demo.directory import clear, run_demo_in
from demo.spark import check_spark, event_log_conf
from storage_engine.project.init import STORE_CONNECTION, Project, init_project
from storage_engine.project.up import SampleStore, free_port, unpack_sample_store

MONITOR_ID = f"storage_monitor__{STORE_CONNECTION}"
DAG_ID = f"storage_retention__{STORE_CONNECTION}"
_NAMES = ("store", "broker.conf", "restored", "spark-events")


def run_demo(directory: Path, say: Say, tell: Say) -> int:
    """Run the demo in ``directory``, afresh.

    :param say: receives progress, line by line.
    :param tell: receives the summary, line by line.
    :return: exit status: 0 if everything held, 1 if something did not, 128 + signal number when
        interrupted.
    :raises BadInputError: the directory holds something that is not an earlier demo.
    """
    return run_demo_in(directory, _NAMES, say, lambda place: _run(place, say, tell))


def _run(directory: Path, say: Say, tell: Say) -> int:
    started = time.monotonic()
    clear(directory, _NAMES)
    sample = unpack_sample_store(directory)
    say(f"sample store, written by a real RocketMQ broker: {sample.root}")
    say(f"  {len(sample.old)} of its segments are dated back, past their reserved time")
    before = segment_hashes(sample.root)
    events = directory / "spark-events"
    events.mkdir()
    project = init_project(
        directory,
        store_root=sample.root,
        broker_conf=sample.broker_conf,
        fields={"spark_from": "0"},
        spark_conf=event_log_conf(events),
    )
    with DemoAirflow(project, free_port(), say) as airflow:
        run = DagRun(airflow, DAG_ID, say)
        # A DAG that is off is told nothing: first the one that is told, then the one that tells.
        run.switch_on()
        DagRun(airflow, MONITOR_ID, say).switch_on()
        run.start()
        state = run.finish()
        result = run.result("report")
        airflow.begin_stop()
        checks = check_outcome(project, sample, before, state, result)
        # Where no Java is, there is no Spark connection, and nothing ran in Spark.
        checks += (check_spark(events),) if len(project.connections) > 1 else ()
    _sum_up(project, sample, result, checks, tell)
    tell(f"Took {time.monotonic() - started:.0f} s.")
    return 0 if all(check.holds for check in checks) else 1


def _sum_up(
    project: Project, sample: SampleStore, result: dict[str, Any], checks: tuple[DemoCheck, ...], tell: Say
) -> None:
    if "report_text" in result:
        tell("")
        for line in Path(result["report_text"]).read_text().splitlines():
            tell(line)
    tell_checks(checks, "the files alone", tell)
    tell(f"Store    {sample.root}")
    tell(f"Lake     {project.lake}")
    tell(f"Report   {result.get('report_html', project.reports)}")
    tell(f"Logs     {project.logs}")
    verdict = "Everything held." if all(check.holds for check in checks) else "NOT everything held."
    unread = result.get("unread", ())
    tell(f"{verdict} What consumers had not read went, too:" if unread else verdict)
    for line in unread:
        tell(f"  WARNING {line}")
    tell("")
    tell(f"To look around in this Airflow: storage-engine up {project.home}")
    tell("Next: storage-engine doctor STORE, for the storePathRootDir of a broker of your own")
