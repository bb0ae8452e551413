"""A leader that changes while its log is cut: another one has to show the records that were proven."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from storage_engine.exceptions import BrokerRefusedError, ChangedUnderUsError, ReleasedTooMuchError
from storage_engine.kafka.cluster.client import Cluster
from storage_engine.kafka.hold.hold_state import HoldState, load_state
from storage_engine.kafka.live import release
from storage_engine.kafka.live.release import Cut, Led, Witness, cut_logs
from tests.kafka.hold_memory import Memory
from tests.kafka.live.test_release import LOG, found

__all__ = ["found"]


class Answers:
    """What a cluster answers in turn, where none can be brought to elect another leader at that moment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.epochs = [3, 3]
        self.start = -1
        self.refused: Mapping[tuple[str, int], BrokerRefusedError] = {}
        self.other: Mapping[tuple[str, int], str] = {}
        self.asked: dict[tuple[str, int], Witness] = {}
        self.cuts = 0
        self.remembered: HoldState | None = None
        self.memory = Memory()
        for name in ("leaders_of", "cut", "settled_starts", "find_differences"):
            monkeypatch.setattr(release, name, getattr(self, name))

    def leaders_of(self, _: Cluster, prefixes: Sequence[Any]) -> Mapping[str, Led]:
        epoch = self.epochs.pop(0)
        return {one.name.log: Led(epoch, 10**9) for one in prefixes}

    def cut(self, _: Cluster, prefixes: Sequence[Any]) -> Mapping[tuple[str, int], BrokerRefusedError]:
        self.cuts += 1
        self.remembered = load_state(self.memory)
        return self.refused

    def settled_starts(self, _: Cluster, prefixes: Sequence[Any], *__: Any) -> Mapping[str, int]:
        return {one.name.log: one.boundary if self.start < 0 else self.start for one in prefixes}

    def find_differences(
        self, _: Cluster, witnesses: Mapping[tuple[str, int], Witness], __: Any
    ) -> Mapping[tuple[str, int], str]:
        self.asked |= witnesses
        return {key: why for key, why in self.other.items() if key in witnesses}

    def run(self, one: Cut) -> None:
        cluster: Any = None
        cut_logs(cluster, Path("node"), self.memory, [one], lambda: None, is_held=False)

    @property
    def let_go(self) -> int:
        state = load_state(self.memory)
        return -1 if state is None or LOG not in state.logs else state.logs[LOG].let_go


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    return Answers(monkeypatch)


def test_a_cut_is_remembered_before_it_is_made_whatever_is_held(found: Any, answers: Answers) -> None:
    prefix, live, _, _ = found
    answers.run(Cut(prefix, live))
    assert answers.remembered is not None
    assert answers.remembered.logs[LOG].let_go == prefix.boundary
    assert answers.asked == {}


def test_another_leader_than_the_one_that_was_looked_at_cuts_nothing(found: Any, answers: Answers) -> None:
    prefix, live, _, _ = found
    answers.epochs = [4]
    with pytest.raises(ChangedUnderUsError, match="its leader's epoch is 4 by now, and it was 3"):
        answers.run(Cut(prefix, live))
    assert (answers.cuts, answers.let_go) == (0, -1)


def test_a_leader_that_came_meanwhile_shows_the_first_record_behind_the_cut(
    found: Any, answers: Answers
) -> None:
    prefix, live, _, _ = found
    answers.epochs = [3, 4]
    answers.run(Cut(prefix, live))
    assert answers.asked[prefix.key].offset >= prefix.boundary


def test_a_leader_that_came_meanwhile_and_has_others_is_told_of(found: Any, answers: Answers) -> None:
    prefix, live, _, _ = found
    answers.epochs = [3, 4]
    answers.other = {prefix.key: "another leader appended other records"}
    with pytest.raises(
        ReleasedTooMuchError, match=f"The log's records below offset {prefix.boundary} are deleted"
    ):
        answers.run(Cut(prefix, live))


def test_what_a_leader_refuses_is_not_remembered_as_done(found: Any, answers: Answers) -> None:
    prefix, live, _, _ = found
    answers.start = 0
    answers.refused = {prefix.key: BrokerRefusedError("no", code=44, remark="policy")}
    with pytest.raises(ChangedUnderUsError, match="the cluster refuses: policy"):
        answers.run(Cut(prefix, live))
    assert answers.let_go == -1
