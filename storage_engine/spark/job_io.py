"""Request and result of a Spark job. Each is a JSON file, named on the job's command line.

A job's process reports its result only in the result file and in its exit status. It writes its progress to
standard error, because standard output belongs to Spark. A result contains the digest of its request. So the
result of an older run is never read as the present one.

Credentials are in no file. The driver gets them in its environment, so they end with its processes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TypeVar

from storage_engine import __version__, exceptions
from storage_engine.commands import Text
from storage_engine.core import durable
from storage_engine.core.credentials import put_back, set_apart
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.wording import printable, reason_text
from storage_engine.exceptions import BadInputError, SparkJobError, StorageEngineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Request = TypeVar("Request")
Result = TypeVar("Result")


PROGRESS_SECONDS = 10.0

CREDENTIALS = "STORAGE_ENGINE_JOB_CREDENTIALS"
"""Environment variable that gives credentials to a job's driver. JSON: mark in the request → credential."""


def write_request(path: str | os.PathLike[str], request: Any) -> dict[str, str]:
    """Write a job's request durably, without the credentials in it.

    :param request: a frozen dataclass of jsonable fields.
    :return: environment variables that the job's driver needs beyond the file; empty without credentials.
    """
    content, credentials = set_apart(to_jsonable(request))
    durable.make_dirs(Path(path).parent)
    durable.write_file(path, json.dumps(content, indent=1).encode())
    return {CREDENTIALS: json.dumps(credentials)} if credentials else {}


def read_request(path: str | os.PathLike[str], kind: type[Request]) -> Request:
    """Read a request back, with the credentials in this process's environment.

    :raises BadInputError: the file or its credentials are missing, or it isn't JSON or isn't such a request.
    """
    try:
        content = put_back(_read_json(path), json.loads(os.environ.get(CREDENTIALS, "{}")))
    except KeyError:
        raise BadInputError(
            f"{path}: expected the request's credentials in the driver's environment ({CREDENTIALS}), found "
            "none. Nothing was changed. Submit with deploy mode client: the driver runs where spark-submit "
            "does."
        ) from None
    return from_jsonable(kind, content, str(path))


def write_result(path: str | os.PathLike[str], request_path: str | os.PathLike[str], result: Any) -> None:
    """Write the result of a successful job."""
    _write_answer(path, request_path, {"result": to_jsonable(result)})


def write_failure(
    path: str | os.PathLike[str], request_path: str | os.PathLike[str], error: BaseException
) -> None:
    """Write the error of a failed job, so that the caller can raise the same error."""
    failure = {"type": type(error).__name__, "message": str(error), "parts": Text(error).to_json()}
    _write_answer(path, request_path, {"error": failure})


def read_result(
    path: str | os.PathLike[str], request_path: str | os.PathLike[str], kind: type[Result]
) -> Result:
    """Read the result of the job with the request at ``request_path``.

    :raises SparkJobError: there is no result of this request, or the job failed with a foreign error.
    :raises StorageEngineError: one of our own errors ended the job. It is raised again, in its class.
    """
    if not Path(path).exists():
        raise SparkJobError(
            f"{path}: the Spark job left no result: it was killed or did not start. See its log; running it "
            "again is safe."
        )
    answer = _read_json(path)
    if not isinstance(answer, dict) or answer.get("request_sha256") != _digest(request_path):
        raise SparkJobError(
            f"{path}: expected the result for {request_path}, found the result of another request. Run the "
            "job again."
        )
    if (error := answer.get("error")) is not None:
        # Jobs of older releases write no parts.
        raise _error_of(str(error["type"]), Text.from_json(error.get("parts", [str(error["message"])])))
    return from_jsonable(kind, answer["result"], str(path))


def run_job(
    arguments: Sequence[str], app_name: str, kind: type[Request], job: Callable[[SparkSession, Request], Any]
) -> int:
    """Run a job for its entry point: read the request, start a Spark session, write the result or the error.

    :param arguments: the paths of the request and of the result.
    :param job: function to run. Its result is a frozen dataclass of jsonable fields.
    :return: exit status: 0 done, 1 failed (the result file says why), 2 wrong arguments or request.
    """
    from storage_engine.spark.session import spark_session

    if len(arguments) != 2:
        sys.stderr.write(f"{app_name}: expected two arguments, REQUEST.json and RESULT.json\n")
        return 2
    request_path, result_path = arguments
    try:
        request = read_request(request_path, kind)
        # Processes that are started from here on must not inherit the credentials.
        os.environ.pop(CREDENTIALS, None)
        durable.unlink(result_path)
        durable.make_dirs(Path(result_path).parent)
    except (BadInputError, OSError) as error:
        sys.stderr.write(f"{app_name}: {printable(reason_text(error))}\n")
        return 2
    try:
        with spark_session(app_name) as spark:
            result = run_in_session(job, spark, request)
    except StorageEngineError as error:
        write_failure(result_path, request_path, error)
        sys.stderr.write(f"{app_name}: {type(error).__name__}: {printable(str(error))}\n")
        return 1
    write_result(result_path, request_path, result)
    return 0


def run_in_session(job: Callable[[SparkSession, Request], Any], spark: SparkSession, request: Request) -> Any:
    """Run a job. Errors become ours here, because Spark's own can't be read after the session has stopped.

    :raises StorageEngineError: the job failed, for any reason.
    """
    try:
        return job(spark, request)
    except StorageEngineError:
        raise
    except Exception as error:
        failure = task_error(error)
        if failure is None:
            traceback.print_exc()
            failure = SparkJobError(f"{type(error).__name__}: {error}")
        raise failure from None


def task_error(error: Exception) -> StorageEngineError | None:
    """Return our own error from the text of Spark's error, or None if the text shows none.

    The text shows the error that a task raised, or an executor whose Python can't start tasks.
    """
    text = str(error)
    if matches := _IN_TRACEBACK.findall(text):
        return _error_of(*matches[-1])
    if lacking := _WITHOUT_PACKAGE.search(text):
        python = lacking["python"] or lacking["missing"]
        actual = f"no module {_PACKAGE}" if lacking["python"] else "no such program"
        return SparkJobError(
            f"{python} on host {lacking['host']}: expected an executor's Python with storage-engine "
            f"{__version__}, found {actual}. Nothing was committed or deleted. Install this Python with "
            "storage-engine there, or name another Python: in spark.pyspark.python, or at a shell in "
            "PYSPARK_PYTHON."
        )
    return None


_IN_TRACEBACK = re.compile(
    rf"^ *{re.escape(exceptions.__name__)}\.(\w+): (.+?)\s*(?=^\s*$|^\tat |^PYTHONPATH was:|\Z)",
    re.MULTILINE | re.DOTALL,
)

_PACKAGE = __name__.partition(".")[0]
_WITHOUT_PACKAGE = re.compile(
    r"Lost task \S+ in stage \S+ \(TID \d+\) \((?P<host>\S+) executor \S+\): \S+\s+"
    r"(?:Error from python worker:\s+(?P<python>\S+): [^\n]*No module named '"
    rf"{_PACKAGE}['.]|"
    r'Cannot run program "(?P<missing>[^"]+)")'
)
"""Spark's error text about an executor whose Python is missing or lacks this package."""


@contextmanager
def telling_progress(text: Callable[[], str]) -> Iterator[None]:
    """Write progress to standard error every :data:`PROGRESS_SECONDS`. A shorter job writes no line."""
    ended = Event()

    def tell() -> None:
        while not ended.wait(PROGRESS_SECONDS):
            sys.stderr.write(f"{text()}\n")
            sys.stderr.flush()

    thread = Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _error_of(name: str, message: str) -> StorageEngineError:
    kind = getattr(exceptions, name, None)
    if isinstance(kind, type) and issubclass(kind, StorageEngineError):
        return kind(message)
    return SparkJobError(f"{name}: {message}")


def _write_answer(
    path: str | os.PathLike[str], request_path: str | os.PathLike[str], answer: dict[str, Any]
) -> None:
    content = {"request_sha256": _digest(request_path), **answer}
    durable.write_file(path, json.dumps(content, indent=1).encode())


def _digest(path: str | os.PathLike[str]) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _read_json(path: str | os.PathLike[str]) -> Any:
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        raise BadInputError(f"{path}: can't be read: {reason_text(error)}") from error
    except ValueError as error:
        raise BadInputError(f"{path}: expected JSON, found something else: {error}") from error
