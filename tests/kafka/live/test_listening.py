"""Whether anybody listens at a cluster's addresses: refused is known, all else is not."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest

from storage_engine.kafka.cluster import client
from storage_engine.kafka.cluster.client import nobody_listens


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("place", ["127.0.0.1:1", "PLAINTEXT://127.0.0.1:1", "127.0.0.1:1, 127.0.0.1:2"])
def test_refused_is_nobody(place: str) -> None:
    assert nobody_listens(place)


def test_one_who_listens_is_somebody(port: int) -> None:
    assert not nobody_listens(f"127.0.0.1:1,127.0.0.1:{port}")


@pytest.mark.parametrize("place", ["", "::1", "a:b:c", "127.0.0.1:99999"])
def test_what_cannot_be_read_is_not_known(place: str) -> None:
    assert not nobody_listens(place)


@pytest.mark.parametrize(
    ("code", "nobody"), [(socket.EAI_NONAME, True), (socket.EAI_AGAIN, False), (socket.EAI_FAIL, False)]
)
def test_a_name_of_no_host_is_nobody(monkeypatch: pytest.MonkeyPatch, code: int, nobody: bool) -> None:
    def resolve(*_: object, **__: object) -> None:
        raise socket.gaierror(code, "no")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert nobody_listens("kafka:9092") is nobody


@pytest.mark.parametrize(
    ("answers", "nobody"),
    [
        ((errno.ECONNREFUSED, errno.EADDRNOTAVAIL), True),
        ((errno.ECONNREFUSED, None), False),
        ((errno.ECONNREFUSED, 0), False),
        ((errno.ENETUNREACH, errno.ENETUNREACH), False),
        ((errno.EHOSTUNREACH, errno.ECONNREFUSED), False),
    ],
)
def test_each_address_of_a_name_counts(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[int | None, ...], nobody: bool
) -> None:
    places = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one,)) for one in answers]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)
    monkeypatch.setattr(client, "_answer", lambda _family, _kind, place: place[0])
    assert nobody_listens("kafka:9092") is nobody
