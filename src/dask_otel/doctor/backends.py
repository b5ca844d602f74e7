"""Reads the test telemetry back from the backends: Jaeger, Tempo, Prometheus."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit

from dask_otel import semconv
from dask_otel.core.endpoints.address import Endpoint
from dask_otel.core.endpoints.explaining import explain
from dask_otel.core.masking import Mask, masked_url, secrets_of
from dask_otel.doctor.finding import Finding

#: Seconds between two requests, and for one answer.
_PAUSE: Final = 1.0
_ANSWER: Final = 5.0
#: Characters of an answer that are read.
_MOST: Final = 4_000_000

#: A metric's name in Prometheus depends on the translation; the dots match any character.
_SELECTOR: Final = f'{{__name__=~"{semconv.DOCTOR_CHECKS.name}(_total)?"}}'


def read_back(
    places: Mapping[str, str], probe: Mapping[str, Any], patience: float
) -> Iterator[Finding]:
    """Return whether each backend has the test span, or the test counter.

    Parameters
    ----------
    places
        ``jaeger``, ``tempo``, ``prometheus``: their addresses.
    probe
        The ids of the test telemetry: ``run``, ``trace_id``.
    patience
        Seconds of retries if a backend answers without the telemetry.
    """
    until = time.monotonic() + patience
    return (_until_found(name, address, probe, until) for name, address in places.items())


def _until_found(name: str, address: str, probe: Mapping[str, Any], until: float) -> Finding:
    has_it, sent, example, advice = _BACKENDS[name]
    check, shown, title = f"backend.{name}", masked_url(address), name.capitalize()
    mask = Mask(secrets_of({"OTEL_EXPORTER_OTLP_ENDPOINT": address}))
    began, waited, failure = time.monotonic(), 0.0, ""
    # Wait less for an absent backend than for one without the telemetry.
    while not waited or began + waited < (min(until, began + _ANSWER) if failure else until):
        time.sleep(_PAUSE if waited else 0)
        try:
            found, failure = has_it(address, probe), ""
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            found, failure = False, mask(_words(error))
        waited = time.monotonic() - began
        if found:
            return Finding(check, "ok", f"{title} ({shown}) has the {sent}, after {waited:.0f} s.")
    if failure:
        trouble = explain(Endpoint(shown, "HTTP"), "traces", failure)
        return Finding(
            check,
            "problem",
            f"The query to {title} at {shown} failed: {failure}.",
            trouble.cause if trouble and trouble.kind in _CONNECTING else "",
            f"Give the address at which {title}'s own page opens, without the page's path "
            f"({example}).",
        )
    return Finding(
        check,
        "problem",
        f"{title} ({shown}) did not receive the {sent} within {waited:.0f} s.",
        "It was lost on the way, went to another place or tenant, or takes longer: collectors "
        "batch, sample and retry.",
        f"Ask again with a greater --patience; then see the collector's log{advice}.",
    )


_CONNECTING: Final = (
    "refused", "unresolved", "timeout", "unreachable", "closed", "tls_to_plain", "plain_to_tls",
    "certificate_untrusted", "certificate_name", "certificate_expired",
)  # fmt: skip


def _words(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP status {error.code} {error.reason}"
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, (str, OSError)):
        return cause if isinstance(cause, str) else f"{type(cause).__name__}: {cause}"
    return "the answer is not from its API"


# -------------------------------------------------------------------------------- each API


def _trace(address: str, probe: Mapping[str, Any]) -> bool:
    """Whether there is a trace with that random id, which has one span.

    The API is that of the backend's own page, which all versions have.
    """
    answer = _get(address, f"/api/traces/{probe['trace_id']}")
    return any(answer.get(spans) for spans in ("data", "batches", "resourceSpans"))


def _prometheus(address: str, probe: Mapping[str, Any]) -> bool:
    answer = _get(address, f"/api/v1/query?{urlencode({'query': _SELECTOR})}")
    return any(probe["run"] in series["metric"].values() for series in answer["data"]["result"])


#: Backend: a check for the telemetry, the telemetry's name, an address, and other places to look.
_BACKENDS: Final[Mapping[str, tuple[Callable[[str, Mapping[str, Any]], bool], str, str, str]]] = {
    "jaeger": (_trace, "test span", "http://localhost:16686", " and sampling"),
    "tempo": (
        _trace,
        "test span",
        "http://localhost:3200",
        ", its sampling, and the tenant (X-Scope-OrgID)",
    ),
    "prometheus": (
        _prometheus,
        "test counter",
        "http://localhost:9090",
        ", and whether Prometheus runs with --web.enable-otlp-receiver or scrapes the collector",
    ),
}


def _get(address: str, path: str) -> Any:
    """Return the JSON answer of a GET; credentials in the address are sent as a header."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise OSError("an address begins with http:// or https://")
    host = parts.netloc.rpartition("@")[2]
    request = urllib.request.Request(
        f"{parts.scheme}://{host}{quote(parts.path.rstrip('/'), safe='/%')}{path}",
        headers={"Accept": "application/json"},
    )
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        token = base64.b64encode(pair.encode()).decode()
        # Not forwarded by a redirect to another host.
        request.add_unredirected_header("Authorization", f"Basic {token}")
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER) as response:
            return json.loads(response.read(_MOST))
    except urllib.error.HTTPError as error:
        with error:
            # The backend answers, but does not have the trace.
            if error.code == 404 and "/api/traces/" in path:
                return {"data": ()}
            raise
