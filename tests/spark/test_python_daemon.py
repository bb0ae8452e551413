from __future__ import annotations

import sys
from pathlib import Path

import pyspark
import pytest

from storage_engine.spark.python_daemon import TASK_MODULES, without_archives
from storage_engine.spark.session import spark_session

_PYSPARK = Path(pyspark.__file__).parent


def test_archives_of_the_installed_spark_go_and_those_of_another_stay(tmp_path: Path) -> None:
    installed = [str(_PYSPARK / "python/lib/pyspark.zip"), str(_PYSPARK / "jars/spark-core_2.13.jar")]
    others = [str(tmp_path / "spark/python/lib/pyspark.zip"), str(tmp_path / "job.zip")]
    rest = ["", str(_PYSPARK.parent), str(tmp_path)]
    assert without_archives([*installed, *others, *rest]) == [*others, *rest]


def test_archives_stay_where_no_pyspark_is_on_the_path() -> None:
    path = [str(_PYSPARK / "python/lib/pyspark.zip")]
    assert without_archives(path) == path


@pytest.mark.integration
def test_workers_start_with_what_tasks_import_and_read_no_archives() -> None:
    def look(_: int) -> tuple[set[str], list[str]]:
        # What a path's archives are read with; each is read anew before every task.
        archives = [key for key, found in sys.path_importer_cache.items() if "zip" in type(found).__name__]
        return set(TASK_MODULES) & set(sys.modules), archives

    with spark_session("test") as spark:
        for loaded, archives in spark.sparkContext.parallelize(range(2), 2).map(look).collect():
            assert loaded == set(TASK_MODULES)
            assert archives == []
