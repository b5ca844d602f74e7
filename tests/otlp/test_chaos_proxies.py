"""The proxies that `make chaos` puts before collectors do what such proxies do."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest
import requests
from chaos import proxies
from chaos.proxies import proxy

from tests.receiver import Receiver, port_of, receiver, refusing, silent_server

PROTOBUF = {"Content-Type": "application/x-protobuf"}


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


@pytest.fixture
def nobody() -> Iterator[int]:
    """Give a port that refuses connections, and that nobody else can get."""
    with refusing() as endpoint:
        yield port_of(endpoint)


def _post(url: str, times: int = 1, **proxies: str) -> list[int]:
    """Return the answers to empty requests on one connection."""
    with requests.Session() as session:
        # No proxy of this machine.
        session.trust_env = False
        answers = [
            session.post(url, b"", headers=PROTOBUF, proxies=proxies, timeout=30)
            for _ in range(times)
        ]
        return [answer.status_code for answer in answers]


def test_a_reverse_proxy_passes_on_and_keeps_the_connection(server: Receiver) -> None:
    with proxy(port_of(server.endpoint)) as made:
        assert _post(f"{made.url}/v1/traces", 3) == [200, 200, 200]
        assert made.connections == 1
    assert len(server.accepted) == 3


def test_a_forward_proxy_takes_the_address_from_the_request(server: Receiver) -> None:
    with proxy() as made:
        assert _post(f"{server.endpoint}/v1/metrics", 2, http=made.url) == [200, 200]
    assert [signal for signal, _ in server.accepted] == ["metrics", "metrics"]


def test_a_server_that_is_away_is_a_502_on_a_connection_that_stays(nobody: int) -> None:
    with proxy(nobody) as made:
        assert _post(f"{made.url}/v1/traces", 2) == [502, 502]
        assert made.connections == 1


def test_a_server_that_does_not_answer_is_a_504(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "GIVES_UP", 0.1)
    with silent_server() as endpoint, proxy(port_of(endpoint)) as made:
        assert _post(f"{made.url}/v1/traces") == [504]


def test_a_tunnel_leads_to_the_server_or_is_refused(server: Receiver, nobody: int) -> None:
    with proxy() as made:
        through = http.client.HTTPConnection("127.0.0.1", made.server_port, timeout=30)
        through.set_tunnel("127.0.0.1", port_of(server.endpoint))
        through.request("POST", "/v1/traces", b"")
        assert through.getresponse().status == 200
        through.close()
        away = http.client.HTTPConnection("127.0.0.1", made.server_port, timeout=30)
        away.set_tunnel("127.0.0.1", nobody)
        with pytest.raises(OSError, match="502"):
            away.connect()
        assert made.answered == {200: 1, 502: 1}
