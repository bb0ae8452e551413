from __future__ import annotations

from pathlib import Path

import pyspark

from storage_engine.spark.python_daemon import without_archives

_PYSPARK = Path(pyspark.__file__).parent


def test_archives_of_the_installed_spark_go_and_those_of_another_stay(tmp_path: Path) -> None:
    installed = [str(_PYSPARK / "python/lib/pyspark.zip"), str(_PYSPARK / "jars/spark-core_2.13.jar")]
    others = [str(tmp_path / "spark/python/lib/pyspark.zip"), str(tmp_path / "job.zip")]
    rest = ["", str(_PYSPARK.parent), str(tmp_path)]
    assert without_archives([*installed, *others, *rest]) == [*others, *rest]


def test_archives_stay_where_no_pyspark_is_on_the_path() -> None:
    path = [str(_PYSPARK / "python/lib/pyspark.zip")]
    assert without_archives(path) == path
