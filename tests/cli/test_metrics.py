"""metrics, as alert.md shows it: a scrape by HTTP, a file for node_exporter, and what is refused."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.services.console_journal import write_journal


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    write_journal(f"sqlite:///{tmp_path / 'journal.db'}", ("orders",), days=1)
    return tmp_path


def test_a_file_for_node_exporter_has_every_store(cli, lake: Path, tmp_path: Path) -> None:
    (tmp_path / "textfile").mkdir()
    assert cli("metrics", "--lake", lake, "--textfile", tmp_path / "textfile").exit_code == 0
    (file,) = (tmp_path / "textfile").iterdir()
    assert file.name == "storage_engine.prom"
    assert (
        'storage_engine_disk_used_ratio{path="/data/orders/commitlog",store="orders"} 0.' in file.read_text()
    )


def test_a_file_says_that_a_journal_cannot_be_read(cli, lake: Path, tmp_path: Path) -> None:
    cli("metrics", "--lake", lake, "--textfile", tmp_path)
    (lake / "journal.db").write_bytes(b"not a journal" * 1000)
    assert cli("metrics", "--lake", lake, "--textfile", tmp_path).exit_code == 1
    text = (tmp_path / "storage_engine.prom").read_text()
    assert "storage_engine_journal_readable{" in text
    assert "} 0.0" in text
    assert "orders" not in text


def test_prometheus_is_answered_until_sigterm(lake: Path) -> None:
    words = ["metrics", "orders", "--lake", str(lake), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", "from storage_engine.cli import main; main()", *words],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        with urllib.request.urlopen(address, timeout=60) as answer:
            text = answer.read().decode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert 'storage_engine_retention_seconds{store="orders"} ' in text


def test_what_cannot_be_served_is_refused_before_it_starts(cli, lake: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = cli("metrics", "--lake", lake, "--listen", f"127.0.0.1:{port}")
    assert (refused.exit_code, "Nothing was started" in refused.err) == (2, True)
    for words, told in (
        (("--listen", "0.0.0.0:9464"), "expected TLS where other hosts connect"),
        (("nobody", "--listen", "127.0.0.1:0"), "store nobody: expected one of this name"),
        (("--listen", "here"), "expected HOST:PORT, found 'here'"),
        ((), "Expected either --listen HOST:PORT or --textfile DIRECTORY"),
    ):
        refused = cli("metrics", "--lake", lake, *words)
        assert (refused.exit_code, told in refused.err) == (2, True), refused
