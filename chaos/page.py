"""``docs/reliability.md``, written of the scenarios and their results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from chaos import suites
from chaos.catalogue import SCENARIOS
from chaos.ratios import ALLOWANCE, ALLOWED_CORE, LOOKS, TASKS
from chaos.results import REPOSITORY
from chaos.scenario import SHORT, SKIPPED, Scenario

PAGE = REPOSITORY / "docs" / "reliability.md"

_HEAD = """# Faults, and what was seen

<!-- made by `python -m chaos --page` of chaos/results/latest.json -->

Each row is a fault, what is promised for it, and what a real cluster did: `dask scheduler` and
`dask worker` processes, and a receiver behind a network that
fails on purpose. What the client submitted and Dask's own counters decide: each span and each
increment has to arrive once.

```console
make chaos                       # what has no result for this code yet; goes on where it stopped
CHAOS_AWAY=15 make chaos         # with a collector that is away for less than two minutes
python -m chaos silent drip      # two rows again
python -m chaos --list           # what there is
CHAOS_TASKS=20000 CHAOS_SPANS=400 python -m chaos million   # a long row, made short
```

The long rows tell how far they are; `CHAOS_SECONDS`, `CHAOS_DAYS` and `CHAOS_HOURS` make
`sigkill-workers`, `month` and `names` short. Rows of simulated time run the core, or its metrics
against a real Prometheus (`make backends`), without a cluster.

The page is made of [`chaos/results/latest.json`](../chaos/results/latest.json). Times are those
of a machine that did other things as well. `OTEL_EXPORTER_OTLP_TIMEOUT` was 2 s, the export
interval 0.5 s, the schedule delay 0.1 s, the linger 0.

"""

_FOOT = """
## What can't be kept

- **A killed scheduler** (`kill -9`, the OOM killer, power), without a spool. What the process
  knew and had not sent is lost. That is every span that was open, settled or lingered, spans
  that ended within the last `OTEL_BSP_SCHEDULE_DELAY` (1 s) and the time of a request, and what
  counters grew by since the last export, `OTEL_METRIC_EXPORT_INTERVAL` (60 s) at most and the
  time of a request. A new scheduler counts from 0, under a `service.instance.id` of its own. With
  [files](files.md), what was written stays. Spans that were open for longer than
  `otel.spans.progress-after` have left their [signs of life](lifecycle.md#long-spans).
- **With [a spool](spool.md)** (`otel.spool.path`), the next scheduler sends what had ended, and
  what was open as incomplete. What is left: a fifth of a second until a span that began or ended
  is in the file, more where the disk or the machine is busy; [what a span knows only at its
  end](lifecycle.md#a-scheduler-that-is-killed); and what counters grew by since the last export,
  as above. It is not for power that fails: the file is the kernel's until it is written.
- **A collector that is away for longer than the queue holds.** Spans beyond
  `OTEL_BSP_MAX_QUEUE_SIZE` (2048) are dropped and counted in `dask.otel.dropped` as
  `queue_full`. With a spool they wait there, and the oldest are dropped and counted as `spool_full`
  beyond `otel.spool.max-size` (256 MiB). Metrics are totals: their next export has all of it.
- **A collector that is away when the scheduler closes.** What it had not taken within
  `otel.close-timeout` (5 s) is dropped, counted as `shutdown`, and said in the log. With a spool
  it stays there.
- **A quick close where the collector says that it is busy** (429, 502, 503, 504; gRPC likewise) or
  says nothing. It may take the data yet, and gets all of `otel.close-timeout`. Where nobody
  listens, a name does not resolve, one side refuses TLS, or connections break, a close takes a
  second longer.
- **A warning about an answer whose head drips over HTTP.** The time that HTTP clients wait begins
  anew with each byte: until the head is there, the bridge waits, and says nothing.
- **An answer that gets lost.** Nobody can tell whether the collector has the data: they are
  sent again. A span has the same ids each time, a cumulative point the same value. With delta
  temporality such a point counts twice.
- **Silence of gRPC's own library.** Where TLS is refused, it writes a line of its own
  (`ssl_transport_security`) to the scheduler's standard error at each try; `GRPC_VERBOSITY=ERROR`
  ends that.
- **A request in clear where `http` was configured, and the server wants TLS.** Over HTTP it is out
  before the server can refuse it, with its headers.
- **A start and an end that take no time.** OpenTelemetry's SDK and the bridge are imported in 0.2
  to 0.3 s, once in each process with a scheduler, and each start and close takes 0.01 to 0.02 s.
  That is little for a cluster that works, and a sixth of the time of tests that start a cluster
  each: see above.
- **A killed worker.** Seconds that it had not reported with its last heartbeat are unknown to
  Dask, and so are they here.
- **A span that is open while the scheduler's clock is set.** It has the times that the clock
  showed: one that is set ahead by 3 h makes it 3 h longer, one that is set back makes it short,
  down to no length at all. Points of metrics never go back in time: after a clock was set back,
  they come 2 ms apart until it has caught up.
- **A scheduler without memory.** The queue is bounded, so leave room for it: a record with a
  stack trace takes up to 24 KiB, 48 MiB for the default of `OTEL_BSP_MAX_QUEUE_SIZE`. Errors for
  lack of memory end in the bridge. Dask's own do not: where nothing at all is left, it closes
  connections and loses its workers, with the bridge and without.
- **Metrics without memory.** An increment that could not be added for lack of memory is lost, and
  counted in `dask.otel.sanitized` as `error`.

## What is not shown here yet

Rows that were not run again after a change of the code have its hash of then in the file of
results. Clocks that are set are those that Python reads, `time.time` and `time.time_ns`, of real
processes: `datetime.now` and what is written in C are not told. Small differences between clocks
have [tests of their own](lifecycle.md#times-across-workers).
"""


_COSTS = f"""
## What a fault costs

Each fault above beside the same work without it, and beside the same work without the bridge.
Three clusters of the same age run blocks of {TASKS} tiny tasks in turn, round after round, each
time in another order, while one of them is in the fault. Shown is the median of the rounds' ratios,
and an interval that holds the true one with 95 %. CPU is that of the scheduler's process for each
task, with all of its threads, over whole rounds. Metrics are exported each 0.5 s, 120 times as
often as by default: beside no bridge, that costs more than it does elsewhere.

A fault is "worse", and its promise broken, if an interval lies wholly beyond {ALLOWANCE:.2f} times
the CPU of no fault (and beyond {ALLOWED_CORE:.0%} of a core), or {ALLOWANCE:.2f} times its seconds;
"no worse" if the intervals end before that. Else it is "undecided", after {LOOKS} times
as many rounds.

| fault | CPU / no fault | more of a core | CPU / no bridge | tasks/s / no fault \
| tasks/s / no bridge | rounds | verdict |
|---|---|---|---|---|---|---|---|
"""


_NOT_RUN = {"observed": SKIPPED, "verdict": SKIPPED}


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _rows(one: Scenario, results: dict[str, Any]) -> Iterator[str]:
    found = {
        protocol: results.get(f"{one.name} {SHORT[protocol]}", _NOT_RUN)
        for protocol in one.protocols
    }
    seen = "<br>".join(
        f"{SHORT[protocol]}: {_cell(result['observed'])}" for protocol, result in found.items()
    )
    verdicts = [result["verdict"] for result in found.values()]
    verdict = (
        verdicts[0]
        if len(set(verdicts)) == 1
        else ", ".join(
            f"{SHORT[protocol]} {result['verdict']}" for protocol, result in found.items()
        )
    )
    yield f"| {_cell(one.fault)} | {_cell(one.promise)} | {seen} | {verdict} | `{one.how}` |"


def _ratio(figures: Sequence[float]) -> str:
    return "{:.2f} [{:.2f}, {:.2f}]".format(*figures)


def cost_said(result: dict[str, Any]) -> str:
    """Return what a fault costs, in a few words; nothing if that was not measured."""
    if "cost" not in result:
        return ""
    cost = result["cost"]
    cpu, rate = (_ratio(cost[name]["by no fault"]) for name in ("cpu", "rate"))
    return f"; {cost['verdict']}: CPU {cpu}, tasks per second {rate} of no fault"


def _costs(results: dict[str, Any]) -> str:
    rows = []
    for one in SCENARIOS.values():
        for protocol in one.protocols:
            key = f"{one.name} {SHORT[protocol]}"
            cost = results.get(key, {}).get("cost")
            if cost is None:
                continue
            figures = [
                _ratio(cost[name][by])
                for name in ("cpu", "rate")
                for by in ("by no fault", "by no bridge")
            ]
            figures.insert(1, "{:.1%} [{:.1%}, {:.1%}]".format(*cost["core"]))
            cells = [f"`{one.name}`, {SHORT[protocol]}", *figures, cost["rounds"], cost["verdict"]]
            rows.append(f"| {' | '.join(map(str, cells))} |\n")
    return _COSTS + "".join(rows) if rows else ""


def text(results: dict[str, Any]) -> str:
    """Return the page."""
    lines = [_HEAD.rstrip("\n")]
    machine = results["machine"]
    if machine:
        said = ", ".join(
            f"{name} {value}" if name != "cores" else f"{value} cores"
            for name, value in machine.items()
            if name != "system"
        )
        lines += ["", f"Last run: {machine['system']}, {said}."]
    for section in dict.fromkeys(one.section for one in SCENARIOS.values()):
        lines += [
            "",
            f"## {section}",
            "",
            "| fault | promise | observed | verdict | command |",
            "|---|---|---|---|---|",
        ]
        for one in SCENARIOS.values():
            if one.section == section:
                lines += _rows(one, results["results"])
    parts = [_costs(results["results"]), suites.sections(), _FOOT]
    return "\n".join(lines) + "\n" + "".join(parts)


def write(results: dict[str, Any]) -> None:
    """Write the page."""
    PAGE.write_text(text(results), encoding="utf-8")
