from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage_engine.commands import Command
from storage_engine.exceptions import (
    BadInputError,
    CorruptFileError,
    CorruptFrameError,
    LakeConflictError,
    SparkJobError,
)
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.model.broker.live import LiveBroker
from storage_engine.spark.job_io import (
    read_request,
    read_result,
    run_job,
    task_error,
    write_failure,
    write_request,
    write_result,
)


@dataclass(frozen=True, slots=True)
class Addition:
    numbers: tuple[int, ...]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Total:
    total: int


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    path = tmp_path / "job" / "request.json"
    write_request(path, Addition((1, 2)))
    return path


def test_request_comes_back_equal(request_file: Path) -> None:
    assert read_request(request_file, Addition) == Addition((1, 2))


LAKE = LakeConfig(
    "l", {"uri": "postgresql+psycopg://u:hush-1@db/x", "s3.secret-access-key": "hush-2", "s3.region": "r"}
)


@dataclass(frozen=True, slots=True)
class Opening:
    lakes: tuple[LakeConfig, ...]
    live: LiveBroker


def test_credentials_of_a_request_are_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Opening((LAKE, LAKE), LiveBroker(access_key="hush-3", secret_key="hush-4"))
    variables = write_request(tmp_path / "request.json", asked)
    assert "hush" not in (tmp_path / "request.json").read_text()
    assert '"s3.region": "r"' in (tmp_path / "request.json").read_text()
    with pytest.raises(BadInputError, match="expected the request's credentials"):
        read_request(tmp_path / "request.json", Opening)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert read_request(tmp_path / "request.json", Opening) == asked


def test_result_comes_back_equal(request_file: Path, tmp_path: Path) -> None:
    write_result(tmp_path / "result.json", request_file, Total(3))
    assert read_result(tmp_path / "result.json", request_file, Total) == Total(3)


def test_missing_result_is_an_error(request_file: Path, tmp_path: Path) -> None:
    with pytest.raises(SparkJobError, match="left no result"):
        read_result(tmp_path / "result.json", request_file, Total)


def test_answer_to_another_request_is_never_taken(request_file: Path, tmp_path: Path) -> None:
    write_result(tmp_path / "result.json", request_file, Total(3))
    write_request(request_file, Addition((1, 2, 3)))
    with pytest.raises(SparkJobError, match="another request"):
        read_result(tmp_path / "result.json", request_file, Total)


def test_error_of_ours_comes_back_as_its_class(request_file: Path, tmp_path: Path) -> None:
    for error in (
        LakeConflictError("other bytes at 0: ", Command("adopt"), "."),
        CorruptFrameError.at("file", 7, "a frame", "zeros"),
    ):
        write_failure(tmp_path / "result.json", request_file, error)
        with pytest.raises(type(error)) as raised:
            read_result(tmp_path / "result.json", request_file, Total)
        assert (str(raised.value), raised.value.then) == (str(error), error.then)
    answer = json.loads((tmp_path / "result.json").read_text())
    # As the job of an older package answers.
    del answer["error"]["parts"]
    (tmp_path / "result.json").write_text(json.dumps(answer))
    with pytest.raises(CorruptFrameError, match="bad frame"):
        read_result(tmp_path / "result.json", request_file, Total)


def test_any_other_error_comes_back_with_its_name_and_message(request_file: Path, tmp_path: Path) -> None:
    error = OSError("no space")
    write_failure(tmp_path / "result.json", request_file, error)
    with pytest.raises(SparkJobError) as raised:
        read_result(tmp_path / "result.json", request_file, Total)
    assert str(raised.value) == f"{type(error).__name__}: {error}"


TRACEBACK = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "lag.py", line 6, in f
storage_engine.exceptions.StoreBusyError: file went away

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "lag.py", line 7, in f
    raise CorruptFileError("...")
storage_engine.exceptions.CorruptFileError: a file: expected y,
found z
"""


@pytest.mark.parametrize("end", ["", "\n\tat org.apache.spark.X\n", "\n\n\tat org.apache.spark.X\n\tat Y\n"])
def test_error_that_a_task_raised_is_found_in_what_spark_makes_of_it(end: str) -> None:
    found = task_error(RuntimeError(TRACEBACK.rstrip() + end))
    assert type(found) is CorruptFileError
    assert str(found) == "a file: expected y,\nfound z"


def test_error_of_a_task_that_is_not_ours_is_none() -> None:
    assert task_error(RuntimeError("Traceback\nOSError: no space\n\tat org.apache.spark.X")) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"numbers": ["one"]}', '{"numbers": [], "extra": 1}'])
def test_bad_request_ends_the_job_with_status_2_and_no_result(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "request.json"
    path.write_text(content)
    assert run_job([str(path), str(tmp_path / "result.json")], "add", Addition, _never) == 2
    assert str(path) in capsys.readouterr().err
    assert not (tmp_path / "result.json").exists()


def test_missing_request_ends_the_job_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_job([str(tmp_path / "none.json"), "result.json"], "add", Addition, _never) == 2
    assert "can't be read" in capsys.readouterr().err


def test_wrong_number_of_arguments_ends_the_job_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_job([], "add", Addition, _never) == 2
    assert "REQUEST.json" in capsys.readouterr().err


def test_truncated_result_is_an_error(request_file: Path, tmp_path: Path) -> None:
    write_result(tmp_path / "result.json", request_file, Total(3))
    content = json.loads((tmp_path / "result.json").read_text())
    (tmp_path / "result.json").write_text(json.dumps(content)[:-5])
    with pytest.raises(BadInputError, match="expected JSON"):
        read_result(tmp_path / "result.json", request_file, Total)


def _never(spark: object, request: object) -> None:
    raise AssertionError("the job must not run")
