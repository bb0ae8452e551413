"""Nobody waits for a library that a command does not need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from storage_engine.cli import COMMANDS

HEAVY = {"pyspark", "great_expectations", "pyiceberg", "airflow", "sqlalchemy", "pandas"}
OF_DATA = {"numba", "pyarrow", "numpy", "pydantic", "requests", "psutil", "jinja2", "confluent_kafka"}


def _imported_by(*commands: list[str]) -> set[str]:
    code = (
        "import sys\nfrom storage_engine.cli import main\n"
        f"for words in {commands!r}:\n"
        "    try:\n        main(words)\n"
        "    except SystemExit as stopped:\n        assert stopped.code == 0, stopped.code\n"
        "print('|' + ' '.join({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.rpartition("|")[2].split())


def test_no_help_imports_a_library_that_a_command_works_with() -> None:
    assert not _imported_by(["--help"], *([name, "--help"] for name in COMMANDS)) & (HEAVY | OF_DATA)


@pytest.mark.slow
def test_looking_at_a_store_imports_neither_spark_nor_lake(archived) -> None:
    store = str(archived.store)
    looked = _imported_by(["inspect", store], ["plan", store], ["doctor", store])
    # Arrow imports pandas, where there is one, when it makes its first array.
    assert not looked & (HEAVY - {"pandas"})
