"""metrics, as alert.md shows it: a scrape by HTTP, a file for node_exporter, and what is refused."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml

from storage_engine.cli.options.stores_file import VARIABLE
from storage_engine.core.clock import clock_ms
from storage_engine.journal.journal import Journal
from storage_engine.project.up import free_port
from tests.docs.code_blocks import ROOT
from tests.services.console_journal import write_journal
from tests.services.hanging_disk import hanging_disk

RULES = ROOT / "docs" / "prometheus-alerts.yml"


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
    said = cli("metrics", "--lake", lake, "--textfile", tmp_path)
    assert (said.exit_code, said.out) == (1, "")
    assert said.err.count("the journal can't be read") == 1
    text = (tmp_path / "storage_engine.prom").read_text()
    assert "storage_engine_journal_readable{" in text
    assert "} 0.0" in text
    assert "orders" not in text


@contextmanager
def listening(*words: object) -> Iterator[str]:
    """Run the command, and give its address; it ends well by SIGTERM."""
    process = subprocess.Popen(
        [
            sys.executable, "-u", "-c", "from storage_engine.cli.main import main; main()",
            "metrics", *map(str, words), "--listen", "127.0.0.1:0",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    with process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def answer_of(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def test_prometheus_is_answered_until_sigterm(lake: Path) -> None:
    with listening("orders", "--lake", lake) as said:
        assert said.startswith("Metrics of 1 journal: http://")
        text = answer_of(said.split()[-1])
    assert 'storage_engine_retention_seconds{store="orders"} ' in text


def test_other_hosts_are_answered_by_tls(lake: Path, tmp_path: Path) -> None:
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate]
    subprocess.run([*made, *names], check=True, capture_output=True)
    with listening("--lake", lake, "--tls-cert", certificate, "--tls-key", key) as said:
        address = said.split()[-1]
        assert address.startswith("https://")
        context = ssl.create_default_context(cafile=str(certificate))
        with urllib.request.urlopen(address, timeout=60, context=context) as answer:
            assert b"storage_engine_retention_seconds" in answer.read()
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            answer_of(address)


def test_a_store_whose_disk_hangs_holds_up_no_scrape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, url = tmp_path / "lake", f"sqlite:///{tmp_path / 'lake' / 'journal.db'}"
    lake.mkdir()
    write_journal(url, ("orders",), days=1)
    with hanging_disk(tmp_path / "disk") as disk:
        journal = Journal(url)
        record = journal.add_store(str(disk / "store"), "rocketmq", name="hangs")
        journal.add_sample(record.store_id, (), clock_ms(), None)
        stores = tmp_path / "stores.toml"
        stores.write_text(f'[hangs]\nroot = "{disk}/store"\nlake = "{lake}"\n')
        monkeypatch.setenv(VARIABLE, str(stores))
        with listening() as said:
            text = answer_of(said.split()[-1])
    assert 'storage_engine_look_timestamp_seconds{store="hangs"} ' in text
    assert 'storage_engine_retention_seconds{store="orders"} ' in text


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
def test_prometheus_fires_the_alerts_of_the_docs(lake: Path, tmp_path: Path) -> None:
    subprocess.run(["promtool", "check", "rules", str(RULES)], check=True, capture_output=True)
    with listening("--lake", lake) as said:
        target = said.split()[-1].removeprefix("http://").removesuffix("/metrics")
        # JSON is YAML. Rules are looked at as often as stores are asked, and not once a minute.
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [{"job_name": "stores", "static_configs": [{"targets": [target]}]}],
        }
        (tmp_path / "prometheus.yml").write_text(json.dumps(config))
        address = f"127.0.0.1:{free_port()}"
        words = {"config.file": tmp_path / "prometheus.yml", "storage.tsdb.path": tmp_path / "tsdb"}
        options = [f"--{name}={value}" for name, value in {**words, "web.listen-address": address}.items()]
        with subprocess.Popen(["prometheus", *options], stderr=subprocess.DEVNULL) as prometheus:
            try:
                fired = firing(f"http://{address}/api/v1/alerts")
            finally:
                prometheus.terminate()
    # Of the store in trouble a group loses messages within 5 hours, which doctor finds, too.
    assert {("StoreUrgent", "orders"), ("StoreReadersLose", "orders")} <= fired
    assert "JournalUnreadable" not in {name for name, _ in fired}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")
def test_an_alert_tells_of_a_store_that_is_sampled_and_that_no_monitor_looks_at(tmp_path: Path) -> None:
    look, alarms = (f"storage_engine_{it}" for it in ("look_timestamp_seconds", "alarms"))
    series = {
        f'{look}{{store="a"}}': "1+0x30",
        f'{look}{{store="b"}}': "1+0x30",
        f'{alarms}{{store="b"}}': "0+0x30",
    }
    (annotations,) = (
        rule["annotations"]
        for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
        if rule["alert"] == "StoreNotMonitored"
    )
    told = {name: text.replace("{{ $labels.store }}", "a") for name, text in annotations.items()}
    expected = {"eval_time": "20m", "alertname": "StoreNotMonitored"}
    alerts = [{"exp_labels": {"store": "a"}, "exp_annotations": told}]
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{**expected, "exp_alerts": alerts}, {**expected, "eval_time": "10m"}],
    }
    (tmp_path / "rules.json").write_text(json.dumps({"rule_files": [str(RULES)], "tests": [case]}))
    command = ["promtool", "test", "rules", str(tmp_path / "rules.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def firing(address: str) -> set[tuple[str, str]]:
    """Return the alerts that fire, with their stores, once any does."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with suppress(OSError):
            found = json.loads(answer_of(address))["data"]["alerts"]
            if fired := [one["labels"] for one in found if one["state"] == "firing"]:
                return {(one["alertname"], one.get("store", "")) for one in fired}
        time.sleep(0.5)
    raise AssertionError("no alert fires")


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
