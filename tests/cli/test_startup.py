"""Nobody waits for a library that a command does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from storage_engine.cli import COMMANDS
from tests.cli.every_command import EVERY
from tests.kafka.stopped_nodes import make_node

HEAVY = {"pyspark", "great_expectations", "pyiceberg", "airflow", "sqlalchemy", "pandas"}
OF_DATA = {"numba", "pyarrow", "numpy", "pydantic", "requests", "psutil", "jinja2", "confluent_kafka"}
OF_TERMINALS = {"rich.console", "rich.table", "rich.progress"}
MOST_MODULES = 180
"""Of the help of all commands, which takes a tenth of a second; Python and click alone have 150."""
MOST_MODULES_OF_A_COMMAND = 280

_EACH_ALONE = """
import json, os, sys
from storage_engine.cli import main
for words in json.loads(sys.argv[1]):
    reader, writer = os.pipe()
    if not os.fork():
        sys.stdout = open(os.devnull, "w")
        try:
            main([*words, "--help"])
        except SystemExit as ended:
            os.write(writer, json.dumps([words, ended.code, sorted(sys.modules)]).encode())
        os._exit(0)
    os.close(writer)
    print(b"".join(iter(lambda: os.read(reader, 1 << 16), b"")).decode())
    os.close(reader)
    os.wait()
"""


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
    asked = [[], *([name] for name in COMMANDS), *(name.split() for name in EVERY if " " in name)]
    command = [sys.executable, "-c", _EACH_ALONE, json.dumps(asked)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(words, code) for words, code, _ in answers] == [(words, 0) for words in asked]
    too_many = {
        " ".join(words): len(modules)
        for words, _, modules in answers
        if len(modules) > (MOST_MODULES_OF_A_COMMAND if words else MOST_MODULES)
    }
    heavy = {
        " ".join(words): sorted(found)
        for words, _, modules in answers
        if (found := {*modules} & (HEAVY | OF_DATA | OF_TERMINALS))
    }
    assert (too_many, heavy) == ({}, {})


@pytest.mark.slow
def test_looking_at_a_store_imports_neither_spark_nor_lake(archived) -> None:
    store = str(archived.store)
    looked = _imported_by(["inspect", store], ["plan", store], ["doctor", store])
    # Arrow imports pandas, where there is one, when it makes its first array.
    assert not looked & (HEAVY - {"pandas"})


@pytest.mark.slow
def test_planning_a_node_of_kafka_imports_no_pandas_either(tmp_path: Path) -> None:
    node = make_node(tmp_path / "node")
    assert not _imported_by(["plan", str(node.root / "server.properties"), "--json"]) & HEAVY
