"""Findings about the export: what became of the test span and the test counter."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from dask_otel.core.endpoints.address import Endpoint, oddities
from dask_otel.core.endpoints.explaining import UNKNOWN, explain, partly_taken
from dask_otel.doctor.finding import Finding

_SENT: Final = {"traces": "test span", "metrics": "test counter"}

NO_REASON: Final = "no reason given"

Facts = Mapping[str, Any]


def export_findings(facts: Facts) -> Iterator[Finding]:
    """Yield what became of the test telemetry."""
    probe = facts.get("probe")
    if facts.get("timed_out"):
        yield Finding(
            "export",
            "problem",
            f"The test of the export did not end within {facts['timed_out']:g} s.",
            "Making the exporters hangs: a resource detector that waits for a cloud's metadata "
            "server, or a slow file system.",
            "See OTEL_EXPERIMENTAL_RESOURCE_DETECTORS.",
        )
    if probe is None:
        return
    if probe["disabled"]:
        yield Finding(
            "export",
            "problem",
            "OTEL_SDK_DISABLED is true: nothing is exported.",
            todo="Unset it where the scheduler runs.",
        )
        return
    if facts["problems"]:
        return
    results = probe["results"]
    failures: set[tuple[str, str, str]] = set()
    for signal in _SENT:
        found = [result for result in results if result["signal"] == signal]
        if not found:
            yield _nowhere(signal, facts)
        for result in found:
            for finding in _of_result(signal, result):
                failure = (result["destination"], finding.why, finding.todo)
                if not result["ok"] and failure in failures:
                    what = f"Nor was the {_SENT[signal]} taken by {result['destination']}."
                    finding = replace(finding, what=what)
                failures.add(failure)
                yield _unnamed(finding, facts)
    yield from _strange(results)
    yield from _sampler(facts)


def _nowhere(signal: str, facts: Facts) -> Finding:
    if signal == "metrics" and facts.get("prometheus"):
        return Finding(
            "export.metrics",
            "ok",
            "Metrics are not pushed; the scheduler's /metrics page has them "
            "(otel.metrics.prometheus).",
        )
    return Finding(
        f"export.{signal}",
        "note",
        f"No {signal} are exported.",
        f"OTEL_{signal.upper()}_EXPORTER names no exporter.",
        f"Set it to otlp where the scheduler runs, if {signal} are wanted.",
    )


def _of_result(signal: str, result: Facts) -> Iterator[Finding]:
    check, sent, place = f"export.{signal}", _SENT[signal], result["destination"]
    if result["ok"] is None:
        yield Finding(
            check,
            "note",
            f"The {sent} was given to {place}.",
            "What becomes of it is between that provider and its exporters; nobody else is told.",
            "Look for it in the backend (--jaeger, --tempo).",
        )
    elif not result["ok"]:
        yield _failed(check, signal, result)
    elif result["lost"] or result["said"]:
        trouble = partly_taken(result["lost"], result["said"] or NO_REASON)
        level = "problem" if result["lost"] else "note"
        yield Finding(
            check,
            level,  # type: ignore[arg-type]
            f"The {sent} got to {place}.",
            trouble.cause,
            trouble.remedy,
            trouble.kind,
        )
    else:
        yield Finding(check, "ok", f"The {sent} was taken by {place}.")


def _unnamed(finding: Finding, facts: Facts) -> Finding:
    """Say so where nobody listens at the default endpoint because nobody has named another."""
    named = any(re.fullmatch(r"OTEL_[A-Z_]*ENDPOINT", name) for name, _, _ in facts["variables"])
    if named or finding.kind != "refused":
        return finding
    return replace(
        finding,
        why="No endpoint is configured, and nothing listens at the default one.",
        todo="Set OTEL_EXPORTER_OTLP_ENDPOINT where the scheduler runs; or otel.files.path, to "
        "write files instead.",
    )


def _failed(check: str, signal: str, result: Facts) -> Finding:
    place, reason = result["destination"], result["reason"] or NO_REASON
    endpoint = Endpoint.named(place)
    what = f"The {_SENT[signal]} was not taken by {place}: {reason}."
    if endpoint is None:
        todo = result["advice"] or "See that exporter's own documentation."
        return Finding(check, "problem", what, todo=todo)
    trouble = explain(endpoint, signal, reason, result["listener"])
    if trouble is None:
        return Finding(check, "problem", what, todo=UNKNOWN, kind="unknown")
    return Finding(check, "problem", what, trouble.cause, trouble.remedy, trouble.kind)


def _strange(results: list[Any]) -> Iterator[Finding]:
    for place in dict.fromkeys(result["destination"] for result in results):
        endpoint = Endpoint.named(place)
        for oddity in oddities(endpoint) if endpoint else ():
            yield Finding("export.address", "note", f"{place}: {oddity}")


def _sampler(facts: Facts) -> Iterator[Finding]:
    values = {name: value for name, value, _ in facts["variables"]}
    sampler = values.get("OTEL_TRACES_SAMPLER", "").lower()
    ratio = values.get("OTEL_TRACES_SAMPLER_ARG", "")
    if sampler.endswith("always_off") or (
        sampler.endswith("traceidratio") and ratio in ("0", "0.0")
    ):
        yield Finding(
            "export.sampler",
            "note",
            f"No trace is sampled: OTEL_TRACES_SAMPLER is {sampler}.",
            todo="Unset it if traces are wanted; metrics do not depend on it.",
        )
