"""CommittedPositions of groups are on disk when they are kept, for one server at a time."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.lake_server.group_answers import CommittedPositions


def test_what_was_committed_is_there_for_the_next_server(tmp_path: Path) -> None:
    path = tmp_path / "positions.json"
    with closing(CommittedPositions(path)) as first:
        first.commit("g", {("orders", 0): (5, None), ("orders", 1): (7, "note")})
        first.commit("g", {("orders", 0): (6, "")})
        with pytest.raises(BadInputError, match="no other server uses"):
            CommittedPositions(path)
    with closing(CommittedPositions(path)) as second:
        assert second.of("g", "orders", 0) == (6, "")
        assert second.of("g", "orders", 1) == (7, "note")
        assert second.of("other", "orders", 1) is None


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'{"version": 2, "groups": {}}', b'{"version": 1, "groups": 3}']
)
def test_another_file_is_refused_and_left_as_it_is(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "positions.json"
    path.write_bytes(text)
    with pytest.raises(BadInputError, match="expected the positions of groups"):
        CommittedPositions(path)
    assert path.read_bytes() == text


def test_what_can_not_be_written_is_not_committed(tmp_path: Path) -> None:
    path = tmp_path / "positions.json"
    with closing(CommittedPositions(path)) as positions:
        positions.commit("g", {("orders", 0): (5, None)})
        path.unlink()
        path.mkdir()
        with pytest.raises(OSError, match="positions"):
            positions.commit("g", {("orders", 0): (6, None)})
        assert positions.of("g", "orders", 0) == (5, None)


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="Mount its disk"):
        CommittedPositions(tmp_path / "mount" / "positions.json")
    assert not (tmp_path / "mount").exists()
