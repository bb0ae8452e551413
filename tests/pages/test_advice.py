"""Whatever a report can say went wrong has advice, and no advice is for what nothing says."""

from __future__ import annotations

import inspect

import pytest

from storage_engine import exceptions
from storage_engine.model.plan import DELETING, Cause, Reason
from storage_engine.pages.advice import (
    CAUSES,
    CHECK_OTHERWISE,
    CHECKS,
    ERRORS,
    OTHERWISE,
    REASONS,
    check_advice,
    error_advice,
    reason_advice,
    reason_words,
)
from storage_engine.pages.figures import STEPS
from storage_engine.quality.suite import SUITES

ERROR_CLASSES = {
    name
    for name, item in vars(exceptions).items()
    if inspect.isclass(item) and issubclass(item, exceptions.StorageEngineError)
}
EXPECTATIONS = {expectation.name for suite in SUITES.values() for expectation, _ in suite}


def test_each_error_that_a_run_can_end_with_has_advice_and_nothing_else_has() -> None:
    assert ERRORS.keys() == ERROR_CLASSES


def test_each_rule_of_the_suites_has_advice_and_nothing_else_has() -> None:
    assert CHECKS.keys() == EXPECTATIONS


def test_each_reason_and_cause_is_in_words() -> None:
    assert REASONS.keys() == {reason.value for reason in Reason}
    assert CAUSES.keys() == {cause.value for cause in Cause}
    assert not any(REASONS[reason.value][1] for reason in DELETING)


@pytest.mark.parametrize("text", [*ERRORS.values(), *CHECKS.values()])
def test_advice_is_a_sentence_that_says_what_to_do(text: str) -> None:
    assert text[0].isupper()
    assert text.endswith(".")
    assert len(text) < 300


def test_what_nobody_foresaw_has_advice_too() -> None:
    assert error_advice("ZeroDivisionError") == OTHERWISE
    assert check_advice("ExpectColumnMaxToBeBetween") == CHECK_OTHERWISE
    assert (reason_words("because-of-the-moon"), reason_advice("because-of-the-moon")) == (
        "because-of-the-moon",
        "",
    )


def test_steps_have_words() -> None:
    assert all(words and words[0].islower() for words in STEPS.values())
