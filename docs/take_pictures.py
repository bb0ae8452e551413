"""Take the pictures of docs/pictures: runs on the sample store in a real Airflow, seen by a browser.

It takes some minutes, and needs Chromium. Look at the pictures before you commit them.
``take_console_pictures.py`` takes those of the console's page alone.

Usage: python docs/take_pictures.py [DIRECTORY]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Page, sync_playwright

from demo.dag_run import DagRun, DemoAirflow
from storage_engine.project.init import STORE_CONNECTION, init_project
from storage_engine.project.up import free_port, unpack_sample_store

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
WIDTH, HEIGHT = 1200, 800
RETENTION = f"storage_retention__{STORE_CONNECTION}"
MONITOR = f"storage_monitor__{STORE_CONNECTION}"
FORCED = f"storage_forced_cleanup__{STORE_CONNECTION}"
_SETTLE_MS = 3000
_RUN_MS = 300_000


def take_all(directory: Path) -> None:
    """Run the retention DAG on the sample store and take every picture."""
    PICTURES.mkdir(exist_ok=True)
    sample = unpack_sample_store(directory)
    project = init_project(directory, store_root=sample.root, broker_conf=sample.broker_conf)
    with DemoAirflow(project, free_port(), _say) as airflow:
        run = DagRun(airflow, RETENTION, _say)
        run.switch_on()
        DagRun(airflow, MONITOR, _say).switch_on()
        run.start()
        run.finish()
        report = Path(run.result("report")["report_html"])
        # As on the page of a reader, whose store is not in this directory.
        shown = report.with_name("shown.html")
        shown.write_text(report.read_text().replace(str(directory), "/data"))
        with sync_playwright() as playwright:
            # Root, as in containers, may not have Chromium's own sandbox; these pages are ours.
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--hide-scrollbars"]
            )
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            _log_in(page, airflow)
            _of_airflow(page, airflow.address, f"{airflow.address}/dags/{RETENTION}/runs/{quote(run.run_id)}")
            page.goto(shown.as_uri())
            _take(page, "report")


def take_console(directory: Path) -> None:
    """Take the picture of the console in the tab of a DAG, where somebody has started a dry run."""
    sys.path.insert(0, str(ROOT))
    from tests.walks.console_airflow import TAB, chromium, console, console_airflow, log_in

    with console_airflow(directory) as running, chromium() as browser:
        page = log_in(browser, running.address, "uma", width=WIDTH, height=HEIGHT)
        page.goto(f"{running.address}/dags/{RETENTION}/{TAB}")
        console(page).get_by_role("button", name="Clean up now").click()
        console(page).get_by_role("dialog").get_by_role("button", name="Start a dry run").click()
        console(page).get_by_text("This was a dry run").wait_for(timeout=_RUN_MS)
        _take(page, "console-act")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _take(page: Page, name: str) -> None:
    """Save what is seen as a picture, once the page has come to rest."""
    page.wait_for_timeout(_SETTLE_MS)
    page.screenshot(path=PICTURES / f"{name}.png")
    _say(f"{name}.png")


def _log_in(page: Page, airflow: DemoAirflow) -> None:
    page.goto(airflow.address)
    page.fill("input[name=username]", airflow.user)
    page.fill("input[name=password]", airflow.password)
    page.click("button[type=submit]")
    page.wait_for_url(f"{airflow.address}/")


def _of_airflow(page: Page, address: str, run: str) -> None:
    page.goto(f"{address}/dags")
    page.get_by_role("button", name="table view").click()
    page.get_by_text(RETENTION).first.wait_for()
    _take(page, "dags")
    page.goto(run)
    page.get_by_text("report").first.wait_for()
    _take(page, "dag-run")
    page.goto(f"{address}/dags/{FORCED}")
    page.get_by_role("button", name="Trigger").click()
    page.get_by_text("Dry run").first.wait_for()
    _take(page, "forced-cleanup")
    page.goto(f"{address}/connections")
    page.get_by_role("row").filter(has_text=STORE_CONNECTION).get_by_label("Edit Connection").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("Standard Fields").click()
    dialog.get_by_text("Store", exact=True).click()
    _take(page, "connection")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True)
        take_all(Path(sys.argv[1]).resolve())
        take_console(Path(sys.argv[1]).resolve() / "console")
    else:
        with tempfile.TemporaryDirectory() as made:
            take_all(Path(made).resolve())
            take_console(Path(made).resolve() / "console")
