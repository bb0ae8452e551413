"""The console's answers from a journal in PostgreSQL are those from SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_engine.console.metrics import read_samples
from storage_engine.core.jsonable import to_jsonable
from storage_engine.journal.reading.queries import JournalReader
from tests.console.conftest import NAMES, NOW_MS
from tests.console.test_indexed import ANSWERS
from tests.integration.postgres import Postgres, postgres
from tests.services.console_journal import write_journal

pytestmark = [pytest.mark.integration, pytest.mark.again]

OTHERWISE = {"store_id", "took_ms", "plan_digest", "problem"}
"""Fields that name a store of this journal, or say how long it took."""


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


def test_every_answer_is_the_same(database: Postgres, tmp_path: Path) -> None:
    readers = []
    for url in (database.uri, f"sqlite:///{tmp_path}/journal.db"):
        write_journal(url, NAMES, now_ms=NOW_MS, days=45, every_ms=1_800_000)
        readers.append(JournalReader(url))
    for name, answer in ANSWERS.items():
        on_server, in_file = (plain(to_jsonable(answer(reader))) for reader in readers)
        assert on_server == in_file, name
    on_server, in_file = ([*read_samples(reader, None, NOW_MS)] for reader in readers)
    assert on_server == in_file
    assert len(in_file) > 20 * len(NAMES) - 5


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items() if key not in OTHERWISE}
    return [plain(one) for one in value] if isinstance(value, list) else value
