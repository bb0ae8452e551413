"""Which settings of librdkafka are handed on: all that it documents, and none that runs what it names."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.kafka.cluster.client import ALLOWED, Cluster, client_settings
from storage_engine.model.broker.live import LiveBroker

RUNS_SOMETHING = (
    "plugin.library.paths",
    "ssl.providers",
    "ssl.engine.location",
    "ssl.engine.id",
    "sasl.kerberos.kinit.cmd",
    "internal.termination.signal",
)
OF_A_FUNCTION = "Type: see dedicated API"


def documented(path: Path) -> Iterator[tuple[str, str]]:
    """Have the installed librdkafka print its settings; yield name and description of each."""
    (library,) = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka*")
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(libc.fopen(str(path).encode(), b"w"))
    ctypes.CDLL(str(library)).rd_kafka_conf_properties_show(file)
    libc.fclose(file)
    for line in path.read_text().splitlines():
        columns = line.split("|")
        if len(columns) > 5 and (name := columns[0].strip()) not in ("", "Property") and "---" not in name:
            yield name, line


def test_all_that_the_library_documents_is_allowed_but_what_runs_something(tmp_path: Path) -> None:
    settings = list(documented(tmp_path / "settings"))
    functions = {name for name, line in settings if OF_A_FUNCTION in line}
    assert {"error_cb", "oauthbearer_token_refresh_cb", "interceptors", "resolve_cb"} < functions
    assert {name for name, _ in settings} - functions - {*RUNS_SOMETHING} == ALLOWED


@pytest.mark.parametrize(
    "name", [*RUNS_SOMETHING, "oauth_cb", "resolve_cb", "default.topic.config", "opaque"]
)
@pytest.mark.parametrize("of_a_file", [False, True])
def test_what_runs_something_is_refused(tmp_path: Path, name: str, of_a_file: bool) -> None:
    (conf := tmp_path / "client.conf").write_text(f"{name}=/x")
    live = LiveBroker("a:1", client_config=str(conf)) if of_a_file else LiveBroker("a:1", client={name: "/x"})
    with pytest.raises(BadInputError, match=rf"client setting {name}: expected .* Nothing was changed\."):
        client_settings(live)


def test_a_shared_object_that_a_connection_names_is_not_loaded(tmp_path: Path) -> None:
    (source := tmp_path / "plugin.c").write_text(
        f'#include <stdio.h>\nint conf_init() {{ fclose(fopen("{tmp_path}/ran", "w")); return 0; }}\n'
    )
    library = tmp_path / "plugin.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    settings = {"bootstrap.servers": "127.0.0.1:1", "plugin.library.paths": str(library)}
    with pytest.raises(BadInputError, match=r"client setting plugin\.library\.paths: expected"):
        Cluster(LiveBroker(client=settings))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["sasl.kerberos.principal", "sasl.kerberos.keytab"])
@pytest.mark.parametrize("value", ["x; touch /x", "$(touch /x)", "`x`", 'a" "b', "-c/x", "a\nb", "", "é"])
def test_no_value_reaches_a_shell_as_more_than_one_word(name: str, value: str) -> None:
    with pytest.raises(BadInputError, match=f"client setting {name}: expected letters") as error:
        client_settings(LiveBroker("a:1", client={name: value}))
    assert "touch" not in str(error.value)


def test_ordinary_kerberos_and_certificate_settings_stay() -> None:
    settings = {
        "sasl.kerberos.principal": "archiver/host-1.example.org@EXAMPLE.ORG",
        "sasl.kerberos.keytab": "/etc/security/archiver_1.keytab",
        "ssl.ca.location": "/ca.pem",
        "ssl.keystore.location": "/own.p12",
        "linger.ms": "5",
    }
    assert client_settings(LiveBroker("a:1", client=settings)) == {**settings, "bootstrap.servers": "a:1"}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ssl.ca.loction", "Did you mean ssl.ca.location?"),
        ("SASL.mechanism", "Did you mean sasl.mechanism?"),
        ("sasl.jaas.config", "This is a setting of the Java client: give sasl.username and sasl.password."),
    ],
)
def test_an_unknown_name_is_told_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(BadInputError) as error:
        client_settings(LiveBroker("a:1", client={name: "hush-hush"}))
    assert hint in str(error.value)
    assert "hush" not in str(error.value)
