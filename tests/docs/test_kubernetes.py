"""deploy/kubernetes: valid by Kubernetes' own schemas, locked down, and of commands that this release has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from storage_engine.cli.main import cli
from storage_engine.rocketmq.format.broker_config import load_broker_config

DIRECTORY = Path(__file__).parents[2] / "deploy" / "kubernetes"
KUSTOMIZATION = yaml.safe_load((DIRECTORY / "kustomization.yaml").read_text())
VERSIONS = ("1.29", "1.37")


def documents(kind: str = "") -> Iterator[dict[str, Any]]:
    for name in KUSTOMIZATION["resources"]:
        for found in yaml.safe_load_all((DIRECTORY / name).read_text()):
            if kind in ("", found["kind"]):
                yield found


def executor() -> dict[str, Any]:
    (found,) = documents("ConfigMap")
    return {**yaml.safe_load(found["data"]["executor.yaml"]), "metadata": {"name": "executor"}}


def pods() -> list[dict[str, Any]]:
    return [executor()["spec"], *(it["spec"]["template"]["spec"] for it in documents("StatefulSet"))]


def containers() -> list[dict[str, Any]]:
    return [it for pod in pods() for it in (*pod.get("initContainers", ()), *pod["containers"])]


def test_every_manifest_is_named_and_valid() -> None:
    named = {*KUSTOMIZATION["resources"], "kustomization.yaml"}
    assert named == {path.name for path in DIRECTORY.glob("*.yaml")}
    for version in VERSIONS:
        for found in (*documents(), executor()):
            kubernetes_validate.validate(found, version, strict=True)
    broken = {**next(documents("Service")), "sepc": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[0], strict=True)


def test_no_container_runs_as_root_or_writes_its_root() -> None:
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["automountServiceAccountToken"] is False
    for one in containers():
        context = one["securityContext"]
        assert (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"]) == (True, False)
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert one["resources"].keys() == {"requests", "limits"}


def test_what_runs_on_has_a_probe_and_what_listens_says_when_it_does() -> None:
    for pod in pods()[1:]:
        for one in pod["containers"]:
            assert "livenessProbe" in one
            is_served = one.get("ports") and one["name"] != "edge-worker"
            assert ("readinessProbe" in one) is bool(is_served)


def test_volumes_and_ports_are_those_that_are_there() -> None:
    (found,) = documents("StatefulSet")
    pod = found["spec"]["template"]["spec"]
    there = {it["name"] for it in pod["volumes"]}
    there |= {it["metadata"]["name"] for it in found["spec"]["volumeClaimTemplates"]}
    assert {
        it["name"] for one in (*pod["initContainers"], *pod["containers"]) for it in one["volumeMounts"]
    } == there
    ports = {it["name"]: it["containerPort"] for one in pod["containers"] for it in one.get("ports", ())}
    (service,) = documents("Service")
    assert {it["targetPort"]: it["port"] for it in service["spec"]["ports"]} == ports
    (policy,) = documents("NetworkPolicy")
    allowed = [it["port"] for rule in policy["spec"]["ingress"] for it in rule["ports"]]
    assert sorted(allowed) == sorted(ports)
    (configured,) = documents("ConfigMap")
    spark = dict(line.split(None, 1) for line in configured["data"]["spark.conf"].splitlines())
    assert (int(spark["spark.driver.port"]), int(spark["spark.driver.blockManager.port"])) == (
        ports["driver"],
        ports["blocks"],
    )


def test_only_who_may_write_the_store_can() -> None:
    mounts = {
        one["name"]: it.get("readOnly", False)
        for one in containers()
        for it in one["volumeMounts"]
        if it["name"] == "store"
    }
    assert mounts == {"broker": False, "watch": False, "agent": True, "edge-worker": False}


def test_the_commands_are_those_of_this_release() -> None:
    ours = [it["command"][1:] for it in containers() if it.get("command", [""])[0] == "storage-engine"]
    assert {words[0] for words in ours} == {"watch", "agent", "metrics"}
    for name, *words in ours:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        known = {option for it in command.params for option in it.opts}
        assert {word for word in words if word.startswith("--")} <= known
        listened = [word.rpartition(":")[2] for word in words if word.startswith("0.0.0.0:")]
        (one,) = (it for it in containers() if it["name"] == name)
        assert listened == [str(it["containerPort"]) for it in one.get("ports", ())]


def test_the_broker_has_its_store_on_the_volume() -> None:
    config = load_broker_config(DIRECTORY / "broker.conf", root=None)
    (store,) = (it["mountPath"] for it in containers()[2]["volumeMounts"] if it["name"] == "store")
    assert str(config.store_path_root_dir).startswith(f"{store}/")
