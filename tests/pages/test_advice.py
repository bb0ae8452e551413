"""Whatever a report can say went wrong has advice, and no advice is for what nothing says."""

from __future__ import annotations

import inspect
import re

import pytest

from storage_engine import exceptions
from storage_engine.brokers import broker_names, find_broker
from storage_engine.model.broker.broker_words import BrokerWords
from storage_engine.model.plan import DELETING, Cause, Reason
from storage_engine.pages.advice import (
    CAUSES,
    CHECK_OTHERWISE,
    CHECKS,
    ERRORS,
    OTHERWISE,
    REASONS,
    cause_words,
    check_advice,
    error_advice,
    reason_advice,
    reason_words,
)
from storage_engine.pages.figures import STEPS
from storage_engine.quality import expectation_rules

ERROR_CLASSES = {
    name
    for name, item in vars(exceptions).items()
    if inspect.isclass(item) and issubclass(item, exceptions.StorageEngineError)
}
EXPECTATIONS = {expectation.name for expectation in expectation_rules.EXPECTATIONS.values()}


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


@pytest.mark.parametrize("name", broker_names())
def test_a_broker_has_words_for_what_can_happen_and_for_nothing_else(name: str) -> None:
    words = find_broker(name).words
    assert words.errors.keys() <= ERROR_CLASSES
    assert words.checks.keys() <= EXPECTATIONS
    assert words.causes.keys() <= CAUSES.keys()
    for text in (*words.errors.values(), *words.checks.values()):
        test_advice_is_a_sentence_that_says_what_to_do(text)


def test_words_of_a_broker_come_before_those_for_any() -> None:
    words = BrokerWords(causes={"time-up": "noon"}, errors={"BrokerError": "e"}, checks={"ExpectX": "c"})
    assert (cause_words("time-up", words), cause_words("manual", words)) == ("noon", CAUSES["manual"])
    assert (error_advice("BrokerError", words), check_advice("ExpectX", words)) == ("e", "c")


def test_what_fits_any_broker_has_the_words_of_none() -> None:
    ours = r"deleteWhen|broker\.conf|consume ?queue|mappedFileSize|commitlog|server\.properties|log\.dirs"
    texts = [*ERRORS.values(), *CHECKS.values(), *CAUSES.values(), *(str(text) for text in REASONS.values())]
    assert [text for text in texts if re.search(ours, text, re.I)] == []


def test_what_nobody_foresaw_has_advice_too() -> None:
    assert error_advice("ZeroDivisionError", BrokerWords()) == OTHERWISE
    assert check_advice("ExpectColumnMaxToBeBetween", BrokerWords()) == CHECK_OTHERWISE
    assert cause_words("full-moon", BrokerWords()) == "full-moon"
    assert (reason_words("because-of-the-moon"), reason_advice("because-of-the-moon")) == (
        "because-of-the-moon",
        "",
    )


def test_steps_have_words() -> None:
    assert all(words and words[0].islower() for words in STEPS.values())
