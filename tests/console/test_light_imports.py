"""A web server that answers for the console imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

from tests.console.conftest import NOW_MS

ASK_ALL = """
import sys
from storage_engine.console.stores import validation_calendar
from storage_engine.console.chart import chart
from storage_engine.console.store import one_store, runs_page
from storage_engine.console.forecast import store_forecast
from storage_engine.console.stores import all_stores
from storage_engine.console.forecast import question_of, what_if, what_if_settings
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.core.jsonable import to_jsonable

reader, name, now_ms = JournalReader(sys.argv[1]), "store_orders", int(sys.argv[2])
answers = (
    all_stores(reader, (name,), now_ms),
    one_store(reader, name, now_ms),
    runs_page(reader, name),
    chart(reader, name, 0, now_ms),
    store_forecast(reader, name, now_ms),
    validation_calendar(reader, name, 2026),
    what_if_settings(reader, name, now_ms),
    what_if(reader, name, question_of({"values": {"fileReservedTime": "48"}}), now_ms),
)
assert all(map(to_jsonable, answers))
print(*{module.partition(".")[0] for module in sys.modules})
"""
HEAVY = {
    "airflow",
    "fastapi",
    "great_expectations",
    "numba",
    "numpy",
    "pandas",
    "psutil",
    "pyarrow",
    "pyiceberg",
    "pyspark",
}


def test_no_answer_imports_anything_heavy(past_url: str) -> None:
    command = [sys.executable, "-c", ASK_ALL, past_url, str(NOW_MS)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert not HEAVY & set(ran.stdout.split())
