"""The page of the documentation: the table, the machine, and how to read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.results import Row, table

DOCS = Path(__file__).parent.parent / "docs"

_HEAD = """# What the bridge costs

One command measures everything on any machine, without a server or an account:

```console
make bench                                      # about an hour; two quiet cores are best
python -m benchmarks --quick                    # rough, some minutes
python -m benchmarks --row 1 --pairs 60         # one row, narrower intervals
python -m benchmarks --page                     # everything, and this page anew
python -m benchmarks --check                    # or make bench-check: has it become slower?
python -m benchmarks --count                    # instructions alone, and this page anew
```

This page is written by `--page` from `benchmarks/results/latest.json`, which has every single
measurement. Absolute figures are this machine's; compare ratios, which come from one run.

"""

_READING = """
## How to read it

- *met* and *missed*: the figure against its target. *peer*: something else, to compare with.
  *info*: to be known, without a target. *skipped*: not measured, and why.
- **A/B** (row 1) is the CPU time of the scheduler's process, all its threads, per task. One
  scheduler runs all windows, and the bridge is put on and taken off between them: without, with,
  with, without. A block of these four gives one ratio, in which a steady drift of the machine
  cancels out. Shown are the median of the blocks and an interval that contains the true median
  with at least 95 % probability (order statistics: it assumes nothing about the noise). The row
  is *missed* only if the whole interval lies above the target; where it lies on both sides, it
  says that it is too wide to decide. A window ends when everything has been exported; linger and
  schedule delay are short, so that it ends soon.
  The load before it has to be at most 2, and is shown: pairs on a busier machine differ by more
  than the bridge costs, and nothing of them is published.
- **The account** (row 11) is the published cost. Valgrind's callgrind counts all instructions of a
  real `dask scheduler`, with two real workers, while 1,500 tasks that do nothing run, and then in
  20 s of idling, which are subtracted in proportion: valgrind stretches time, and timers go by the
  clock. Whole runs differ by some percent, by how messages happen to be batched. So the figure is
  the sum of the steady parts: the inclusive cost of the bridge's entry points by kind of call,
  collections of garbage not included (each entry point is called through an operator that nothing
  else uses, whose C function callgrind sees, and the same call of an empty function is subtracted);
  Dask's dispatch, as the difference that a plugin with an empty `transition` makes to the same
  tasks of a simulated cluster; and the message to a worker, serialized with the bridge's annotation
  and without. The *remainder* is what the difference of whole runs has more than that sum. Threads
  and collections of garbage are in it, and it is not settled: whole runs differ by as much. Shares
  of a core come from the CPU time of a task without valgrind and without the bridge.
- **Instructions** (row 1) are the quick check. A real scheduler with simulated workers runs 1,000
  tasks under callgrind, four times without the bridge and four times with it in turn; the first
  pair warms up. Shown are the median of the differences and their range. They do not depend on what
  else the machine does, and no collection of garbage is among them. Without the bridge an empty
  plugin takes its place, so that Dask's calls of a plugin are not in the figure. `--check` counts
  again and fails if the bridge needs 10 % more than published, on the same versions of Python and
  distributed; `--count` publishes this figure alone.
- **Latency** (row 3) is the age of messages, sent each millisecond, when the event loop reads
  them; the kernel notes when they came. Shown are differences of the medians of five windows of
  half a minute, with and without the bridge in turn. Before a window each simulated worker has
  sent one full heartbeat, garbage has been collected, and memory for objects has been touched: what
  a cluster that has run for a while has behind it. The longest callbacks of the bridge's own are
  the largest of all windows, in CPU time.
- **Export throughput** (row 5): the bridge and the SDK's own processor export the same spans with
  the same exporter, sink and batch size, each in a process of its own. The SDK gets spans that
  are ready; the bridge makes them of Dask's records, and pauses after each half a millisecond, or
  a whole one where nobody wants the GIL, to leave it to the event loop. Without these pauses it
  shows what they cost.
- **Trace context** (row 9) counts the instructions of the whole bridge as row 1 does, with one
  part of it switched off or on, and those of the hooks on a worker whose tasks do nothing. In
  brackets is the difference to the first figure of the line. The hooks of worker and client are
  timed, too: the least of many runs, in CPU time.
- **The spool** (row 10): instructions as in row 9, of spans of four tasks that are noted when they
  begin and when their work is done, with `otel.spool.path` and without. The thread's part is
  measured in a process of its own, with the store alone: spans are encoded and written in
  transactions of 100, and settled by 100. What is written is what the process has given to the
  kernel, by the kernel's own account.

## What is left of row 3

With 10,000 open spans and 1,000 workers the largest pauses are Python's own, with the bridge and
without it: a collection of the middle generation takes 10 to 30 ms with as many objects alive, and
there is about one in half a minute. So all that the bridge does on the loop or with the GIL is
made small, and it makes few objects that live for long:

- a hand-over of metrics goes in steps of at most 250 spans, with 4 ms between them; its longest
  step closes the interval of all workers at once;
- a tick looks at finished spans only where there is news of a worker they wait for;
- threads hold the GIL for half a millisecond, or one where nobody wants it, then sleep for 0.1 ms;
- of the spans of one name eight are kept apart for exemplars, and points and spans are made one at
  a time while they are encoded.

The row *without collections* takes the time of all collections off both arms: what it shows is
callbacks, and waiting for the GIL. Collections still come more often with the bridge, by what
it keeps for each open span, and for finished ones until they are exported. Where a window has one
long collection more or less, or one of another length, the 99.9th percentile moves by milliseconds:
runs have shown 0.1 and 1.5 ms. The row without collections is the steadier one.

## The peers

- *naive bridge*: what one would write in an afternoon on Dask's properties. Each second it asks
  all spans for `cumulative_worker_metrics` and exports the sums (`benchmarks/naive.py`). Its cost
  grows with the number of spans that there ever were.
- *Dask's /metrics*: Dask's own pages for Prometheus, of the scheduler and of the workers.
"""


def write(content: dict[str, Any]) -> None:
    """Write docs/benchmarks.md."""
    rows = [Row(**row) for row in content["rows"]]
    machine = content["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items())
    facts = (
        f"\n\n{machine['cpu']}, {machine['cores']} cores; {machine['system']}; Python "
        f"{machine['python']}; {versions}. {machine['time']}, load "
        f"{machine['load'][0]:.1f} at the end.{' Quick mode.' if content['quick'] else ''}\n"
    )
    text = _HEAD + table(rows) + facts + _READING
    (DOCS / "benchmarks.md").write_text(text, encoding="utf-8")
