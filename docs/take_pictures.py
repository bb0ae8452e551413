"""Take the pictures of docs/pictures: a run on the sample store in a real Airflow, seen by a browser.

It takes some minutes, and needs chromium and chromedriver. Look at the pictures before you commit them.

Usage: python docs/take_pictures.py [DIRECTORY]
"""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests

from storage_engine.project.dag_run import DagRun
from storage_engine.project.init import STORE_CONNECTION, Project, init_project
from storage_engine.project.local_airflow import LocalAirflow
from storage_engine.project.sample import unpack_sample_store
from storage_engine.project.up import free_port

PICTURES = Path(__file__).resolve().parent / "pictures"
WIDTH, HEIGHT = 1200, 900
RETENTION = f"storage_retention__{STORE_CONNECTION}"
FORCED = f"storage_forced_cleanup__{STORE_CONNECTION}"
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key under which WebDriver names an element."""
_PATIENCE_SECONDS = 60.0


class Browser:
    """A headless Chromium, driven as W3C's WebDriver says."""

    def __init__(self, driver: str) -> None:
        arguments = ["--headless=new", "--no-sandbox", "--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}"]
        options = {"goog:chromeOptions": {"args": arguments}}
        made = requests.post(f"{driver}/session", json={"capabilities": {"alwaysMatch": options}}, timeout=60)
        made.raise_for_status()
        self._session = f"{driver}/session/{made.json()['value']['sessionId']}"

    def _post(self, path: str, **body: Any) -> Any:
        answer = requests.post(f"{self._session}/{path}", json=body, timeout=60)
        answer.raise_for_status()
        return answer.json()["value"]

    def open(self, address: str) -> None:
        self._post("url", url=address)

    def find(self, xpath: str) -> str:
        """Return an element once it is there."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            found = self._post("elements", using="xpath", value=xpath)
            if found:
                return str(found[0][_ELEMENT])
            if time.monotonic() > deadline:
                raise TimeoutError(f"{xpath}: expected it on the page, found nothing. Has Airflow changed?")
            time.sleep(0.3)

    def click(self, xpath: str) -> None:
        self._post(f"element/{self.find(xpath)}/click")

    def write(self, xpath: str, text: str) -> None:
        self._post(f"element/{self.find(xpath)}/value", text=text)

    def take(self, name: str, *, settle_seconds: float = 3.0) -> None:
        """Save what is seen as a picture, once the page has come to rest."""
        time.sleep(settle_seconds)
        answer = requests.get(f"{self._session}/screenshot", timeout=60)
        answer.raise_for_status()
        (PICTURES / f"{name}.png").write_bytes(base64.b64decode(answer.json()["value"]))

    def close(self) -> None:
        requests.delete(self._session, timeout=60)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


@contextmanager
def browser() -> Iterator[Browser]:
    """Run a browser and what drives it; neither lives on."""
    port = free_port(9515)
    driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                requests.get(f"http://127.0.0.1:{port}/status", timeout=5)
                break
            except requests.ConnectionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        opened = Browser(f"http://127.0.0.1:{port}")
        try:
            yield opened
        finally:
            opened.close()
    finally:
        driver.terminate()
        driver.wait()


def take_all(directory: Path) -> None:
    """Run the retention DAG on the sample store and take every picture."""
    PICTURES.mkdir(exist_ok=True)
    sample = unpack_sample_store(directory)
    project = init_project(directory, store_root=sample.root, broker_conf=sample.broker_conf)
    with LocalAirflow(project, free_port(), _say, is_edited=False) as airflow:
        run = DagRun(airflow, RETENTION, _say)
        run.start()
        run.finish()
        report = Path(run.result("report")["report_html"])
        with browser() as seen:
            _of_airflow(seen, airflow, run)
            _of_report(seen, report, project)


def _of_airflow(seen: Browser, airflow: LocalAirflow, run: DagRun) -> None:
    seen.open(airflow.address)
    seen.write("//input[@name='username']", airflow.user)
    seen.write("//input[@name='password']", airflow.password)
    seen.click("//button[@type='submit']")
    seen.find("//*[contains(text(), 'Dags')]")
    seen.open(f"{airflow.address}/dags")
    seen.find(f"//*[text()='{RETENTION}']")
    seen.click("//button[contains(translate(@aria-label, 'T', 't'), 'table')]")
    seen.take("dags")
    seen.open(f"{airflow.address}/dags/{RETENTION}/runs/{quote(run._run_id, safe='')}")
    seen.find("//*[contains(text(), 'report')]")
    seen.take("dag-run")
    seen.open(f"{airflow.address}/dags/{FORCED}")
    seen.click("//button[contains(., 'Trigger')]")
    seen.find("//*[contains(text(), 'Dry run')]")
    seen.take("forced-cleanup")
    seen.open(f"{airflow.address}/connections")
    seen.find(f"//*[text()='{STORE_CONNECTION}']")
    seen.click(f"//tr[.//*[text()='{STORE_CONNECTION}']]//button[@aria-label='Edit Connection']")
    seen.find("//*[@role='dialog']")
    seen.click("//*[@role='dialog']//*[text()='Standard Fields']")
    seen.take("connection")


def _of_report(seen: Browser, report: Path, project: Project) -> None:
    shown = report.read_text().replace(str(project.home), "/data")
    copy = report.with_name("shown.html")
    copy.write_text(shown)
    seen.open(copy.as_uri())
    seen.take("report", settle_seconds=1.0)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True)
        take_all(Path(sys.argv[1]).resolve())
    else:
        with tempfile.TemporaryDirectory() as made:
            take_all(Path(made).resolve())
