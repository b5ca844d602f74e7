"""Findings about everything but the export: versions, settings, the bridge, its workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dask_otel.core.text import listed
from dask_otel.doctor.exporting import NO_REASON, export_findings
from dask_otel.doctor.finding import Facts, Finding, rows
from dask_otel.report.words import counted
from dask_otel.settings.problems import ALL_KEYS

#: Seconds by which a clock may differ; spans of users' code in tasks have the same error.
CLOCK: Final = 0.5
#: Heartbeats within the settle timeout: the one after a task's end, and a late one.
_HEARTBEATS: Final = 2.0

#: Why the bridge can't deliver although the test was accepted, and the remedy.
_ACCEPTED: Final = (
    "The test was accepted there just now, over a new connection: address, headers and network are "
    "in order.",
    "Ask again in a minute: the bridge retries at least every 30 s, and with a new connection if "
    "there was no answer. If it still fails, the server refuses the content or the size of its "
    "requests, or fails at times: see the server's log.",
)
#: Counter of the bridge: the event that it counts, and the remedy.
_COUNTS: Final = {
    "dask.otel.dropped": (
        "were dropped before an endpoint accepted them",
        "The endpoint was unreachable for long, or the queue is too small "
        "(OTEL_BSP_MAX_QUEUE_SIZE): see the runbook of the alert DaskOtelDropping.",
    ),
    "dask.otel.folded": (
        "were folded into _OTHER, because they exceed the limits of names and series",
        "Take ids and dates out of span names (otel.metrics.name-rules), or use "
        "otel.metrics.span-label: root.",
    ),
    "dask.otel.sanitized": (
        "were changed: cut, or cleaned of characters that backends reject",
        "Use short texts without NUL characters as span tags.",
    ),
    "dask.otel.unsettled": (
        "were exported before all workers had reported",
        "Workers report too rarely or were blocked; raise otel.spans.settle-timeout.",
    ),
    "dask.otel.late": (
        "arrived after their span was exported",
        "They are in the metrics, not on the span; raise otel.spans.linger if it happens often.",
    ),
    "dask.otel.internal.errors": (
        "happened inside the bridge, which caught them",
        "The scheduler's log has a traceback of the first of each kind: please report it.",
    ),
}


def all_findings(facts: Facts) -> list[Finding]:
    """Return the findings in the order in which to fix them.

    Parameters
    ----------
    facts
        ``here`` (versions and fusion of this process), ``process`` (from
        `dask_otel.scheduler.examination`, for the scheduler or this process),
        ``scheduler`` (its address, or None), ``packages`` (the versions that the scheduler and its
        workers have).
    """
    process = facts["process"]
    found = _packages(facts)
    if process is not None:
        found += [*_versions(facts), *_configuration(process), *_bridge(facts)]
        found += [*export_findings(process), *_delivery(process)]
        found += [*_workers(process), *_fusion(facts)]
    return found


def _packages(facts: Facts) -> list[Finding]:
    packages = facts.get("packages")
    if packages is None:
        return []
    workers = packages["workers"] or {}
    missing = [address for address, found in workers.items() if found and not found["installed"]]
    silent = [address for address, found in workers.items() if not found]
    count = counted(len(workers), "worker")
    all_workers = "the worker" if len(workers) == 1 else f"all {count}"
    return rows(
        (
            not packages["scheduler"]["installed"],
            Finding(
                "scheduler.package",
                "problem",
                "The scheduler has no dask-otel.",
                "It is not installed in the environment that the scheduler runs in.",
                "Install it there (pip install dask-otel), and start the scheduler with "
                "--preload dask_otel, or call dask_otel.register(client).",
            ),
        ),
        (
            missing,
            Finding(
                "workers.package",
                "note",
                f"dask-otel is missing on {len(missing)} of {count}: {listed(missing)}.",
                "Their tasks run without trace context; everything else is measured.",
                "Install it where the workers run, if you want the tasks' own spans and logs in "
                "the trace.",
            ),
        ),
        (
            workers and not missing,
            Finding("workers.package", "ok", f"dask-otel is installed on {all_workers}."),
        ),
        (
            silent or packages["workers"] is None,
            Finding(
                "workers.answer",
                "problem",
                f"No answer from {counted(len(silent), 'worker')}: {listed(silent)}."
                if silent
                else "Not all workers have answered in time.",
                "They hang, or their event loops are blocked.",
                "See their logs, and the alert DaskEventLoopBlocked.",
            ),
        ),
    )


def _versions(facts: Facts) -> list[Finding]:
    here, there = facts["here"]["versions"], facts["process"]["versions"]
    names = ("dask-otel", "distributed", "opentelemetry-sdk")
    line = ", ".join(f"{name} {there.get(name) or 'missing'}" for name in names)
    differing = [
        f"{name} {here.get(name) or 'missing'} here, {there.get(name) or 'missing'} there"
        for name in ("dask-otel", "distributed", "python")
        if here.get(name) != there.get(name)
    ]
    what = f"Versions differ: {'; '.join(differing)}."
    advice = "Dask needs the same versions of Python and of itself everywhere."
    where = "scheduler" if facts["scheduler"] else "here"
    return rows(
        (differing, Finding("versions", "note", what, next=advice)),
        (not differing, Finding("versions", "ok", f"Versions ({where}): {line}.")),
    )


def _configuration(process: Facts) -> list[Finding]:
    problems, enabled = process["problems"], process.get("enabled", True)
    mistakes = process.get("mistakes", ())
    changed = sum(origin != "default" for _, _, origin in process.get("settings", ()))
    why = "With this the bridge does not start."
    advice = f"Correct it where it was set. {ALL_KEYS}"
    return [
        *(Finding("configuration", "problem", problem, why, advice) for problem in problems),
        *(
            Finding("configuration", "problem", one, "The bridge runs all the same.", advice)
            for one in mistakes
        ),
        *(
            Finding(
                "configuration",
                "problem",
                f"Nothing reads the variable {name}.",
                f"It looks like a misspelt {meant}.",
                f"Set {meant} instead, and unset {name}.",
            )
            for name, meant in process.get("misspelled", ())
        ),
        *rows(
            (
                not problems and not enabled,
                Finding(
                    "configuration",
                    "problem",
                    "otel.enabled is false: the bridge is switched off.",
                    next="Set it to true where the scheduler runs.",
                ),
            ),
            (
                not problems and not mistakes and enabled,
                Finding(
                    "configuration",
                    "ok",
                    f"The configuration is valid; {counted(changed, 'key')} differ"
                    f"{'s' if changed == 1 else ''} from the default.",
                ),
            ),
        ),
    ]


def _bridge(facts: Facts) -> list[Finding]:
    state = (facts["process"].get("bridge") or {}).get("state")
    return rows(
        (
            facts["scheduler"] is None,
            Finding(
                "bridge",
                "note",
                "No scheduler was examined, so it is unknown whether a bridge runs on one.",
                next="To examine a running one, add --scheduler ADDRESS.",
            ),
        ),
        (
            state == "running",
            Finding("bridge", "ok", f"The bridge runs on {facts['scheduler']}."),
        ),
        (
            state == "starting",
            Finding(
                "bridge",
                "problem",
                "The bridge has not made its exporters yet.",
                "It has just started, or code that it calls is slow: an exporter, a sampler, the "
                "function in otel.redact. Each gets half a minute.",
                "Ask again in a minute; the scheduler's log names what did not answer.",
            ),
        ),
        (
            state not in (None, "running", "starting"),
            Finding(
                "bridge",
                "problem",
                "The scheduler has dask-otel, but no bridge runs on it.",
                "None was requested, it is switched off, or it did not start: see the "
                "scheduler's log.",
                "Start the scheduler with --preload dask_otel, or call dask_otel.register(client).",
            ),
        ),
    )


def _delivery(process: Facts) -> Iterator[Finding]:
    bridge = process.get("bridge") or {}
    results = (process.get("probe") or {}).get("results", ())
    # By destination: whether the test of each signal was accepted.
    tested = {result["destination"]: True for result in results if result["ok"]}
    tested |= {result["destination"]: False for result in results if result["ok"] is False}
    for place in bridge.get("destinations", ()):
        if place["failing"]:
            accepted = tested.get(place["destination"])
            # A test that failed has already given the reason.
            reason = "" if accepted is False else f": {place['reason'] or NO_REASON}"
            yield Finding(
                "bridge.delivery",
                "problem",
                f"The bridge can't deliver {' and '.join(place['failing'])} to "
                f"{place['destination']} at the moment{reason}.",
                _ACCEPTED[0] if accepted else "",
                f"{bridge['waiting']} of {bridge['capacity']} places of its queue are taken; items "
                "that do not fit are dropped. "
                + (_ACCEPTED[1] if accepted else "See the test of the export."),
            )
    totals: dict[str, dict[str, float]] = {}
    for metric, *labels, value in bridge.get("counts", ()):
        if metric in _COUNTS and value:
            totals.setdefault(metric, {})["/".join(labels)] = value
    for metric, by_kind in totals.items():
        what, advice = _COUNTS[metric]
        kinds = ", ".join(f"{kind} {value:g}" for kind, value in sorted(by_kind.items()))
        yield Finding(
            f"counts.{metric.removeprefix('dask.otel.')}",
            "problem" if metric == "dask.otel.internal.errors" else "note",
            f"{sum(by_kind.values()):g} ({kinds}) {what}, as last exported ({metric}).",
            next=advice,
        )


def _workers(process: Facts) -> list[Finding]:
    workers = process.get("workers")
    if workers is None:
        return []
    count, interval = counted(workers["count"], "worker"), workers["heartbeat_interval"]
    timeout = process.get("settle_timeout")
    rare = timeout is not None and interval * _HEARTBEATS > timeout
    late = [
        f"{worker['name']} ({worker['last_seen_age']:.0f} s)"
        for worker in workers["workers"]
        if worker["last_seen_age"] > max(10.0 * interval, timeout or 0.0)
    ]
    # The least offset of each clock, for any delay of the messages.
    clocks = {one["name"]: one["clock"] for one in workers["workers"] if one["clock"] is not None}
    wrong = [
        f"{name} ({lower:.1f} s behind)"
        if lower is not None and lower > CLOCK
        else f"{name} ({-upper:.1f} s ahead)"
        for name, (lower, upper) in clocks.items()
        if (lower is not None and lower > CLOCK) or (upper is not None and upper < -CLOCK)
    ]
    if not workers["count"]:
        return [_NO_WORKERS]
    return rows(
        (
            rare,
            Finding(
                "workers.heartbeats",
                "problem",
                f"With {count}, each sends a heartbeat every {interval:g} s, but "
                f"otel.spans.settle-timeout is {timeout or 0:g} s.",
                "Spans are exported before the last metrics of their tasks arrive.",
                f"Set otel.spans.settle-timeout to {4 * interval:g}s or more.",
            ),
        ),
        (
            late,
            Finding(
                "workers.heartbeats",
                "problem",
                f"No recent heartbeat from {counted(len(late), 'worker')}: {listed(late)}.",
                "They hang, their event loops are blocked, or the network is gone.",
                "See their logs, and the alert DaskEventLoopBlocked.",
            ),
        ),
        (
            not late and not rare,
            Finding(
                "workers.heartbeats",
                "ok",
                f"Each worker sends a heartbeat about every {interval:g} s ({count}).",
            ),
        ),
        (
            wrong,
            Finding(
                "workers.clocks",
                "problem",
                f"The clock differs from the scheduler's on {counted(len(wrong), 'worker')}: "
                f"{listed(wrong)}.",
                "The bridge corrects Dask's times; spans and logs from code in tasks keep the "
                "worker's, and lie outside their parents.",
                "Let NTP or chrony set the clocks of these machines.",
            ),
        ),
        (
            clocks and not wrong,
            Finding(
                "workers.clocks",
                "ok",
                f"Clocks differ from the scheduler's by at most {CLOCK:g} s, as far as is known "
                f"({counted(len(clocks), 'worker')}).",
            ),
        ),
    )


_NO_WORKERS: Final = Finding(
    "workers.count",
    "problem",
    "The scheduler has no workers: it can run no task.",
    "None has started, they can't reach it, or an adaptive cluster has no work.",
    "Start workers, and see their logs; with an adaptive cluster, submit work and ask again.",
)


def _fusion(facts: Facts) -> list[Finding]:
    # Array graphs are optimised here, or, in newer releases, on the scheduler.
    return rows(
        (
            facts["here"]["fusion"] is not False,
            Finding(
                "fusion",
                "note",
                "optimization.fuse.active is not False here.",
                "When Dask fuses tasks of arrays and delayed calls, they lose their spans: the "
                "work is booked on the span `default`.",
                'Where you compute, call dask.config.set({"optimization.fuse.active": False}).',
            ),
        )
    )
