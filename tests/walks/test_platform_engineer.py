"""A platform engineer with an Airflow of their own: by its pages, its API and one page of the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from storage_engine.project.up import unpack_sample_store
from tests.docs.code_blocks import ROOT, blocks_of, commands_of
from tests.services.newcomer import Newcomer
from tests.walks.own_airflow import OwnAirflow, eventually

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.timeout(1800)]

PAGE = "airflow.md"
CONN_ID = "orders"
FORCED = f"storage_forced_cleanup__{CONN_ID}"


def commands(page: str, containing: str) -> list[str]:
    """Return the commands of a page that contain some words, as they stand there."""
    lines = [
        command.line
        for block in blocks_of(ROOT / "docs" / page)
        if block.language == "console"
        for command in commands_of(block)
    ]
    found = [line for line in lines if containing in line]
    assert found, f"{page}: no command has {containing!r}"
    return found


def _ended(state: str) -> str | None:
    return state if state in ("success", "failed") else None


def test_an_own_airflow_comes_to_its_first_proven_deletion(tmp_path: Path, wheels: Path) -> None:
    engineer = Newcomer(tmp_path / "home", wheels)
    sample = unpack_sample_store(tmp_path / "data")
    airflow = OwnAirflow(engineer)
    engineer.installs("apache-airflow")
    engineer.types("airflow db migrate")
    # What was there before begins no walk.
    engineer.commands.clear()
    engineer.seconds.clear()

    engineer.reads(PAGE)
    (install,) = commands(PAGE, "pip install airflow-provider")
    engineer.installs(*re.findall(r"airflow-provider-storage-engine", install))
    (init,) = (line for line in commands(PAGE, "init --airflow") if "--edge" not in line)
    init = init.replace("/data/rocketmq/store", str(sample.root))
    init = init.replace("/opt/rocketmq/conf/broker.conf", str(sample.broker_conf))
    said = engineer.types(f"{init} --yes")
    assert f"airflow connections add {CONN_ID}" in said.replace("\\\n", "") or CONN_ID in said

    with airflow.running() as api, airflow.browser() as page:
        page.goto(f"{airflow.address}/connections")
        page.get_by_role("button", name="Add Connection").click()
        page.locator("input[name=connection_id]").fill(CONN_ID)
        page.get_by_role("combobox").first.click()
        page.get_by_text("Storage Engine", exact=True).click()
        page.get_by_role("dialog").get_by_text("Store", exact=True).click()
        page.locator("input[name='element_root']").fill(str(sample.root))
        page.locator("input[name='element_broker_conf']").fill(str(sample.broker_conf))
        page.get_by_role("button", name="Save").click()
        eventually("the connection is there", lambda: api.get(f"/api/v2/connections/{CONN_ID}"))

        for line in commands(PAGE, "init-lake --conn-id"):
            engineer.types(f"{line} --allow-same-disk")
        for line in commands(PAGE, "airflow connections test"):
            engineer.types(line)
        eventually("the DAGs are parsed", lambda: api.get(f"/api/v2/dags/{FORCED}"))
        engineer.types(commands(PAGE, f"unpause {FORCED}")[0])
        engineer.types(commands(PAGE, f"trigger {FORCED}")[0])
        dry_run = eventually("the dry run begins", lambda: api.first_run(FORCED))
        assert eventually("the dry run ends", lambda: _ended(api.run_state(FORCED, dry_run))) == "success"
        assert sample.old[0].exists()

        run = api.trigger(FORCED, {"reason": "first deletion", "dry_run": False})
        assert eventually("the run ends", lambda: _ended(api.run_state(FORCED, run))) == "success"
        assert not sample.old[0].exists()

        page.goto(f"{airflow.address}/dags/{FORCED}/runs/{run}/tasks/release/details")
        page.get_by_role("link", name="Report", exact=True).click()
        page.get_by_text("were archived, proven and deleted").wait_for()

    engineer.summary("platform-engineer")
