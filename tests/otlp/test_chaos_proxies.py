"""The proxies that `make chaos` puts before collectors do what such proxies do."""

from __future__ import annotations

import http.client

import pytest
import requests
from chaos import proxies
from chaos.proxies import proxy

from tests.receiver import port_of, receiver, refusing, silent_server

PROTOBUF = {"Content-Type": "application/x-protobuf"}


def _post(url: str, times: int = 1, **through: str) -> list[int]:
    """Return the answers to empty requests on one connection."""
    with requests.Session() as session:
        # No proxy of this machine.
        session.trust_env = False
        answers = [
            session.post(url, b"", headers=PROTOBUF, proxies=through, timeout=30)
            for _ in range(times)
        ]
        return [answer.status_code for answer in answers]


def test_they_pass_on_and_answer_for_a_server_that_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One connection stays, also where the server is away."""
    monkeypatch.setattr(proxies, "GIVES_UP", 0.1)
    with receiver() as server, refusing() as nobody, silent_server() as silent:
        for endpoint, status in ((server.endpoint, 200), (nobody, 502), (silent, 504)):
            with proxy(port_of(endpoint)) as made:
                assert _post(f"{made.url}/v1/traces", 2) == [status] * 2
                assert made.connections == 1
        with proxy() as made:
            assert _post(f"{server.endpoint}/v1/metrics", 2, http=made.url) == [200, 200]
            away = http.client.HTTPConnection("127.0.0.1", made.server_port, timeout=30)
            away.set_tunnel("127.0.0.1", port_of(nobody))
            with pytest.raises(OSError, match="502"):
                away.connect()
            through = http.client.HTTPConnection("127.0.0.1", made.server_port, timeout=30)
            through.set_tunnel("127.0.0.1", port_of(server.endpoint))
            through.request("POST", "/v1/traces", b"")
            assert through.getresponse().status == 200
            through.close()
    assert [signal for signal, _ in server.accepted] == [
        *("traces", "traces", "metrics", "metrics", "traces")
    ]
