"""``docs/reliability.md`` and the page of evidence, made from the scenarios and their results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.results import table

from chaos import suites
from chaos.catalogue import SCENARIOS
from chaos.ratios import ALLOWANCE, ALLOWED_CORE, LOOKS, TASKS
from chaos.results import REPOSITORY
from chaos.scenario import BOUNDED, KEPT, SHORT, SKIPPED, Scenario

PAGE = REPOSITORY / "docs" / "reliability.md"
EVIDENCE = REPOSITORY / "docs" / "reliability-evidence.md"

_TOP = """# Faults, and what they do

<!-- made by `python -m chaos --page` -->

The bridge raises no exception into Dask in any of these faults. A fault of the collector slows down
no task; the log has one warning when it begins, and one line when it is over. The last column
counts the runs that kept this promise; [the evidence](reliability-evidence.md) lists each of them.

"""

#: A fault as a user knows it, the effect on telemetry, the loss, and the scenarios.
ROWS = (
    (
        "The collector is down, hangs, is slow, or its connections break",
        "It waits, and arrives once; a lost answer causes repeated spans, with the same ids",
        "Spans beyond a queue of 2,048 ([with a spool](spool.md): beyond 256 MiB)",
        "down-at-start down-and-back silent drip cut",
    ),
    (
        "The collector answers with an error, a pause or a redirect",
        "It waits as long as the collector asks (30 s at most), and arrives once",
        "As above",
        "refused unavailable long-pause redirect",
    ),
    (
        "The collector refuses single spans; large requests, or a part of one, are "
        "[tested apart](reliability-evidence.md#not-shown-here)",
        "Everything that it accepts arrives once",
        "What it refuses, counted as `rejected`",
        "poison",
    ),
    (
        "The collector is away for longer than the queue holds",
        "What the queue holds arrives once; counters lose nothing",
        "All other spans, counted as `queue_full`",
        "queue-full",
    ),
    (
        "Its name does not resolve; a proxy or TLS is wrong on the way",
        "It arrives once after the repair",
        "As above. With `http://` and a server that wants TLS, requests are sent unencrypted",
        "dead-name late-name tls-untrusted tls-name tls-to-plain plain-to-tls connect-proxy",
    ),
    (
        "The scheduler is stopped by an operator (SIGTERM, Ctrl-C)",
        "All spans arrive, open ones as incomplete",
        "Everything that the collector does not accept within `otel.close-timeout` (5 s)",
        "sigterm ctrl-c",
    ),
    (
        "The scheduler is killed (SIGKILL, out of memory)",
        "Everything that was sent before",
        "Open spans, the last second of spans, the last minute of counters, all queues",
        "sigkill-scheduler",
    ),
    (
        "A killed scheduler, or a close without a collector, with a spool (`otel.spool.path`)",
        "The next scheduler sends the spans, open ones as incomplete",
        "The last 0.2 s of spans, the last minute of counters",
        "spool-overlap spool-kills",
    ),
    (
        "Workers are killed",
        "Every number is Dask's own",
        "Seconds that a killed worker had not reported to Dask",
        "sigkill-workers",
    ),
    (
        "Workers or the scheduler are stopped, or cut off from one another",
        "Every number is Dask's own",
        "Nothing; as above, if Dask gives the worker up",
        "",
    ),
    (
        "The scheduler's process forks",
        "The parent goes on; children send nothing",
        "Nothing",
        "fork-scheduler",
    ),
    (
        "The machine has no file descriptor",
        "It arrives once there is one again",
        "Nothing",
        "no-descriptors",
    ),
    (
        "A clock is set by hours",
        "Right order, no negative time",
        "The duration of spans that are open at that moment",
        "",
    ),
    (
        "Much work: a million tasks, a month of spans, a thousand new names an hour",
        "Everything arrives, in bounded memory; names beyond the limit as `_OTHER`",
        "Nothing",
        "million month",
    ),
)

_HEAD = """# Faults: the evidence

<!-- made by `python -m chaos --page` of chaos/results/latest.json -->

Each row has a fault, its promise, and the behaviour of a real cluster: `dask scheduler` and
`dask worker` processes, and a receiver behind a network that fails on purpose. The ground truth is
the client's submissions and Dask's own counters: each span and each increment must arrive once.
There is [a summary](reliability.md).

```console
make chaos                       # rows without a result for this code; continues where it stopped
CHAOS_AWAY=15 make chaos         # the collector is away for 15 s instead of two minutes
python -m chaos silent drip      # two rows again
python -m chaos --list           # all rows
CHAOS_TASKS=20000 CHAOS_SPANS=400 python -m chaos million   # a long row, made short
```

Long rows print their progress; `CHAOS_SECONDS` and `CHAOS_DAYS` shorten `sigkill-workers` and
`month`. The month has a real scheduler, whose workers are simulated.

The page is generated from [`chaos/results/latest.json`](../chaos/results/latest.json). The machine
did other work at the same time. `OTEL_EXPORTER_OTLP_TIMEOUT` was 2 s, the export
interval 0.5 s, the schedule delay 0.1 s, the linger 0.
"""

_FOOT = """
## What the bridge cannot promise

- **Data of a killed scheduler** (`kill -9`, the OOM killer, power), without a spool. The process
  loses everything that it had not sent: all open, settling and lingering spans, spans that ended
  within the last `OTEL_BSP_SCHEDULE_DELAY` (1 s) plus the time of a request, and the increments
  since the last export, at most `OTEL_METRIC_EXPORT_INTERVAL` (60 s) plus the time of a request. A
  new scheduler counts from 0, under its own `service.instance.id`. [Files](files.md) stay. Spans
  that were open for longer than `otel.spans.progress-after` have left their
  [signs of life](lifecycle.md#long-spans).
- **All data with [a spool](spool.md)** (`otel.spool.path`). The next scheduler sends the ended
  spans, and the open ones as incomplete. Still lost: spans that began or ended within the last
  fifth of a second (longer on a busy disk or machine); [what a span knows only at its
  end](lifecycle.md#a-scheduler-that-is-killed); and the increments since the last export. A spool
  does not help if the power fails, because the kernel writes the file later.
- **Spans of an outage that is longer than the queue.** Spans beyond `OTEL_BSP_MAX_QUEUE_SIZE`
  (2048) are dropped, and counted in `dask.otel.dropped` as `queue_full`. With a spool they wait on
  the disk; beyond `otel.spool.max-size` (256 MiB) the oldest are dropped, and counted as
  `spool_full`. Metrics are totals, so their next export is complete.
- **Data at a close without a collector.** If the collector has not accepted data within
  `otel.close-timeout` (5 s), they are dropped, counted as `shutdown`, and logged. With a spool the
  spans stay on the disk.
- **A quick close with a busy collector** (429, 502, 503, 504; gRPC likewise), or one that does not
  answer. It may still accept the data, so it gets all of `otel.close-timeout`. If nobody listens, a
  name does not resolve, one side refuses TLS, or connections break, it is asked once more.
- **A warning about slow headers over HTTP.** HTTP clients restart their timeout with each byte:
  until the headers of an answer are complete, the bridge waits without a warning.
- **One copy after a lost answer.** The bridge cannot know whether the collector has the data, and
  sends them again. A span has the same ids each time, a cumulative point the same value. With delta
  temporality such a point counts twice.
- **Silence of the gRPC library.** If TLS is refused, it writes a line (`ssl_transport_security`) to
  the scheduler's standard error at each attempt. `GRPC_VERBOSITY=ERROR` prevents that.
- **Secrecy with the wrong scheme.** If the endpoint says `http` and the server wants TLS, the
  request is sent unencrypted, with its headers, before the server can refuse it.
- **A start and an end without cost.** The imports of OpenTelemetry's SDK and the bridge take 0.2 to
  0.3 s, once in each process with a scheduler, and each start and close takes 0.01 to 0.02 s. That
  is little for a working cluster. It is a sixth of the time of tests that start a cluster each.
- **The last seconds of a killed worker.** Dask does not know the seconds since its last heartbeat,
  so the bridge does not know them either.
- **The duration of a span that is open while the scheduler's clock is set.** The span has the times
  that the clock showed. If the clock is set ahead by 3 h, the span is 3 h longer; if the clock is
  set back, the span is shorter, down to no duration. Points of metrics never go back in time: after
  a clock was set back, they are 2 ms apart until it has caught up.
- **A scheduler without memory.** The queue is bounded, so leave room for it: a record with a stack
  trace takes up to 24 KiB, 48 MiB for the default of `OTEL_BSP_MAX_QUEUE_SIZE`. The bridge catches
  its own errors for lack of memory. Dask does not: if no memory is left, it closes connections and
  loses its workers, with the bridge and without.
- **Metrics without memory.** An increment that could not be added for lack of memory is lost, and
  counted in `dask.otel.sanitized` as `error`.

## Not shown here

If the code changed after a run, the results file names the older code by its hash. These faults
have tests in place of runs, because tests show them exactly:

| fault | tests |
| --- | --- |
| clocks that are set by hours | `tests/simulated/test_clocks.py`, `test_late_heartbeats.py` |
| processes and networks that stand still | `tests/simulated/test_late_heartbeats.py` |
| each answer of a server, over real sockets | `tests/otlp/test_answers.py` |
| requests that are too large, taken in part, or have to wait, or find no memory | \
`tests/unit/test_lanes.py`, `test_pump.py` |
| counters of any names, beyond all limits | `tests/unit/test_series_model.py` |
| spans that wait in a spool beyond the queue, and a spool's full disk | \
`tests/unit/test_feeder.py`, `test_spool_store.py` |
| a killed scheduler whose spool the next one sends | `tests/cluster/test_spool.py` |
| files on a full disk | `tests/unit/test_rotated.py` |
| tasks that log as fast as they can, and the last lines of a lost worker | \
`tests/unit/test_lines.py` |

Small differences between clocks have [their own tests](lifecycle.md#times-across-workers). The
thread-seconds of long histories, at each moment, are compared by `make lab`, in
[simulated time](laboratory.md). `tests/backends/test_prometheus.py` shows how a real Prometheus
counts a series that retires and returns.
"""


_COSTS = f"""
## What a fault costs

Each fault above is compared with the same work without the fault, and without the bridge. Three
clusters of the same age run blocks of {TASKS} tiny tasks in turn, in a different order each round;
one of them has the fault. The table has the median of the rounds' ratios and a 95 % interval. CPU
is that of the scheduler's process with all threads, per task, over whole rounds. Metrics are
exported every 0.5 s, 120 times as often as by default, so the cost compared with no bridge is
higher than in normal use.

A fault is "worse", and its promise broken, if the whole interval of its CPU is above
{ALLOWANCE:.2f} times the CPU without the fault, and the extra CPU above {ALLOWED_CORE:.0%} of a
core; or if its tasks a second are wholly below 1/{ALLOWANCE:.2f} of those without the fault. It is
"no worse" if the intervals end within these limits, and "undecided" otherwise, after {LOOKS} times
as many rounds.

"""
_COST_COLUMNS = (
    "fault", "CPU / no fault", "more of a core", "CPU / no bridge", "tasks/s / no fault",
    "tasks/s / no bridge", "rounds", "verdict",
)  # fmt: skip

_NOT_RUN = {"observed": SKIPPED, "verdict": SKIPPED}


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _runs(one: Scenario, results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the results of a scenario by protocol."""
    found = {SHORT[protocol]: f"{one.name} {SHORT[protocol]}" for protocol in one.protocols}
    return {short: results["results"].get(key, _NOT_RUN) for short, key in found.items()}


def _row(one: Scenario, results: dict[str, Any]) -> list[str]:
    found = _runs(one, results)
    observed = [f"{short}: {_cell(result['observed'])}" for short, result in found.items()]
    verdicts = {short: result["verdict"] for short, result in found.items()}
    verdict = ", ".join(f"{short} {words}" for short, words in verdicts.items())
    if len(set(verdicts.values())) == 1:
        verdict = next(iter(verdicts.values()))
    return [
        _cell(one.fault), _cell(one.promise), "<br>".join(observed), verdict,
        f"`python -m chaos {one.name}`",
    ]  # fmt: skip


def _ratio(figures: Sequence[float]) -> str:
    return "{:.2f} [{:.2f}, {:.2f}]".format(*figures)


def cost_in_words(result: dict[str, Any]) -> str:
    """Return what a fault costs, in a few words; nothing if that was not measured."""
    if "cost" not in result:
        return ""
    cost = result["cost"]
    cpu, rate = (_ratio(cost[name]["by no fault"]) for name in ("cpu", "rate"))
    return f"; {cost['verdict']}: CPU {cpu}, tasks per second {rate} of no fault"


def _costs(results: dict[str, Any]) -> str:
    rows = [
        (
            f"`{one.name}`, {short}",
            _ratio(cost["cpu"]["by no fault"]),
            "{:.1%} [{:.1%}, {:.1%}]".format(*cost["core"]),
            _ratio(cost["cpu"]["by no bridge"]),
            _ratio(cost["rate"]["by no fault"]),
            _ratio(cost["rate"]["by no bridge"]),
            cost["rounds"],
            cost["verdict"],
        )
        for one in SCENARIOS.values()
        for short, result in _runs(one, results).items()
        if (cost := result.get("cost"))
    ]
    return _COSTS + table(_COST_COLUMNS, rows) if rows else ""


def summary(results: dict[str, Any]) -> str:
    """Return the page for users: one table."""
    rows = []
    for *words, names in ROWS:
        runs = [run for name in names.split() for run in _runs(SCENARIOS[name], results).values()]
        verdicts = Counter("kept" if run["verdict"] in (KEPT, BOUNDED) else run["verdict"]
                           for run in runs)  # fmt: skip
        shown = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        # What needs no real process.
        shown = shown or "exact in [simulated time](laboratory.md)"
        rows.append((*words, shown))
    columns = ("fault", "telemetry", "lost", "runs")
    return _TOP + table(columns, rows)


def evidence(results: dict[str, Any]) -> str:
    """Return the page with each run."""
    text = _HEAD
    if machine := dict(results["machine"]):
        system, cores = machine.pop("system"), machine.pop("cores")
        versions = ", ".join(f"{name} {value}" for name, value in machine.items())
        text += f"\nLast run: {system}, {cores} cores, {versions}.\n"
    for section in dict.fromkeys(one.section for one in SCENARIOS.values()):
        rows = [_row(one, results) for one in SCENARIOS.values() if one.section == section]
        columns = ("fault", "promise", "observed", "verdict", "command")
        text += f"\n## {section}\n\n{table(columns, rows)}"
    return text + _costs(results) + suites.sections() + _FOOT


def write(results: dict[str, Any]) -> None:
    """Write both pages."""
    PAGE.write_text(summary(results), encoding="utf-8")
    EVIDENCE.write_text(evidence(results), encoding="utf-8")
