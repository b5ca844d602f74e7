"""Findings about everything but the export: versions, settings, the bridge, its workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dask_otel.doctor.exporting import NO_REASON, export_findings
from dask_otel.doctor.finding import Finding

#: Seconds by which a clock may differ: what a user's code traces in tasks is as wrong.
CLOCK: Final = 0.5
#: Heartbeats that have to fit the settle timeout: the one after a task's end, and one that is late.
_HEARTBEATS: Final = 2.0

#: What the bridge's own counters tell of: what it is, and what to do.
_COUNTS: Final = {
    "dask.otel.dropped": (
        "were dropped before they got anywhere",
        "See the alert DaskOtelDropping in the runbooks: an endpoint that was away for long, or a "
        "queue that is too small (OTEL_BSP_MAX_QUEUE_SIZE).",
    ),
    "dask.otel.folded": (
        "were folded into _OTHER, over the limits of names and series",
        "Take ids and dates out of span names (otel.metrics.name-rules), or use "
        "otel.metrics.span-label: root.",
    ),
    "dask.otel.sanitized": (
        "had to be changed: cut, or rid of characters that no backend takes",
        "Use short texts without NUL characters as span tags.",
    ),
    "dask.otel.unsettled": (
        "were exported before all workers had reported",
        "Workers report too rarely or were blocked; raise otel.spans.settle-timeout.",
    ),
    "dask.otel.late": (
        "came for spans that had been exported",
        "They are in the metrics, not on the span; raise otel.spans.linger if it happens often.",
    ),
    "dask.otel.internal.errors": (
        "were swallowed inside the bridge",
        "The scheduler's log has a traceback of the first of each kind: please report it.",
    ),
}

Facts = Mapping[str, Any]


def all_findings(facts: Facts) -> list[Finding]:
    """Return what there is to say about the facts, in the order in which one would fix it.

    Parameters
    ----------
    facts
        ``here`` (versions and fusion of this process), ``process`` (as
        `dask_otel.scheduler.examination` tells it, of the scheduler or of this process),
        ``scheduler`` (its address, or None), ``packages`` (what the scheduler and its workers
        have).
    """
    process = facts["process"]
    found = [*_packages(facts), *_versions(facts)]
    if process is not None:
        found += [*_configuration(process), *_bridge(facts), *export_findings(process)]
        found += [*_delivery(process), *_workers(process), *_fusion(facts)]
    return found


def _packages(facts: Facts) -> Iterator[Finding]:
    packages = facts.get("packages")
    if packages is None:
        return
    scheduler, workers = packages["scheduler"], packages["workers"]
    if scheduler is not None and not scheduler["installed"]:
        yield Finding(
            "scheduler.package",
            "problem",
            "The scheduler has no dask-otel.",
            "It is not installed in the environment that the scheduler runs in.",
            "Install it there (pip install dask-otel), and start the scheduler with "
            "--preload dask_otel, or call dask_otel.register(client).",
        )
    missing = [address for address, found in workers.items() if found and not found["installed"]]
    silent = [address for address, found in workers.items() if not found]
    if missing:
        yield Finding(
            "workers.package",
            "note",
            f"{len(missing)} of {_count(len(workers), 'worker')} without dask-otel: "
            f"{_some(missing)}.",
            "Their tasks run without trace context; all else is measured all the same.",
            "Install it where the workers run, if what tasks trace or log is to be part of the "
            "trace.",
        )
    elif workers:
        yield Finding(
            "workers.package", "ok", f"dask-otel is on all of {_count(len(workers), 'worker')}."
        )
    if silent:
        yield Finding(
            "workers.answer",
            "problem",
            f"No answer from {_count(len(silent), 'worker')}: {_some(silent)}.",
            "They hang, or their event loops are blocked.",
            "See their logs, and the alert DaskEventLoopBlocked.",
        )


def _versions(facts: Facts) -> Iterator[Finding]:
    process = facts["process"]
    here = facts["here"]["versions"]
    if process is None:
        return
    there = process["versions"]
    names = ("dask-otel", "distributed", "opentelemetry-sdk")
    line = ", ".join(f"{name} {there.get(name) or 'missing'}" for name in names)
    where = "scheduler" if facts["scheduler"] else "here"
    differing = [
        f"{name} {here.get(name) or 'missing'} here, {there.get(name) or 'missing'} there"
        for name in ("dask-otel", "distributed", "python")
        if here.get(name) != there.get(name)
    ]
    if differing:
        yield Finding(
            "versions",
            "note",
            f"Versions differ: {'; '.join(differing)}.",
            todo="Dask wants the same versions of Python and of itself everywhere.",
        )
    else:
        yield Finding("versions", "ok", f"Versions ({where}): {line}.")


def _configuration(process: Facts) -> Iterator[Finding]:
    for problem in process["problems"]:
        yield Finding(
            "configuration",
            "problem",
            problem,
            "With this the bridge does not start.",
            "Correct it where it was set; docs/configuration.md has all keys and variables.",
        )
    for name, meant in process.get("misspelled", ()):
        yield Finding(
            "configuration",
            "problem",
            f"Nothing reads the variable {name}.",
            f"It looks like a typing error of {meant}.",
            f"Set {meant} instead, and unset {name}.",
        )
    if process["problems"]:
        return
    if not process.get("enabled", True):
        yield Finding(
            "configuration",
            "problem",
            "otel.enabled is false: the bridge is switched off.",
            todo="Set it to true where the scheduler runs.",
        )
        return
    changed = sum(origin != "default" for _, _, origin in process["settings"])
    yield Finding(
        "configuration",
        "ok",
        f"The configuration is valid; {_count(changed, 'key')} set to other than the default.",
    )


def _bridge(facts: Facts) -> Iterator[Finding]:
    process = facts["process"]
    bridge = process.get("bridge")
    if bridge is None:
        return
    state = bridge["state"]
    if state == "running":
        yield Finding("bridge", "ok", f"The bridge runs on {facts['scheduler']}.")
    elif state == "starting":
        yield Finding(
            "bridge",
            "problem",
            "The bridge has not made its exporters yet.",
            "It has just started, or a resource detector hangs.",
            "Ask again in a minute; see OTEL_EXPERIMENTAL_RESOURCE_DETECTORS.",
        )
    else:
        yield Finding(
            "bridge",
            "problem",
            "The scheduler has dask-otel, and no bridge runs on it.",
            "Nobody has asked for one, it is switched off, or it did not start: the scheduler's "
            "log says why.",
            "Start the scheduler with --preload dask_otel, or call dask_otel.register(client).",
        )


def _delivery(process: Facts) -> Iterator[Finding]:
    bridge = process.get("bridge") or {}
    failing = [place for place in bridge.get("destinations", ()) if place["failing"]]
    results = (process.get("probe") or {}).get("results", ())
    tested = {result["destination"] for result in results if result["ok"] is False}
    for place in failing:
        yield Finding(
            "bridge.delivery",
            "problem",
            f"The bridge can't deliver {' and '.join(place['failing'])} to {place['destination']} "
            "at the moment"
            # The test has just said why.
            + ("." if place["destination"] in tested else f": {place['reason'] or NO_REASON}."),
            todo=f"{bridge['waiting']} of {bridge['capacity']} places of its queue are taken; what "
            "does not fit is dropped. See the test of the export.",
        )
    totals: dict[str, dict[str, float]] = {}
    for metric, *labels, value in bridge.get("counts", ()):
        if metric in _COUNTS and value:
            totals.setdefault(metric, {})["/".join(labels)] = value
    for metric, by_kind in totals.items():
        what, todo = _COUNTS[metric]
        kinds = ", ".join(f"{kind} {value:g}" for kind, value in sorted(by_kind.items()))
        yield Finding(
            f"counts.{metric.removeprefix('dask.otel.')}",
            "problem" if metric == "dask.otel.internal.errors" else "note",
            f"{sum(by_kind.values()):g} ({kinds}) {what}, as last exported ({metric}).",
            todo=todo,
        )


def _workers(process: Facts) -> Iterator[Finding]:
    workers = process.get("workers")
    if workers is None:
        return
    if not workers["count"]:
        yield Finding(
            "workers.count",
            "problem",
            "The scheduler has no workers: it can run no task.",
            "None has started, they can't reach it, or an adaptive cluster has no work.",
            "Start workers, and see their logs; where the cluster adapts, submit work and ask "
            "again.",
        )
        return
    interval, timeout = workers["heartbeat_interval"], process.get("settle_timeout")
    if timeout is not None and interval * _HEARTBEATS > timeout:
        yield Finding(
            "workers.heartbeats",
            "problem",
            f"With {_count(workers['count'], 'worker')} Dask wants a heartbeat of each every "
            f"{interval:g} s, and otel.spans.settle-timeout is {timeout:g} s.",
            "Spans are exported before the last metrics of their tasks are in.",
            f"Set otel.spans.settle-timeout to {4 * interval:g}s or more.",
        )
    late = [
        f"{worker['name']} ({worker['last_seen_age']:.0f} s)"
        for worker in workers["workers"]
        if worker["last_seen_age"] > max(10.0 * interval, timeout or 0.0)
    ]
    if late:
        yield Finding(
            "workers.heartbeats",
            "problem",
            f"Nothing has been heard for long of {_count(len(late), 'worker')}: {_some(late)}.",
            "They hang, their event loops are blocked, or the network is gone.",
            "See their logs, and the alert DaskEventLoopBlocked.",
        )
    elif not (timeout is not None and interval * _HEARTBEATS > timeout):
        yield Finding(
            "workers.heartbeats",
            "ok",
            f"Heartbeats come every {interval:g} s or so, from "
            f"{_count(workers['count'], 'worker')}.",
        )
    yield from _clocks(workers["workers"])


def _clocks(workers: list[Any]) -> Iterator[Finding]:
    known = [(worker, worker["clock"]) for worker in workers if worker["clock"] is not None]
    wrong = []
    for worker, (lower, upper) in known:
        # The least that it is off by, whatever the messages took.
        if lower is not None and lower > CLOCK:
            wrong.append(f"{worker['name']} ({lower:.1f} s behind)")
        elif upper is not None and upper < -CLOCK:
            wrong.append(f"{worker['name']} ({-upper:.1f} s ahead)")
    if wrong:
        yield Finding(
            "workers.clocks",
            "problem",
            f"The clock differs from the scheduler's on {_count(len(wrong), 'worker')}: "
            f"{_some(wrong)}.",
            "The bridge corrects Dask's times; spans and logs of the code in tasks keep the "
            "worker's, and lie outside of their parents.",
            "Let NTP or chrony set the clocks of these machines.",
        )
    elif known:
        yield Finding(
            "workers.clocks",
            "ok",
            f"No clock of {_count(len(known), 'worker')} is known to differ by more than "
            f"{CLOCK:g} s.",
        )


def _fusion(facts: Facts) -> Iterator[Finding]:
    # Graphs of arrays are optimised here, or on the scheduler by newer releases.
    if facts["here"]["fusion"] is False:
        return
    yield Finding(
        "fusion",
        "note",
        "optimization.fuse.active is not False here.",
        "When Dask fuses tasks of arrays and delayed calls, they lose their spans: the work is "
        "booked on the span `default`.",
        'Where you compute, dask.config.set({"optimization.fuse.active": False}).',
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
