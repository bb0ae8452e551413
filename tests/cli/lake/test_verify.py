"""verify as a person sees it."""

from __future__ import annotations

import pytest


def test_of_a_sound_lake_nothing_is_said_but_the_result(
    cli, archived, caplog: pytest.LogCaptureFixture
) -> None:
    done = cli("verify", "--lake", archived.lake, "--level", "bytes")
    assert (done.exit_code, done.err, caplog.messages) == (0, "", [])
