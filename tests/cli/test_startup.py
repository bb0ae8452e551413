"""Nobody waits for a library that a command does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.kafka_groups import write_offsets
from benchmarks.kafka_plan import write_node
from storage_engine.cli.main import COMMANDS
from storage_engine.core.clock import clock_ms
from tests.cli.every_command import EVERY

HEAVY = {"pyspark", "great_expectations", "pyiceberg", "airflow", "sqlalchemy", "pandas"}
OF_DATA = {"numba", "pyarrow", "numpy", "pydantic", "requests", "psutil", "jinja2", "confluent_kafka"}
OF_TERMINALS = {"rich.console", "rich.table", "rich.progress"}
MOST_MODULES = 180
"""Of the help of all commands, which takes a tenth of a second; Python and click alone have 150."""
MOST_MODULES_OF_A_COMMAND = 258

_EACH_ALONE = """
import json, os, sys
from storage_engine.cli.main import main
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
        "import sys\nfrom storage_engine.cli.main import main\n"
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


def test_planning_compiles_nothing(store: Path) -> None:
    assert not _imported_by(["plan", str(store)]) & (HEAVY | {"numba"})


def test_what_lists_the_files_of_a_store_compiles_nothing() -> None:
    code = "import sys, storage_engine.rocketmq.inspect; print(sorted({'numba'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_planning_a_node_of_kafka_imports_no_pandas_either(tmp_path: Path) -> None:
    node = write_node(tmp_path / "node", topics=1, partitions=2, expired_every=1, now_ms=clock_ms())
    write_offsets(node, topics=1, partitions=2, groups=2, everywhere=True)
    assert not _imported_by(["plan", str(node), "--json"]) & HEAVY


@pytest.mark.again
@pytest.mark.slow
def test_neither_looking_at_all_stores_nor_verifying_a_lake_imports_pandas(archived) -> None:
    lake = str(archived.lake)
    assert not _imported_by(["info", "--lake", lake], ["verify", "--lake", lake]) & {"pandas"}


_LOOKED = """
import atexit, gc, json, sys
from storage_engine.cli.main import main
atexit.register(lambda: print("|" + json.dumps(gc.get_freeze_count())))
try:
    main(["info", "--lake", sys.argv[1]])
except SystemExit as ended:
    assert ended.code == 0, ended.code
rest = sorted({"pyiceberg.catalog.rest", "requests", "numba"} & {*sys.modules})
print("|" + json.dumps([rest, [stats["collections"] for stats in gc.get_stats()]]))
"""


def test_a_look_at_what_is_managed_needs_no_http_and_no_kernels_and_collects_no_imports(archived) -> None:
    command = [sys.executable, "-c", _LOOKED, str(archived.lake)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    (rest, (young, _, old)), frozen = map(json.loads, done.stdout.split("|")[-2:])
    assert str(archived.lake) in done.stdout
    assert (rest, old) == ([], 0)
    # Of Python and click alone there are about 70, of imports of journal and lake 450 more.
    assert young < 150
    # What is frozen the interpreter doesn't look at again when it ends.
    assert frozen > 100_000


_SMALL = """
import sys
from importlib.machinery import PathFinder
find, missing = PathFinder.find_spec, ("pandas", "great_expectations", "pyspark", "airflow")
PathFinder.find_spec = lambda name, *rest: None if name.partition(".")[0] in missing else find(name, *rest)
from storage_engine.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.again
def test_the_whole_job_needs_no_pandas(store: Path, lake: Path, tmp_path: Path) -> None:
    for words in (
        ["archive", store, "--lake", lake],
        ["clean", store, "--lake", lake, "--manual"],
        ["validate", store, "--lake", lake, "--full", "--output", tmp_path / "out"],
        ["verify", store, "--lake", lake],
    ):
        command = [sys.executable, "-c", _SMALL, *map(str, words)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "Great Expectations is not installed" in (tmp_path / "out" / "report.html").read_text()


def test_arrow_that_was_loaded_alone_still_gives_frames_with_missing_values() -> None:
    code = (
        "import sys\nfrom storage_engine.arrow.alone import load_arrow_alone\n"
        "load_arrow_alone()\nimport pyarrow as pa\ntable = pa.table({'a': [None, 1]})\n"
        "assert 'pandas' not in sys.modules\nframe = table.to_pandas()\n"
        "assert frame['a'].isna().tolist() == [True, False]\n"
        "assert pa.array(frame['a']).to_pylist() == [None, 1.0]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
