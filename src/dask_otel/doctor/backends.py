"""Reads the test telemetry back from where it should have arrived: Jaeger, Tempo, Prometheus."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit

from dask_otel import semconv
from dask_otel.core.endpoints.address import Endpoint
from dask_otel.core.endpoints.explaining import explain
from dask_otel.core.masking import Mask, masked_url, secrets_of
from dask_otel.doctor.finding import Finding

#: Seconds between two questions, and for one answer.
_PAUSE: Final = 1.0
_ANSWER: Final = 5.0
#: Characters of an answer that are looked at.
_MOST: Final = 4_000_000

#: A metric's name in Prometheus depends on how names are translated; the dots match any sign.
_SELECTOR: Final = f'{{__name__=~"{semconv.DOCTOR_CHECKS.name}(_total)?"}}'


class _NotYet(Exception):
    """It answers, and does not have it (yet)."""


def read_back(
    places: Mapping[str, str], probe: Mapping[str, Any], patience: float
) -> Iterator[Finding]:
    """Yield whether each backend has the test span, or the test counter.

    Parameters
    ----------
    places
        ``jaeger``, ``tempo``, ``prometheus``: their addresses.
    probe
        Which telemetry it is: ``run``, ``trace_id``, ``span_id``.
    patience
        Seconds for which a backend that answers without it is asked again.
    """
    looks = {"jaeger": _jaeger, "tempo": _tempo, "prometheus": _prometheus}
    until = time.monotonic() + patience
    for name, address in places.items():
        yield _until_found(name, address, partial(looks[name], address, probe), until)


def _until_found(name: str, address: str, look: Callable[[], None], until: float) -> Finding:
    what = "test counter" if name == "prometheus" else "test span"
    check, shown, title = f"backend.{name}", masked_url(address), name.capitalize()
    mask = Mask(secrets_of({"OTEL_EXPORTER_OTLP_ENDPOINT": address}))
    began, failure = time.monotonic(), ""
    while True:
        try:
            look()
        except _NotYet:
            failure = ""
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            failure = mask(_words(error))
        else:
            waited = time.monotonic() - began
            return Finding(check, "ok", f"{title} ({shown}) has the {what}, after {waited:.0f} s.")
        # A backend that is not there is not waited for as long as one that has not got it yet.
        if time.monotonic() >= (until if not failure else min(until, began + _ANSWER)):
            break
        time.sleep(_PAUSE)
    if failure:
        trouble = explain(Endpoint(shown, "HTTP"), "traces", failure)
        connecting = trouble is not None and trouble.kind in _CONNECTING
        return Finding(
            check,
            "problem",
            f"{title} could not be asked at {shown}: {failure}.",
            trouble.cause if connecting and trouble else "",
            f"Give the address of {title}'s API, as its own page has it before the path "
            f"({_EXAMPLES[name]}).",
        )
    return Finding(
        check,
        "problem",
        f"{title} ({shown}) has not got the {what} within {time.monotonic() - began:.0f} s.",
        "It was lost on the way, went to another place or tenant, or takes longer: collectors "
        "batch, sample and retry.",
        _MISSING[name],
    )


_CONNECTING: Final = (
    "refused", "unresolved", "timeout", "unreachable", "closed", "tls_to_plain", "plain_to_tls",
    "certificate_untrusted", "certificate_name", "certificate_expired",
)  # fmt: skip
_EXAMPLES: Final = {
    "jaeger": "http://localhost:16686",
    "tempo": "http://localhost:3200",
    "prometheus": "http://localhost:9090",
}
_MISSING: Final = {
    "jaeger": "Ask again with a greater --patience; then see the collector's log and sampling.",
    "tempo": "Ask again with a greater --patience; then see the collector's log, its sampling, and "
    "the tenant (X-Scope-OrgID).",
    "prometheus": "Ask again with a greater --patience; then see the collector's log, and whether "
    "Prometheus runs with --web.enable-otlp-receiver or scrapes the collector.",
}


def _words(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP status {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        reason = error.reason
        if isinstance(reason, BaseException):
            return f"{type(reason).__name__}: {reason}"
        return str(reason)
    if isinstance(error, (ValueError, KeyError, TypeError, AttributeError)):
        return "an answer that is none of its API's"
    return f"{type(error).__name__}: {error}"


# -------------------------------------------------------------------------------- each API


def _jaeger(address: str, probe: Mapping[str, Any]) -> None:
    # The page's own API: all versions have it.
    answer = _get(address, f"/api/traces/{probe['trace_id']}")
    spans = [span["spanID"] for trace in answer["data"] or () for span in trace["spans"]]
    if probe["span_id"] not in [str(span).zfill(16) for span in spans]:
        raise _NotYet


def _tempo(address: str, probe: Mapping[str, Any]) -> None:
    answer = _get(address, f"/api/traces/{probe['trace_id']}")
    wanted = probe["span_id"]
    # protobuf's JSON has ids in base64, OTLP's in hex.
    forms = {wanted, base64.b64encode(bytes.fromhex(wanted)).decode()}
    batches = answer.get("batches") or answer.get("resourceSpans") or ()
    spans = [
        span["spanId"]
        for batch in batches
        for scope in batch.get("scopeSpans") or batch.get("instrumentationLibrarySpans") or ()
        for span in scope["spans"]
    ]
    if not forms & set(spans):
        raise _NotYet


def _prometheus(address: str, probe: Mapping[str, Any]) -> None:
    answer = _get(address, f"/api/v1/query?{urlencode({'query': _SELECTOR})}")
    labels = [value for series in answer["data"]["result"] for value in series["metric"].values()]
    if probe["run"] not in labels:
        raise _NotYet


def _get(address: str, path: str) -> Any:
    """Return the JSON answer of a GET; a user and a password in the address are a header."""
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
        # Not passed on where it redirects to another host.
        request.add_unredirected_header("Authorization", f"Basic {token}")
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER) as response:
            return json.loads(response.read(_MOST))
    except urllib.error.HTTPError as error:
        with error:
            # It answers, and has no such trace.
            if error.code == 404 and "/api/traces/" in path:
                raise _NotYet from None
            raise
