"""What a terminal of 80 columns shows, by the installed command."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sysconfig
import termios
from pathlib import Path

import pytest

from tests.rounds import later

pytestmark = pytest.mark.slow

COMMAND = Path(sysconfig.get_path("scripts")) / "storage-engine"
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def _shown(*words: object, **environment: str) -> tuple[str, int]:
    """Run a command in a terminal of 80 columns; returns all that it shows, and its exit code."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    names = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"}
    kept = {name: value for name, value in os.environ.items() if name not in names}
    process = subprocess.Popen(
        [str(COMMAND), *map(str, words)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=kept | {"TERM": "xterm-256color"} | environment,
    )
    os.close(theirs)
    chunks = []
    while True:
        try:
            chunks.append(os.read(ours, 65536))
        except OSError:  # nobody has the other end any more
            break
    os.close(ours)
    return b"".join(chunks).decode().replace("\r\n", "\n"), process.wait()


@pytest.mark.again
def test_what_goes_next_is_shown_for_every_queue(archived) -> None:
    text, code = _shown("lag", archived.store, "--set", "fileReservedTime=1")
    lines = ESCAPE.sub("", text).splitlines()
    assert code == 0
    start = next(at for at, line in enumerate(lines) if line.strip().startswith("group"))
    assert lines[start].endswith("next one goes")
    rows = lines[start + 1 : lines.index("", start)]
    assert rows
    assert max(len(line) for line in rows) <= 80
    assert [row for row in rows if "orders/" in row and not row.endswith(("now", "by hand"))] == []


def test_a_plan_fits_and_says_one_reason_once(archived) -> None:
    text, code = _shown("plan", archived.store, "--set", "deleteWhen=99")
    lines = ESCAPE.sub("", text).splitlines()
    assert code == 0
    first = next(at for at, line in enumerate(lines) if line.startswith("commitlog"))
    assert lines[first + 1].split()[1:4] == [f"{0:020d}", "…", f"{6 << 20:020d}"]
    assert max(len(line) for line in lines[first:]) <= 80
    assert sum("no-cause" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("environment", "coloured"), [pytest.param({}, True, marks=pytest.mark.again), ({"NO_COLOR": "1"}, False)]
)
def test_colour_is_for_terminals_that_want_it(archived, tmp_path, environment, coloured: bool) -> None:
    refused, code = _shown("plan", tmp_path / "none", **environment)
    assert (code, "\x1b[31m" in refused) == (2, coloured)
    checked, code = _shown("verify", "--lake", archived.lake, "--level", "receipts", **environment)
    assert (code, "\x1b[32mOK" in checked) == (0, coloured)
    assert coloured or not ESCAPE.search(re.sub(r"\x1b\[1m|\x1b\[0m", "", refused))


@pytest.mark.again
def test_long_work_shows_how_far_it_is_and_leaves_no_trace(store, lake) -> None:
    text, code = _shown("archive", store, "--lake", lake, "--archive-bytes-per-second", "2MB")
    assert code == 0
    bar = ESCAPE.sub("", text)
    # Its rate and the time left are known once a segment is done.
    assert re.search(r"Archiving \S+ \d\.0/2\.0 MiB (?:\?|[\d.]+ \w+/s) \S+", bar)
    assert "\x1b[2K" in text


@pytest.mark.again
def test_what_has_parts_shows_how_far_each_is(archived) -> None:
    text, code = _shown("inspect", archived.store, "--messages")
    assert code == 0
    assert re.search(r"Reading messages \S+ ([\d.]+)/\1 MiB \S+(?: \w+/s)? \S+", ESCAPE.sub("", text))
    text, code = _shown("lag", archived.store)
    assert code == 0
    assert re.search(r"Measuring lag \S+ (\d+)/\1 positions \S+ \S+", ESCAPE.sub("", text))


@pytest.mark.parametrize("option", ["--json", *later("--quiet")])
def test_who_wants_no_words_gets_no_progress(archived, option: str) -> None:
    text, code = _shown("inspect", archived.store, "--messages", option)
    assert (code, "Reading" in text, "\x1b" in text) == (0, False, False)


def test_a_file_gets_no_progress(cli, store, lake) -> None:
    done = cli("archive", store, "--lake", lake)
    assert (done.exit_code, done.err) == (0, "")
