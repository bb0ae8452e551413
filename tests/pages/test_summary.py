"""What is sent by mail: short, whole in itself, and the same as the page says."""

from __future__ import annotations

import re
from typing import Any

import pytest

from storage_engine.model.report.validation import Status
from storage_engine.pages.summary import LINES, summary_html, summary_subject, summary_text
from storage_engine.retention.report.report import Outcome, StepReport
from tests.pages.reports import NOTHING, plain, unread, validation

LONG = "g" * 255
BAD = {
    "outcome": Outcome.FAILED,
    "validation": validation(Status.FAILURE),
    "steps": tuple(
        StepReport(step, False, None, f"OSError: {'x' * 9000}") for step in ("plan", "lag", "release")
    ),
    "alarms": tuple(f"alarm {i}" for i in range(50)),
    "unread": unread(group=LONG),
    "unread_lines": ("x",),
}


@pytest.mark.parametrize("report", [plain(), plain(NOTHING), plain(**BAD)])
def test_it_is_short(report: dict[str, Any]) -> None:
    text = summary_text(report)
    assert len(text.splitlines()) <= LINES
    assert all(len(line) < 340 for line in text.splitlines())
    assert len(summary_html(report).encode()) < 20_000
    assert "\n" not in summary_subject(report)
    assert report["run_key"] in text


def test_it_says_what_the_page_says_first() -> None:
    report = plain(unread=unread(), unread_lines=("x",))
    text, html = summary_text(report, link="https://x/report"), summary_html(report, link="https://x/report")
    assert summary_subject(report).startswith("Done: orders: 2 segments (2.0 MiB) were archived")
    assert text.startswith("Done: orders\n2 segments (2.0 MiB) were archived, proven and deleted")
    for said in ("1 consumer group missed 51 messages", "9.2 s", "in the lake file:///lake/warehouse"):
        assert said in text
        assert said in html
    assert text.endswith("Report: https://x/report\n")
    assert 'href="https://x/report"' in html


def test_a_failure_says_what_to_do() -> None:
    report = plain(**BAD)
    assert "Read the error and correct its cause" in summary_text(report)
    assert "And 51 more problems: see the report." in summary_text(report)
    assert "What to do: Read the error" in summary_html(report)


def test_the_html_needs_no_network_and_no_style_sheet() -> None:
    html = summary_html(plain(**BAD))
    assert not re.search(r"<(?:script|img|link|style|svg|iframe)\b|url\(|class=", html)
    assert "<table role=" in html


def test_what_others_named_changes_neither_form() -> None:
    report = plain(store="<img src=x>\r\nBcc: all", alarms=("\x1b[2J<script>alert(1)</script>",))
    assert "\r" not in summary_subject(report)
    assert "\n" not in summary_subject(report)
    assert "\x1b" not in summary_text(report)
    assert "<script>" not in summary_html(report)
    assert "<img" not in summary_html(report)
