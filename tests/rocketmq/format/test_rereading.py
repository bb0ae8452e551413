from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from storage_engine.exceptions import CorruptFileError, StoreBusyError
from storage_engine.rocketmq.format import mapped_files
from storage_engine.rocketmq.format import stored_files as module
from storage_engine.rocketmq.format.mapped_files import list_raw_files
from storage_engine.rocketmq.format.stored_files import Patience, reread


def failing(times: int, error: Exception) -> list[Exception | int]:
    return [*[error] * times, 7]


def taker(outcomes: list[Exception | int]):  # type: ignore[no-untyped-def]
    def take(*_: object) -> int:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return take


@pytest.mark.parametrize(
    "error", [CorruptFileError("half"), FileNotFoundError("gone"), StoreBusyError("busy")]
)
def test_what_does_not_fit_together_is_read_again_a_bounded_number_of_times(error: Exception) -> None:
    assert reread(taker(failing(2, error)), 3) == 7
    with pytest.raises(type(error)):
        reread(taker(failing(3, error)), 3)


def test_without_a_broker_nothing_is_read_twice() -> None:
    with pytest.raises(CorruptFileError):
        reread(taker(failing(1, CorruptFileError("half"))), 1)


def test_what_looks_odd_is_looked_at_again_and_damage_stays_damage() -> None:
    patience = Patience.with_broker(cleaning_ms=0)
    assert patience.settled(taker([1, 2, 3]), None, lambda: None, lambda row: row == 3) == 3
    assert patience.settled(taker([1] * 9), None, lambda: None, lambda row: row == 3) == 1
    assert Patience().settled(taker([1, 3]), None, lambda: None, lambda row: row == 3) == 1


def test_left_overs_that_stay_are_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [2, 0]
    # Time is over as soon as the first has gone.
    clock = SimpleNamespace(monotonic=lambda: 2 - len(looks), sleep=lambda seconds: None)
    monkeypatch.setattr(module, "time", clock)
    patience = Patience.with_broker(cleaning_ms=1200)
    assert patience.until_none([taker(looks), lambda: 5], [2, 5]) == [0, 5]
    assert Patience().until_none([taker([])], [1]) == [1]


def test_a_file_that_goes_away_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("0", "1", "2"):
        (tmp_path / name).write_bytes(b"x")
    real, listed = mapped_files.os.scandir, []

    class Racing:
        """Deletes the first file between listing and looking at it."""

        def __init__(self, path: Path) -> None:
            self.entries = list(real(path))
            listed.append(path)
            if len(listed) == 1:
                (tmp_path / "0").unlink()

        def __enter__(self) -> Racing:
            return self

        def __exit__(self, *_: object) -> None: ...

        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter(self.entries)

    monkeypatch.setattr(mapped_files.os, "scandir", Racing)
    assert [path.name for path, _ in list_raw_files((tmp_path,))] == ["1", "2"]
    assert len(listed) == 2
