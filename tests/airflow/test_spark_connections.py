"""Which Spark connections of an Airflow ``init`` may propose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage_engine.hooks.pipeline import own_airflow


def test_airflows_own_that_nobody_touched_is_none_and_others_are(
    airflow_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.models import Connection
    from airflow.utils.session import create_session

    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    untouched = {"conn_type": "spark", "host": "yarn", "extra": {"queue": "root.default"}}
    cluster = {"conn_type": "spark", "host": "spark://h:7077"}
    for name, said in {
        "SPARK_DEFAULT": json.dumps(untouched),
        "CLUSTER": json.dumps(cluster),
        "WEB": json.dumps({"conn_type": "http", "host": "h"}),
        "BROKEN": "{",
    }.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", said)
    with create_session() as session:
        session.add(Connection(conn_id="of_database", conn_type="spark", host="local[*]"))
    try:
        assert own_airflow(None).spark_connections == {"cluster", "of_database"}
        touched = json.dumps({**untouched, "extra": {"queue": "mine"}})
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", touched)
        assert own_airflow(None).spark_connections == {"cluster", "of_database", "spark_default"}
    finally:
        with create_session() as session:
            session.query(Connection).filter_by(conn_id="of_database").delete()
