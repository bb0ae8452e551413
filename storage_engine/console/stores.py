"""All stores on one page, the worst first."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from storage_engine.console.store_line import ProblemKind, StoreLine, store_line, worst_first
from storage_engine.core.wording import unexpected
from storage_engine.exceptions import StorageEngineError
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.reading.store_summaries import StoreSummary


@dataclass(frozen=True, slots=True)
class AskedJournal:
    """A journal, and the stores of it that are asked for.

    :param names: ids of their connections.
    """

    reader: JournalReader
    names: Collection[str]


@dataclass(frozen=True, slots=True)
class StoresAnswer:
    """:param problem: why a journal can't be asked, as a sentence; "" where all were."""

    now_ms: int
    stores: tuple[StoreLine, ...]
    problem: str = ""
    kind: str = "stores"
    version: int = 1


def all_stores(journals: Sequence[AskedJournal], now_ms: int) -> StoresAnswer:
    """Return all stores that are asked for; of those that a journal doesn't tell of, why."""
    lines: list[StoreLine] = []
    problems = []
    for asked in journals:
        try:
            lines += _of_journal(asked, now_ms)
        except StorageEngineError as error:
            problems.append(str(error))
            lines += (
                StoreLine(name, problem=str(error), problem_kind=ProblemKind.JOURNAL) for name in asked.names
            )
    return StoresAnswer(now_ms, worst_first(lines), " ".join(problems))


def line_of(reader: JournalReader, name: str, now_ms: int) -> StoreLine:
    """Return one store.

    :raises JournalUnavailableError: the journal can't be read.
    :raises BadInputError: it is of another version.
    """
    (line,) = _of_journal(AskedJournal(reader, (name,)), now_ms)
    return line


def _of_journal(asked: AskedJournal, now_ms: int) -> Iterator[StoreLine]:
    found = {one.name: one for one in asked.reader.summaries(asked.names, now_ms)}
    for name in asked.names:
        if name in found:
            yield _line(name, found[name], now_ms)
        else:
            yield StoreLine(
                name,
                problem=f"{asked.reader.name} knows no store of this name. The first run of a DAG on it "
                "records it.",
                problem_kind=ProblemKind.NO_STORE,
            )


def _line(name: str, summary: StoreSummary, now_ms: int) -> StoreLine:
    """Return a store's line; what another release wrote of it hides no other store."""
    try:
        return store_line(name, summary, now_ms)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"What the journal has of this store can't be read: {unexpected(error)}"
        return StoreLine(name, problem=problem, problem_kind=ProblemKind.JOURNAL)
