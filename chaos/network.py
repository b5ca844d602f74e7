"""Faults on the way to the collector: TLS, proxies, names."""

from __future__ import annotations

import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.certificates import Certificate, self_signed
from tests.receiver import Receiver, port_of, receiver
from tests.waiting import eventually

from chaos.collectors import ONCE, collector, through
from chaos.proxies import Proxy, proxy
from chaos.scenario import HTTP, CannotRun
from chaos.world import PATIENCE, World

# ------------------------------------------------------------------------------------- TLS

#: What every request holds, over HTTP and gRPC alike, and a header of its user's.
_TELLTALE, _SECRET = b"dask.", "chaos-has-a-secret"


@contextmanager
def _restarted(
    world: World, wrong: Certificate | None, right: Certificate | None
) -> Iterator[tuple[Receiver, Callable[[], None]]]:
    """Give a server behind the gate, with what starts another one in its place.

    The second one is the collector of the scenario. None for a server without TLS.
    """
    with (
        receiver(world.protocol, tls=wrong) as first,
        receiver(world.protocol, tls=right) as second,
    ):
        world.collector = second
        world.gate.target = port_of(first.endpoint)

        def restart() -> None:
            world.gate.mode = "closed"
            world.gate.target = port_of(second.endpoint)
            world.gate.mode = "pass"

        yield first, restart


def _wrong_tls(
    world: World,
    wrong: Certificate | None,
    right: Certificate | None,
    says: str,
    *,
    scheme: str = "https",
    trusted: Sequence[Certificate] = (),
) -> str:
    """Let the endpoint and the server disagree, until another server is there."""
    bundle = world.folder / "trusted.pem"
    bundle.write_bytes(b"".join(one.certificate.read_bytes() for one in trusted))
    way = {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{_SECRET}"}
    if trusted:
        way["OTEL_EXPORTER_OTLP_CERTIFICATE"] = str(bundle)
    endpoint = f"{scheme}://127.0.0.1:{world.gate.port}"
    clear = False
    with _restarted(world, wrong, right) as (first, restart):
        world.gate.heard = bytearray()

        def begin() -> None:
            world.gate.mode = "pass"

        def end() -> None:
            nonlocal clear
            assert world.gate.heard, "nobody came"
            clear = _TELLTALE in world.gate.heard or _SECRET.encode() in world.gate.heard
            assert first.requests == [], "the wrong server was told something"
            restart()

        said = through(
            world,
            begin,
            end,
            start=partial(world.start, endpoint=endpoint, way=way),
            healthy_first=False,
            says=says,
        )
        if right is None:
            assert _TELLTALE in world.gate.heard, "what is in clear was not heard"
    # Who writes http:// wants it so, and a request of HTTP is out before anybody can answer.
    assert not clear or (scheme == "http" and world.protocol == HTTP), "it was sent in clear"
    said += f"; {'what was sent was' if clear else 'nothing was'} in clear"
    lines = world.scheduler.output.count("ssl_transport_security")
    return said + (f"; {lines} lines in the log are gRPC's own" if lines else "")


def _certificate(world: World, name: str = "") -> Certificate:
    place = Path(tempfile.mkdtemp(dir=world.folder))
    return self_signed(place, name)


_TOLD = ONCE.replace("one warning", "one warning that says what is wrong")
_TLS = f"{_TOLD}; no request gets to the wrong server, and nothing is sent in clear"


@collector(
    "tls-untrusted",
    fault="Nobody trusts the certificate of its TLS, until it is started with another one",
    promise=_TLS,
)
def _untrusted(world: World) -> str:
    good = _certificate(world)
    return _wrong_tls(world, _certificate(world), good, "is not trusted", trusted=[good])


@collector(
    "tls-name",
    fault="Its certificate is for another name, until it is started with another one",
    promise=_TLS,
)
def _wrong_name(world: World) -> str:
    good, other = _certificate(world), _certificate(world, "collector.invalid")
    return _wrong_tls(world, other, good, "certificate is for another name", trusted=[good, other])


@collector(
    "tls-to-plain",
    fault="The endpoint says `https`, and it has no TLS, until it is started with it",
    promise=_TLS,
)
def _tls_to_plain(world: World) -> str:
    good = _certificate(world)
    return _wrong_tls(world, None, good, "TLS is spoken (https)", trusted=[good])


@collector(
    "plain-to-tls",
    fault="The endpoint says `http`, and it wants TLS, until it is started without",
    promise=f"{_TOLD}; no request gets to the wrong server. Nothing is sent in clear over gRPC. "
    "Over HTTP that can't be kept: `http` is obeyed, and a request is out before an answer comes",
)
def _plain_to_tls(world: World) -> str:
    return _wrong_tls(world, _certificate(world), None, "TLS (https)", scheme="http")


# ------------------------------------------------------------------------------------- proxies


def _behind_proxy(
    world: World,
    made: Proxy,
    start: Callable[[], None],
    told: Counter[int],
    statuses: Sequence[int],
) -> str:
    """Take the collector away behind a proxy, which answers in its place."""
    ways = {502: "closed", 504: "silent"}

    def begin() -> None:
        assert told[200], "nothing went through the proxy"
        for status in statuses:
            world.gate.mode = ways[status]
            eventually(lambda status=status: told[status], PATIENCE, f"the proxy answers {status}")

    def end() -> None:
        world.gate.mode = "pass"

    said = through(world, begin, end, start=start)
    answers = ", ".join(f"{told[status]} × {status}" for status in (200, *statuses))
    return f"{said}; the proxy answered {answers} on {made.connections} connections"


def _proxied(address: str) -> dict[str, str]:
    """Return the variables that `requests` and gRPC read, and that keep nothing out of them."""
    both = {"http_proxy": address, "https_proxy": address, "no_proxy": ""}
    return {**both, **{name.upper(): value for name, value in both.items()}}


@collector(
    "reverse-proxy",
    fault="An HTTP proxy stands before it (reverse, with keep-alive), and answers 502, then 504, "
    "while it is away",
    promise=ONCE,
    protocols=(HTTP,),
)
def _reverse_proxy(world: World) -> str:
    with proxy(world.gate.port) as made:
        return _behind_proxy(
            world, made, partial(world.start, endpoint=made.url), made.answered, [502, 504]
        )


@collector(
    "http-proxy",
    fault="The way to it is an HTTP proxy (`HTTP_PROXY`), which answers 502, then 504, while it is "
    "away",
    promise=ONCE,
    protocols=(HTTP,),
)
def _http_proxy(world: World) -> str:
    with proxy() as made:
        return _behind_proxy(
            world, made, partial(world.start, way=_proxied(made.url)), made.answered, [502, 504]
        )


@collector(
    "connect-proxy",
    fault="The way to it is a tunnel (`HTTPS_PROXY`, `CONNECT`, with TLS inside), which breaks; "
    "the proxy answers 502 while it is away",
    promise=ONCE,
)
def _connect_proxy(world: World) -> str:
    certificate = _certificate(world)
    with proxy() as made, receiver(world.protocol, tls=certificate) as server:
        world.collector, world.gate.target = server, port_of(server.endpoint)
        way = {
            **_proxied(made.url),
            "OTEL_EXPORTER_OTLP_CERTIFICATE": str(certificate.certificate),
        }
        endpoint = f"https://127.0.0.1:{world.gate.port}"
        start = partial(world.start, endpoint=endpoint, way=way)
        return _behind_proxy(world, made, start, made.tunnels, [502])


# ------------------------------------------------------------------------------------- names

#: A command that gives what it runs a table of names of its own.
_NAMES = (
    "unshare", "--user", "--map-root-user", "--mount",
    "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"',
)  # fmt: skip


def _names(folder: Path) -> Path:
    """Return a table of names to run a process with.

    Raises
    ------
    CannotRun
        If this machine does not allow it.
    """
    table = folder / "hosts"
    table.write_bytes(Path("/etc/hosts").read_bytes())
    try:
        tried = subprocess.run([*_NAMES, table, "true"], capture_output=True, check=False)
    except OSError as error:
        raise CannotRun("a table of names of its own needs unshare") from error
    if tried.returncode:
        raise CannotRun("a table of names of its own needs a user's mount namespace")
    return table


@collector(
    "late-name",
    fault="Its name does not resolve when the scheduler starts, and does later",
    promise=ONCE,
)
def _late_name(world: World) -> str:
    table, name = _names(world.folder), "collector.invalid"

    def begin() -> None:
        world.gate.mode = "pass"

    def end() -> None:
        # In its place: another file would not be the one that the process sees.
        with table.open("a", encoding="ascii") as file:
            file.write(f"\n127.0.0.1 {name}\n")

    return through(
        world,
        begin,
        end,
        start=partial(
            world.start,
            endpoint=f"http://{name}:{world.gate.port}",
            within=[*_NAMES, str(table)],
        ),
        healthy_first=False,
        says="does not resolve",
    )
