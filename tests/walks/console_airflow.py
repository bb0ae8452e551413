"""An Airflow of four components with a store that was cleaned, people of each role, and their browsers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, FrameLocator, Page, sync_playwright

from demo.dag_run import DagRun, DemoAirflow
from storage_engine.project.init import (
    STORE_CONNECTION,
    Project,
    init_project,
    store_definition,
    store_fields,
)
from storage_engine.project.up import SampleStore, free_port, unpack_sample_store
from tests.services.console_journal import write_journal

RETENTION, MONITOR, FORCED = (
    f"storage_{kind}__{STORE_CONNECTION}" for kind in ("retention", "monitor", "forced_cleanup")
)
PEOPLE = {"admin": "admin", "otto": "op", "uma": "user", "vera": "viewer"}
"""Roles of Airflow's own auth manager, by who has them; each has their name as password."""
PAST = ("orders", "payments", "audit")
"""Stores whose journal goes back for months; their own DAGs are off."""
OTHERS_DAG = "settle_orders"
CONSOLE = "/plugin/storage-engine"
TAB = "plugin/storage-engine-store"
_OTHERS = f"from airflow.sdk import DAG\n\nwith DAG({OTHERS_DAG!r}, schedule=None):\n    pass\n"


@dataclass(frozen=True)
class ConsoleAirflow:
    """An Airflow that runs, and the run that cleaned its store."""

    airflow: DemoAirflow
    sample: SampleStore
    run_id: str

    @property
    def address(self) -> str:
        return self.airflow.address


@contextmanager
def console_airflow(directory: Path) -> Iterator[ConsoleAirflow]:
    """Start it, let the store be looked at and cleaned by its DAGs, and stop it at the end."""
    sample = unpack_sample_store(directory / "sample")
    project = init_project(
        directory / "project",
        store_root=sample.root,
        broker_conf=sample.broker_conf,
        fields={"spark_conn_id": None},
    )
    _add_past(project, directory)
    listed = ",".join(f"{name}:{role}" for name, role in PEOPLE.items())
    settings = project.settings_file.read_text().replace("admin:admin", listed)
    settings = settings.replace(
        f"stores = {STORE_CONNECTION}", f"stores = {','.join((STORE_CONNECTION, *PAST))}"
    )
    project.settings_file.write_text(settings)
    project.passwords_file.write_text(json.dumps({name: name for name in PEOPLE}))
    (project.home / "dags" / "others.py").write_text(_OTHERS)
    with DemoAirflow(project, free_port(0), print) as airflow:
        run = DagRun(airflow, RETENTION, print)
        run.switch_on()
        DagRun(airflow, MONITOR, print).switch_on()
        run.start()
        assert run.finish() == "success"
        yield ConsoleAirflow(airflow, sample, run.run_id)


def _add_past(project: Project, directory: Path) -> None:
    """Add stores that have run for months, by a journal of their own."""
    url = f"sqlite:///{directory / 'past.db'}"
    write_journal(url, PAST)
    connections = json.loads(project.connections_file.read_text())
    for name in PAST:
        fields = {**store_fields(Path("/data") / name, None, "Asia/Shanghai"), "journal_url": url}
        connections[name] = store_definition(fields)
    project.connections_file.write_text(json.dumps(connections))


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Root, as in containers, may not have Chromium's own sandbox; these pages are ours.
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-gpu", "--hide-scrollbars"],
        )
        yield browser
        browser.close()


def log_in(browser: Browser, address: str, name: str, *, width: int = 1280, height: int = 900) -> Page:
    """Open Airflow as somebody."""
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto(address)
    page.locator("input[name=username]").fill(name)
    page.locator("input[name=password]").fill(name)
    page.locator("button[type=submit]").click()
    page.wait_for_url(f"{address}/")
    return page


def console(page: Page) -> FrameLocator:
    """Return the console's document in Airflow's page."""
    return page.frame_locator("iframe[title=Retention]")
