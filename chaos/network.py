"""Faults on the way to the collector: TLS, proxies, names."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.certificates import Certificate, self_signed
from tests.receiver import port_of, receiver
from tests.waiting import eventually

from chaos.collectors import ONCE, collector, through
from chaos.proxies import proxy
from chaos.scenario import HTTP, CannotRun
from chaos.world import PATIENCE, PATIENT, World

# ------------------------------------------------------------------------------------- TLS

#: Bytes that every request holds, over HTTP and gRPC alike, and a header of the user's.
_TELLTALE, _SECRET = b"dask.", b"chaos-has-a-secret"


def _wrong_tls(
    world: World,
    wrong: Certificate | None,
    right: Certificate | None,
    says: str,
    *,
    scheme: str = "https",
    trusted: Sequence[Certificate] = (),
) -> str:
    """Let the endpoint and the server disagree, until another server takes its place.

    None is a server without TLS.
    """
    bundle = world.folder / "trusted.pem"
    bundle.write_bytes(b"".join(one.certificate.read_bytes() for one in trusted))
    way = {**PATIENT, "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{_SECRET.decode()}"}
    if trusted:
        way["OTEL_EXPORTER_OTLP_CERTIFICATE"] = str(bundle)
    heard = world.gate.heard = bytearray()
    clear = False
    with (
        receiver(world.protocol, tls=wrong) as first,
        receiver(world.protocol, tls=right) as world.collector,
    ):

        @contextmanager
        def fault() -> Iterator[None]:
            nonlocal clear
            world.gate.target = port_of(first.endpoint)
            yield
            assert heard, "nobody came"
            clear = _TELLTALE in heard or _SECRET in heard
            assert first.requests == [], "the wrong server got a request"
            # A handshake that is under way ends as the others before it.
            world.gate.target = port_of(world.collector.endpoint)

        endpoint = f"{scheme}://127.0.0.1:{world.gate.port}"
        start = partial(world.start, endpoint=endpoint, way=way)
        observed = through(world, fault(), start=start, healthy_first=False, says=says)
        assert right or _TELLTALE in heard, "what is in clear was not heard"
    # With http:// that is what the user asked for, and a request is out before any answer.
    assert not clear or (scheme == "http" and world.protocol == HTTP), "it was sent in clear"
    observed += f"; {'what was sent was' if clear else 'nothing was'} in clear"
    lines = world.scheduler.output.count("ssl_transport_security")
    return observed + (f"; {lines} lines in the log are gRPC's own" if lines else "")


def _certificate(world: World, name: str = "") -> Certificate:
    return self_signed(Path(tempfile.mkdtemp(dir=world.folder)), name)


_WARNS = ONCE.replace("one warning", "one warning that names the cause")
_TLS = f"{_WARNS}; no request gets to the wrong server, and nothing is sent in clear"


def _disagree(world: World, name: str) -> str:
    good, other = _certificate(world), _certificate(world, "collector.invalid")
    if name == "plain-to-tls":
        return _wrong_tls(world, good, None, "TLS (https)", scheme="http")
    wrong, says, trusted = {
        "tls-untrusted": (_certificate(world), "is not trusted", [good]),
        "tls-name": (other, "certificate does not include the name", [good, other]),
        "tls-to-plain": (None, "The endpoint requires TLS (https)", [good]),
    }[name]
    return _wrong_tls(world, wrong, good, says, trusted=trusted)


for _name, _fault, _promise in (
    ("tls-untrusted",
     "Nobody trusts the certificate of its TLS, until it is started with another one", _TLS),
    ("tls-name", "Its certificate is for another name, until it is started with another one", _TLS),
    ("tls-to-plain", "The endpoint says `https`, and it has no TLS, until it is started with it",
     _TLS),
    ("plain-to-tls", "The endpoint says `http`, and it wants TLS, until it is started without",
     f"{_WARNS}; no request gets to the wrong server. Nothing is sent in clear over gRPC. "
     "Over HTTP that can't be kept: `http` is obeyed, and a request is out before an answer "
     "comes"),
):  # fmt: skip
    collector(_name, fault=_fault, promise=_promise)(partial(_disagree, name=_name))


# ------------------------------------------------------------------------------------- proxies


@collector(
    "connect-proxy",
    fault="The way to it is a tunnel (`HTTPS_PROXY`, `CONNECT`, with TLS inside), which breaks; "
    "the proxy answers 502 while it is away",
    promise=ONCE,
)
def _connect_proxy(world: World) -> str:
    certificate = _certificate(world)
    with proxy() as made, receiver(world.protocol, tls=certificate) as world.collector:
        answers = made.answered

        @contextmanager
        def fault() -> Iterator[None]:
            assert answers[200], "nothing went through the proxy"
            world.gate.mode = "closed"
            eventually(lambda: answers[502], PATIENCE, "the proxy answers 502")
            yield
            world.gate.mode = "pass"

        world.gate.target = port_of(world.collector.endpoint)
        # The variables that `requests` and gRPC read, with no exception for any host.
        way = {
            **PATIENT,
            "https_proxy": made.url, "HTTPS_PROXY": made.url, "no_proxy": "", "NO_PROXY": "",
            "OTEL_EXPORTER_OTLP_CERTIFICATE": str(certificate.certificate),
        }  # fmt: skip
        endpoint = f"https://127.0.0.1:{world.gate.port}"
        observed = through(world, fault(), start=partial(world.start, endpoint=endpoint, way=way))
    return f"{observed}; the proxy answered {answers[200]} × 200, {answers[502]} × 502"


# ------------------------------------------------------------------------------------- names

#: A command that runs another one with a table of names of its own.
_NAMES = (
    "unshare", "--user", "--map-root-user", "--mount",
    "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"',
)  # fmt: skip


@collector(
    "late-name",
    fault="Its name does not resolve when the scheduler starts, and does later",
    promise=ONCE,
)
def _late_name(world: World) -> str:
    table, name = world.folder / "hosts", "collector.invalid"
    table.write_bytes(Path("/etc/hosts").read_bytes())
    within = [*_NAMES, str(table)]
    try:
        subprocess.run([*within, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotRun("a table of names of its own needs unshare, and the right to it") from error

    @contextmanager
    def fault() -> Iterator[None]:
        yield
        # In its place: another file would not be the one that the process sees.
        with table.open("a", encoding="ascii") as file:
            file.write(f"\n127.0.0.1 {name}\n")

    start = partial(world.start, endpoint=f"http://{name}:{world.gate.port}", within=within)
    return through(world, fault(), start=start, healthy_first=False, says="does not resolve")
