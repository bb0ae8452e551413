"""A broker's host, a Spark cluster and an object store that reach each other by a slow network alone.

Each has its network namespace. Executors see no file of the store, whose mode is 700. Its owner runs
the edge worker and the command line on the broker's host. A user who may read any file and write none
runs the agent.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import random
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.soundness.receipts import list_stores, receipts
from tests.integration.edge_airflow import EdgeAirflow
from tests.integration.object_store import ObjectStore, object_store
from tests.integration.postgres import postgres
from tests.integration.secured import certificate
from tests.integration.server import Server, free_port, listens
from tests.integration.spark_cluster import SHORT_LIVED_JVM, standalone
from tests.rounds import rounds

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.timeout(3600)]

LAKE, BROKER, SPARK, AIRFLOW = "10.77.0.1", "10.77.0.2", "10.77.1", "10.77.2.1"
AGENT_PORT = 7443
ROOT = Path(__file__).parents[2]
PROGRAM = str(Path(sysconfig.get_path("scripts"), "storage-engine"))
OWNER, READER = "nobody", "daemon"
KILLS = rounds("STORAGE_ENGINE_NAMESPACE_KILLS", 4, 20)
VICTIMS = ("agent", "executor", "driver", "link")


def run(*words: object) -> str:
    return subprocess.run([*map(str, words)], check=True, capture_output=True, text=True).stdout


def inside(namespace: str, *words: object) -> list[str]:
    return ["ip", "netns", "exec", namespace, *map(str, words)]


def without(stores: Path) -> list[str]:
    """Return the words of a command that runs another one, which finds no store."""
    return ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(stores)]


def as_user(user: str, work: Path, *more: str) -> list[str]:
    """Return the words of a command that runs another one as a user, who finds Python and what a test makes.

    Of directories that are closed to others, as root's home is, there is nothing else in its mount namespace.

    :param more: options of setpriv.
    """
    needed = [Path(each).resolve() for each in (sys.base_prefix, sys.prefix, ROOT, work)]
    is_closed = {path: [it for it in path.parents if not it.stat().st_mode & 1][-1:] for path in needed}
    hidden = {path: closed[0] for path, closed in is_closed.items() if closed}
    lines = ["mount -t tmpfs none /mnt"]
    for number, path in enumerate(hidden):
        lines.append(f"mkdir /mnt/{number} && mount --bind {path} /mnt/{number}")
    lines += [f"mount -t tmpfs -o mode=755 none {directory}" for directory in sorted(set(hidden.values()))]
    for number, path in enumerate(hidden):
        lines.append(f"mkdir -p {path} && mount --move /mnt/{number} {path}")
    group = grp.getgrgid(pwd.getpwnam(user).pw_gid).gr_name
    ids = (f"--reuid={user}", f"--regid={group}", "--clear-groups", *more)
    script = "\n".join([*lines, 'exec "$@"'])
    return ["unshare", "-m", "sh", "-ec", script, "sh", "setpriv", *ids, "env", f"HOME={work / user}"]


@contextmanager
def network() -> Iterator[None]:
    """A bridge here, and namespaces for the broker's host, Spark and Airflow, each with 50 MB/s."""
    names = {
        "se-broker": [f"{BROKER}/16"],
        "se-spark": [f"{SPARK}.{number}/16" for number in (1, 2, 3)],
        "se-airflow": [f"{AIRFLOW}/16"],
    }
    # Outside of what is undone: where another run of these tests has its network, this one ends here.
    run("ip", "link", "add", "se-bridge", "type", "bridge")
    try:
        run("ip", "address", "add", f"{LAKE}/16", "dev", "se-bridge")
        run("ip", "link", "set", "se-bridge", "up")
        for number, (name, addresses) in enumerate(names.items()):
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"se-{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", f"se-{number}", "master", "se-bridge", "up")
            for address in addresses:
                run(*inside(name, "ip", "address", "add", address, "dev", "eth0"))
            for device in ("lo", "eth0"):
                run(*inside(name, "ip", "link", "set", device, "up"))
            limit = ("rate", "400mbit", "burst", "256kb", "latency", "50ms")
            run(*inside(name, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *limit))
        yield
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", "se-bridge"], check=False, capture_output=True)


@dataclass
class Hosts:
    """:param stores: of the broker's host; executors find nothing there.
    :param own: a directory of the stores' owner.
    """

    work: Path
    stores: Path
    own: Path
    objects: ObjectStore
    master: str = ""
    agent: Server | None = None

    def new_lake(self, number: int, catalog: str = "") -> Path:
        """Make a lake with its rows in the object store.

        :param catalog: URL of its catalog's database; "": a file on the broker's host.
        """
        directory = self.own / f"lake-{number}"
        directory.mkdir()
        shutil.chown(directory, OWNER)
        properties = {
            **self.objects.properties(),
            "type": "sql",
            "uri": catalog or f"sqlite:///{directory}/catalog.db",
            "warehouse": f"s3://lake/{number}",
            "s3.connect-timeout": "20",
            "s3.request-timeout": "20",
        }
        (directory / "lake.json").write_text(json.dumps(properties))
        (directory / "lake.json").chmod(0o600)
        shutil.chown(directory / "lake.json", OWNER)
        self.shell("init-lake", "--lake", directory)
        return directory

    def new_store(self, number: int, sample: Path) -> Path:
        store = self.stores / f"store-{number}"
        shutil.copytree(sample, store)
        for path in (store, *store.rglob("*")):
            shutil.chown(path, OWNER)
        store.chmod(0o700)
        return store

    def shell(self, *words: object) -> subprocess.CompletedProcess[str]:
        return self.finished(self.words(*words))

    def finished(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(words, check=False, capture_output=True, text=True, env=self.environment)
        assert done.returncode == 0, done.stderr[-3000:]
        return done

    def words(self, *words: object) -> list[str]:
        # Brokers of other tests, which a command would look for, don't run on this host.
        hide = 'mount -t proc -o hidepid=invisible none /proc && exec "$@"'
        alone = ["unshare", "-m", "sh", "-ec", hide, "sh"]
        return inside("se-broker", *alone, *as_user(OWNER, self.work), PROGRAM, *words)

    def on_broker(self, user: str, *words: object) -> list[str]:
        """Return the words of a command on the broker's host."""
        reads = () if user == OWNER else ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
        return inside("se-broker", *as_user(user, self.work, *reads), *words)

    @property
    def environment(self) -> dict[str, str]:
        python = {"PYSPARK_PYTHON": sys.executable}
        return {**os.environ, **python, "SPARK_CONF_DIR": str(self.work / "conf"), "SPARK_LOCAL_IP": BROKER}

    def archive(self, store: Path, lake: Path) -> list[str]:
        reach = ("--agent", f"{BROKER}:{AGENT_PORT}", "--agent-token", self.token_of(OWNER))
        to = ("--lake", lake, "--spark", self.master, "--agent-ca", self.work / "broker.pem")
        return self.words("archive", store, *to, *reach)

    def start_agent(self, *stores: Path) -> None:
        self.stop_agent()
        options = ("--listen", f"{BROKER}:{AGENT_PORT}", "--token-file", self.token_of(READER))
        tls = ("--tls-cert", self.work / "broker.pem", "--tls-key", self.work / "broker.key")
        words = self.on_broker(READER, PROGRAM, "agent", *stores, *options, *tls)
        self.agent = Server(words, self.work / "agent.log")
        self.agent.wait_until(lambda: listens(AGENT_PORT, BROKER))

    def token_of(self, user: str) -> Path:
        return self.work / user / "token"

    def stop_agent(self) -> None:
        if self.agent is not None:
            self.agent.kill()
            self.agent = None


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.fail("this test makes network namespaces: run it as root, with iproute2")
    work = tmp_path_factory.mktemp("namespaces")
    stores = work / "stores"
    stores.mkdir()
    work.chmod(0o711)
    for user in (OWNER, READER):
        token = _made(work / user) / "token"
        token.write_text("0123456789abcdef0123456789abcdef")
        token.chmod(0o600)
        for path in (token, token.parent):
            shutil.chown(path, user)
    shutil.chown(certificate(work, timedelta(days=1), BROKER)[1], READER)
    (work / "conf").mkdir()
    settings = {
        "spark.driver.host": BROKER,
        "spark.driver.bindAddress": BROKER,
        "spark.executor.extraJavaOptions": SHORT_LIVED_JVM,
        "spark.cores.max": "2",
        "spark.network.timeout": "60s",
    }
    lines = [f"{name} {value}" for name, value in settings.items()]
    (work / "conf" / "spark-defaults.conf").write_text("\n".join(lines))
    worker = inside("se-spark", *without(stores))
    with (
        network(),
        object_store(work / "objects", LAKE) as objects,
        standalone(_made(work / "cluster"), [worker] * 2, via=inside("se-spark"), network=SPARK) as master,
    ):
        found = Hosts(work, stores, work / OWNER, objects, master)
        try:
            yield found
        finally:
            found.stop_agent()


@pytest.fixture(scope="module")
def sample(hosts: Hosts) -> Path:
    """A store of eight sealed segments, all of them expired."""
    made = hosts.own / "sample"
    hosts.shell(
        "sample",
        made,
        "--messages",
        40_000,
        "--topics",
        2,
        "--segment-size",
        "4MiB",
        "--days",
        2,
        "--end",
        "2026-01-01",
    )
    return made / "store"


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def segments_of(store: Path) -> dict[str, bytes]:
    """Return what its sealed segments hold."""
    paths = sorted((store / "commitlog").iterdir())[:-1]
    return {path.name: path.read_bytes() for path in paths}


def assert_each_is_there_once(hosts: Hosts, lake_dir: Path, sealed: dict[str, bytes]) -> None:
    lake = open_lake(LakeConfig.local(lake_dir))
    (found,) = list_stores(lake)
    rows = receipts(lake, found.store_id)
    assert [row.base_offset for row in rows] == [int(name) for name in sealed]
    assert lake.messages().scan().count() == sum(row.row_count for row in rows)
    restored = hosts.own / f"restored-{lake_dir.name}"
    hosts.shell("restore", "--lake", lake_dir, "--to", restored, "--files-only")
    paths = sorted((restored / "commitlog").iterdir())
    assert {path.name: path.read_bytes() for path in paths} == sealed


def test_a_store_that_no_executor_sees_is_archived_proven_and_deleted(hosts: Hosts, sample: Path) -> None:
    store, lake = hosts.new_store(100, sample), hosts.new_lake(100)
    sealed = segments_of(store)
    hosts.start_agent(store)
    hosts.finished(hosts.archive(store, lake))
    assert_each_is_there_once(hosts, lake, sealed)
    hosts.shell("clean", store, "--lake", lake, "--manual")
    assert len(segments_of(store)) < len(sealed)
    hosts.shell("verify", store, "--lake", lake, "--level", "bytes")


def test_airflow_archives_and_deletes_where_only_its_edge_worker_is(hosts: Hosts, sample: Path) -> None:
    """Airflow's components find no store, and neither do executors; a worker without it says so."""
    store, queue = hosts.new_store(200, sample), "broker-a"
    sealed = segments_of(store)
    hosts.start_agent(store)
    master, port = hosts.master.rsplit(":", 1)
    home = _made(hosts.work / "airflow")
    airflow_host = inside("se-airflow", *without(hosts.stores))
    with postgres(AIRFLOW, inside("se-airflow")) as server:
        lake = hosts.new_lake(200, server.uri)
        settings = {
            "AIRFLOW__STORAGE_ENGINE__JOURNAL_URL": server.uri,
            "AIRFLOW__STORAGE_ENGINE__REPORT_DIR": str(hosts.own / "reports"),
        }
        airflow = EdgeAirflow(home, AIRFLOW, free_port(), server.uri, settings, airflow_host)
        try:
            airflow.shell("airflow", "db", "migrate")
            of_store = ("--conn-id", "a", "--store", store, "--lake", lake, "--spark-conn-id", "cluster")
            init = ("storage-engine", "init", "--airflow", "--edge", queue, "--add-connection", "--yes")
            said = airflow.shell(*init, *of_store)
            exports = [
                line.strip().removeprefix("export ") for line in said.splitlines() if "export " in line
            ]
            told = dict(shlex.split(line)[0].split("=", 1) for line in exports if "…" not in line)
            assert f"airflow edge worker --queues {queue}" in said
            api = airflow.start()
            api.add_connection("cluster", {"conn_type": "spark", "host": master, "port": int(port)})
            agent = {"address": f"{BROKER}:{AGENT_PORT}", "token_file": str(hosts.token_of(OWNER))}
            more = {"agent": {**agent, "ca_file": str(hosts.work / "broker.pem")}, "spark_from": "0 segments"}
            known = api.get("/api/v2/connections/a")
            api.patch(
                "/api/v2/connections/a",
                {**known, "extra": json.dumps({**json.loads(known["extra"]), **more})},
            )
            dag = "storage_retention__a"
            with airflow.worker("elsewhere", queue, inside("se-broker", *without(hosts.stores)), told):
                run = airflow.begin(api, dag, {"manual": True})
                airflow.eventually(
                    "a try has failed", lambda: api.task_states(dag, run).get("plan") == "up_for_retry"
                )
            (told_why,) = (home / "elsewhere").rglob("task_id=plan/attempt=1.log")
            assert f"{store}: expected the store's root directory, found nothing" in told_why.read_text()
            assert segments_of(store) == sealed
            told |= hosts.environment
            with airflow.worker("broker-host", queue, hosts.on_broker(OWNER), told, OWNER):
                airflow.eventually("the run ends", lambda: api.run_state(dag, run) in ("success", "failed"))
                seen = airflow.shell("storage-engine", "doctor", "--conn-id", "a", fails=True)
            assert "queue broker-a: broker-host (" in " ".join(seen.split())
            assert set(api.task_states(dag, run).values()) == {"success"}
        finally:
            airflow.tree.stop()
        gone = {name: data for name, data in sealed.items() if name not in segments_of(store)}
        assert len(gone) > 1
        assert_each_is_there_once(hosts, lake, gone)


@pytest.mark.parametrize("number", range(KILLS))
def test_killed_at_any_moment_nothing_is_lost_or_doubled(number: int, hosts: Hosts, sample: Path) -> None:
    victim, moment = VICTIMS[number % len(VICTIMS)], random.Random(number)
    store, lake = hosts.new_store(number, sample), hosts.new_lake(number)
    sealed = segments_of(store)
    hosts.start_agent(store)
    with subprocess.Popen(
        hosts.archive(store, lake),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=hosts.environment,
        start_new_session=True,
    ) as archiving:
        time.sleep(moment.uniform(5, 15))
        kill(victim, hosts, archiving)
        archiving.wait(600)
    if victim == "agent":
        hosts.start_agent(store)
    hosts.finished(hosts.archive(store, lake))
    assert_each_is_there_once(hosts, lake, sealed)


def kill(victim: str, hosts: Hosts, archiving: subprocess.Popen[bytes]) -> None:
    if victim == "agent":
        hosts.stop_agent()
    elif victim == "executor":
        for pid in run("ip", "netns", "pids", "se-spark").split():
            with suppress(OSError):
                if b"CoarseGrainedExecutorBackend" in Path("/proc", pid, "cmdline").read_bytes():
                    os.kill(int(pid), signal.SIGKILL)
    elif victim == "driver":
        with suppress(ProcessLookupError):
            os.killpg(archiving.pid, signal.SIGKILL)
    else:
        run(*inside("se-spark", "ip", "link", "set", "eth0", "down"))
        time.sleep(3)
        run(*inside("se-spark", "ip", "link", "set", "eth0", "up"))
