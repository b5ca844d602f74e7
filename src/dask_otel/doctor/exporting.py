"""Findings about the export: the outcomes of the test span, counter and log record."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from dask_otel.core.endpoints.address import Endpoint, long_timeouts, oddities
from dask_otel.core.endpoints.explaining import UNKNOWN, Trouble, explain, partly_taken
from dask_otel.doctor.finding import Facts, Finding, Level, rows

_SENT: Final = {"traces": "test span", "metrics": "test counter", "logs": "test log record"}

NO_REASON: Final = "no reason given"


def export_findings(facts: Facts) -> list[Finding]:
    """Return the findings about the test telemetry."""
    probe, seconds = facts.get("probe"), facts.get("timed_out")
    found = rows(
        (
            seconds,
            Finding(
                "export",
                "problem",
                f"The test of the export did not end within {seconds or 0:g} s.",
                "The exporters could not be made: an exporter, a sampler or the function in "
                "otel.redact hangs, or the file system is slow.",
                "The scheduler's log names what did not answer.",
            ),
        ),
        (
            probe and probe["disabled"],
            Finding(
                "export",
                "problem",
                "OTEL_SDK_DISABLED is true: nothing is exported.",
                next="Unset it where the scheduler runs.",
            ),
        ),
    )
    if probe and not probe["disabled"] and not facts["problems"]:
        results = probe["results"]
        found += [*_results(results, facts), *_strange(results), *_variables(facts)]
    return found


def _results(results: list[Any], facts: Facts) -> Iterator[Finding]:
    failures: set[tuple[str, str, str]] = set()
    for signal, sent in _SENT.items():
        ours = [result for result in results if result["signal"] == signal]
        if not ours and signal != "logs":
            yield _nowhere(signal, facts)
        for result in ours:
            finding = _of_result(signal, result, facts)
            failure = (result["destination"], finding.why, finding.next)
            if not result["ok"] and failure in failures:
                what = f"{result['destination']} did not accept the {sent} either."
                finding = replace(finding, what=what)
            failures.add(failure)
            yield finding


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
        f"Set it to otlp where the scheduler runs, if you want {signal}.",
    )


def _of_result(signal: str, result: Facts, facts: Facts) -> Finding:
    check, sent, place = f"export.{signal}", _SENT[signal], result["destination"]
    if result["ok"] is None:
        return Finding(
            check,
            "note",
            f"The {sent} was given to {place}.",
            "Only that provider and its exporters know whether it arrived.",
            "Look for it in the backend (--jaeger, --tempo).",
        )
    if not result["ok"]:
        return _failed(check, signal, result, facts)
    if result["lost"] or result["said"]:
        trouble = partly_taken(result["lost"], result["said"] or NO_REASON)
        level: Level = "problem" if result["lost"] else "note"
        what = f"The {sent} reached {place}."
        return Finding(check, level, what, trouble.cause, trouble.remedy, trouble.kind)
    return Finding(check, "ok", f"The {sent} was accepted by {place}.")


def _endpoint(result: Facts) -> Endpoint | None:
    """Return the address of an OTLP server; None for another kind of exporter."""
    address = result.get("endpoint")
    return Endpoint(*address) if address else None


def _failed(check: str, signal: str, result: Facts, facts: Facts) -> Finding:
    if signal == "logs" and result.get("unsupported"):
        return Finding(
            check,
            "note",
            f"{result['destination']} accepts no logs, so events of the cluster are not exported.",
            "Jaeger and Tempo accept none. The bridge tries again each hour.",
            "Set OTEL_EXPORTER_OTLP_LOGS_ENDPOINT to a collector or Loki, or "
            "OTEL_LOGS_EXPORTER=none.",
        )
    place, reason = result["destination"], result["reason"] or NO_REASON
    endpoint = _endpoint(result)
    what = f"The {_SENT[signal]} was not accepted by {place}: {reason}."
    if endpoint is None:
        advice = result["advice"] or "See that exporter's own documentation."
        return Finding(check, "problem", what, next=advice)
    trouble = explain(endpoint, signal, reason, result["listener"])
    named = any(re.fullmatch(r"OTEL_[A-Z_]*ENDPOINT", name) for name, _, _ in facts["variables"])
    if trouble is None:
        trouble = Trouble("unknown", "", UNKNOWN)
    elif trouble.kind == "refused" and not named:
        trouble = Trouble(
            "refused",
            "No endpoint is configured, and nothing listens at the default one.",
            "Set OTEL_EXPORTER_OTLP_ENDPOINT where the scheduler runs; or otel.files.path, to "
            "write files instead.",
        )
    return Finding(check, "problem", what, trouble.cause, trouble.remedy, trouble.kind)


def _strange(results: list[Any]) -> Iterator[Finding]:
    endpoints = {one["destination"]: _endpoint(one) for one in results}
    return (
        Finding("export.address", "note", f"{place}: {oddity}")
        for place, endpoint in endpoints.items()
        if endpoint
        for oddity in oddities(endpoint)
    )


def _variables(facts: Facts) -> list[Finding]:
    values = {name: value for name, value, _ in facts["variables"]}
    sampler = values.get("OTEL_TRACES_SAMPLER", "").lower()
    none = values.get("OTEL_TRACES_SAMPLER_ARG") in ("0", "0.0")
    off = sampler.endswith("always_off") or (sampler.endswith("traceidratio") and none)
    return rows(
        (
            off,
            Finding(
                "export.sampler",
                "note",
                f"No trace is sampled: OTEL_TRACES_SAMPLER is {sampler}.",
                next="Unset it if you want traces; metrics do not depend on it.",
            ),
        ),
        *(
            (text, Finding("export.timeout", "note", text))
            for text in long_timeouts(values.items())
        ),
    )
