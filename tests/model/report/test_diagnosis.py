"""Findings are shown the most urgent first, each once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage_engine.commands import Command, commands_in
from storage_engine.exceptions import LakeMissingError
from storage_engine.model.report.diagnosis import Finding, Severity, named_in_short, reason_of, sort_findings

FINDINGS = st.lists(
    st.builds(Finding, st.sampled_from(Severity), st.sampled_from("ab"), st.sampled_from("xyz"))
)


@given(found=FINDINGS)
def test_the_most_urgent_come_first_and_nothing_is_lost_or_there_twice(found: list[Finding]) -> None:
    shown = sort_findings(found)
    assert set(shown) == set(found)
    assert len(set(shown)) == len(shown)
    ranks = [list(Severity).index(one.severity) for one in shown]
    assert ranks == sorted(ranks)
    for severity in Severity:
        as_found = [one for one in dict.fromkeys(found) if one.severity is severity]
        assert [one for one in shown if one.severity is severity] == as_found


def test_many_names_are_told_in_short() -> None:
    assert named_in_short([]) == ""
    assert named_in_short(["a", "b", "c"]) == "a, b, c"
    assert named_in_short(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


def test_an_error_is_told_without_its_remedy() -> None:
    assert reason_of("/s: expected a, found that b is. Nothing was changed. Do c.") == "b is"
    assert reason_of("it broke.") == "it broke"
    command = Command("lake rebuild")
    lost = LakeMissingError("/l: expected a lake, found none. Nothing was created. Run ", command, ".")
    assert commands_in(reason_of(lost)) == (command,)
