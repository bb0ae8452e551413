from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pyspark
import pytest

from storage_engine import brokers
from storage_engine.exceptions import BadInputError
from storage_engine.model.broker.kind import RowTraits
from storage_engine.spark.python_daemon import load_task_modules, without_archives

_PYSPARK = Path(pyspark.__file__).parent


def test_archives_of_the_installed_spark_go_and_those_of_another_stay(tmp_path: Path) -> None:
    installed = [str(_PYSPARK / "python/lib/pyspark.zip"), str(_PYSPARK / "jars/spark-core_2.13.jar")]
    others = [str(tmp_path / "spark/python/lib/pyspark.zip"), str(tmp_path / "job.zip")]
    rest = ["", str(_PYSPARK.parent), str(tmp_path)]
    assert without_archives([*installed, *others, *rest]) == [*others, *rest]


def test_archives_stay_where_no_pyspark_is_on_the_path() -> None:
    path = [str(_PYSPARK / "python/lib/pyspark.zip")]
    assert without_archives(path) == path


def test_a_broker_s_package_that_is_no_use_ends_no_other_broker_s_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(name: str) -> SimpleNamespace:
        if name == "older":
            raise BadInputError("Older defines has_shield, which is aside since 0.2")
        return SimpleNamespace(rows=RowTraits(task_modules=("of_tasks",)))

    (tmp_path / "of_tasks.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(brokers, "broker_names", lambda: ("older", "younger"))
    monkeypatch.setattr(brokers, "find_broker", find)
    load_task_modules()
    assert "of_tasks" in sys.modules
