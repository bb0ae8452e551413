"""verify as a person sees it."""

from __future__ import annotations

import logging

import pytest


def test_of_a_sound_lake_nothing_is_said_but_the_result(
    cli, archived, caplog: pytest.LogCaptureFixture
) -> None:
    # Another test of this process may have imported Airflow, which lets libraries say what they load.
    caplog.set_level(logging.WARNING, "pyiceberg")
    done = cli("verify", "--lake", archived.lake, "--level", "bytes")
    assert (done.exit_code, done.err, caplog.messages) == (0, "", [])
