"""The page of the documentation: the table, the machine, and how to read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.results import Row, shown

DOCS = Path(__file__).parent.parent / "docs"

_HEAD = """# What the bridge costs

One command measures everything on any machine, without a server or an account:

```console
make bench                                      # about an hour; two quiet cores are best
python -m benchmarks --quick                    # rough, some minutes
python -m benchmarks --row 3                    # one row
python -m benchmarks --page                     # everything, and this page anew
python -m benchmarks --check                    # or make bench-check: has it become slower?
python -m benchmarks --row 1 --page             # instructions alone, and this page anew
```

`--page` writes this page from `benchmarks/results/latest.json`, which has each measurement.
Absolute figures hold for this machine only. Both sides of a ratio were measured in one run, so
ratios can be compared between machines.

"""

_READING = """
## How to read it

- *met* and *missed*: the figure against its target. *peer*: another program, for comparison.
  *info*: a figure without a target. *skipped*: not measured, with the reason.
- **The account** (row 11) is the published cost. Valgrind's callgrind counts all instructions of a
  real `dask scheduler`, with two real workers, while 1,500 tasks that do nothing run, and then in
  20 idle seconds. Valgrind slows the tasks down, so more timers fire while they run: the cost of an
  idle second is subtracted for each second. Whole runs differ by some percent, because messages are
  batched by chance. So the figure is the sum of the steady parts. First, the inclusive cost of the
  bridge's entry points by kind of call, without collections of garbage. Callgrind sees only C
  functions, so each entry point is called through a Python operator that nothing else uses; the
  cost of an empty function called in that way is subtracted.
  Second, Dask's dispatch: the difference that a plugin with an empty `transition` makes to the same
  tasks of a simulated cluster. Third, the message to a worker, serialized with and without the
  bridge's annotation. The *remainder* is the difference of whole runs less that sum. It includes
  threads and collections of garbage, and may be noise: whole runs differ by as much. An idle second
  is added up likewise: the entry points, and the threads beside the event loop. Shares of
  a core come from the CPU time of a task without valgrind and without the bridge.
- **Instructions** (row 1) are the quick check. A real scheduler with simulated workers runs 1,000
  tasks under callgrind, four times without the bridge and four times with it in turn; the first
  pair warms up. The row has the median of the differences and their range. They do not depend on
  the load of the machine, and include no collection of garbage. Without the bridge an empty plugin
  takes its place, so the figure does not include Dask's calls of a plugin. An idle second is
  counted likewise, over a minute without tasks: each worker sends two heartbeats a second, as
  Dask's do, the bridge ticks twice a second, and hands over its metrics once. `--check` counts both
  again and fails if the bridge needs 5 % more than published, on the same versions of Python and
  distributed.
- **Latency** (row 3) is the age of messages when the event loop reads them. One is sent each
  millisecond, and the kernel records its arrival. The rows have differences of the medians of five
  windows of half a minute, with and without the bridge in turn. Before a window each simulated
  worker has sent one full heartbeat, garbage has been collected, and memory for objects has been
  touched, as in a cluster that has run for a while. The longest callbacks of the bridge are the
  largest of all windows, in CPU time.
- **Memory** (row 4) is that of open spans. With the number of exported spans it does not grow:
  `python -m chaos month` [shows that](reliability-evidence.md#load).
- **Export throughput** (row 5): the bridge and the SDK's batch processor export the same spans with
  the same exporter, sink and batch size, each in its own process. The SDK gets finished spans. The
  bridge makes them from Dask's records, and pauses after each half millisecond of work, or a whole
  one if no other thread wants the GIL, to leave the GIL to the event loop.
- **Trace context** (row 9) counts the instructions of the whole bridge as row 1 does, with one
  feature switched off or on. In brackets is the difference from the first figure of the line. The
  hooks of worker and client are timed: the least of many runs, in CPU time.
- **The spool** (row 10): instructions as in row 9, for spans of four tasks that are noted when they
  begin and when their work is done, with `otel.spool.path` and without. The thread is measured in
  its own process, with the store alone: spans are encoded, written in transactions of 100, and
  removed by 100. The bytes written are the kernel's count for the process.
- **The history** (row 12) lists runs from files on a local disk, in one process: first each file is
  read and a summary is written beside it, then only the summaries are read.
- **Logs of workers** (row 13): the messages and bytes that a storm of a minute, by a simulated
  clock, sends to the scheduler, and the event loop's time for them, Dask's part included.
- **Many workers and spans** (row 14): callgrind counts a second of a simulated cluster, on the
  event loop, without the bridge and with it: 1,000 tasks, as many heartbeats as Dask's workers
  send (20 a second from 10 workers, 167 from 1,000), four ticks, ten spans that end and ten that
  begin, and a sixtieth of a hand-over of metrics. *later* is after 10,000 more spans have ended.
  Collections of garbage are off. The shares are larger than that of row 11, because simulated
  workers send no messages that Dask would have to read. The peers are counted at the same places.
  The steps of a hand-over of the largest cluster are among the callbacks that row 3 times.
- **The path** (row 15): instructions as in row 1, of the whole bridge with `otel.spans.path` and
  without. Each task of a chain needs the one before, those of a tree two of the level before. The
  end of the span is in the figures. A chain is the worst shape: each of its tasks is on the path.
- **The graph log** (row 16): the instructions of its own calls on the event loop, without those of
  as many calls of nothing, after 20 small spans. It is no difference of two whole runs as in row
  15: that of independent tasks would be negative, because the event loop does not free the records
  that the log keeps. A thread frees them, after it has made text of them, which is in no figure
  here. A run takes about 18 to 23 bytes of [the file](files.md#graph-logs); a test makes sure that
  it takes at most 100.
- **The ledger of memory** (row 17): instructions as in row 15, while results in memory are followed
  and while they are not. A result that comes takes a multiplication by the time and two additions,
  one that goes also the lookups of its task and its group: 1,306 and 1,757, counted apart. So the
  target can't be met in Python.
- **The sampler of profiles** (row 18), by the CPU clock of its thread, in a process whose four
  threads call functions 45 deep again and again, in 64 ways. It wakes up with cold caches, and so
  does a thread that only wakes up as often, which is in the same row. Half of the rest is Python's
  own walk through 180 frames. The sampler limits itself to half a percent of a CPU, so that a busy
  machine has fewer samples; each stands for the time since the one before.
- **A block of tasks** (row 19): `client.map` of a function that adds 1, in a block of
  `dask_otel.performance_report`, of Dask's, and of none, on two workers of a thread each. Each run
  has a scheduler, workers and a client of its own, and a small block first. The figures are medians
  of several runs of each kind in turn; those in brackets are the medians of the ratios to the run
  without a report beside them. The processes share two cores with other programs, which lengthens
  CPU times, too. `distributed.scheduler.worker-saturation` is `inf`, because otherwise each of
  these tasks waits for the scheduler.

## What is left of row 3

With 10,000 open spans and 1,000 workers the largest pauses are Python's own, with the bridge and
without it: a collection of the middle generation takes 10 to 30 ms with so many objects alive, and
there is about one in half a minute. So the bridge takes small steps on the event loop and with the
GIL, and makes few objects that live long:

- a step of a hand-over of metrics ends after half a millisecond, with its present part, and the
  next one begins 4 ms later; the longest part closes the interval of all workers at once;
- a tick ends after half a millisecond, with its present span; if more spans are due, the next one
  comes after another 0.5 ms;
- a tick looks at finished spans only if there is news of a worker that they wait for;
- threads hold the GIL for half a millisecond, or one if no other thread wants it, then sleep for
  0.1 ms;
- eight spans of each name are kept for exemplars, and points and spans are made one at a time while
  they are encoded.

The row *without collections* subtracts the time of all collections from both sides: callbacks, and
waiting for the GIL, remain. Collections are more frequent with the bridge, because of the objects
that it keeps for each open span, and for finished ones until they are exported. If a window has one
long collection more or less, the 99.9th percentile moves by milliseconds: runs had 0.1 to 3.4 ms.
The row without collections is steadier.

## What is left of row 14

The share does not grow with open spans or with time, but with workers. From 10 to 1,000 of them,

- Dask lets them send eight times as many heartbeats, 167 a second instead of 20, and the bridge
  reads each: 210,000 instructions for one with 20 keys of spans and 20 of the worker, beside
  208,000 of Dask's. Dask sends at most 200 a second, however many workers there are. This is half
  of the growth;
- a worker with more threads than tasks begins to be idle, and stops, with each task;
- a worker's clock is estimated from its first three tasks after each heartbeat, and here a worker
  of 1,000 has one or two.

## What was tried

Instructions a task (row 1, mostly of 500 tasks) unless said otherwise; each pair in one session. It
helped:

- ticks four times a second where spans are open, not ten (an idle second): 324,567 to 238,504;
- sums of a chain without a call for each link (row 15, a chain of 60): 11,283 to 8,514;
- a tick that ends by time, not by number (its longest callback, row 3): 1.9 to 1.0 ms;
- idle seconds that are shared among the spans when these change, not with each task
  (byte codes of a second of row 14, 1,000 workers): 2,025,000 to 1,978,000;
- spans of tasks with a caller that are compared only without a carrier (row 9): 3,944 to 2,970;
- results that come noted on the open group, which the hot path has at hand, not in a table by
  group (one result): 1,268 to 974;
- heartbeats that are compared for the fullest worker only while a span is open, their arguments
  passed on once less, and shares rounded without a text (a heartbeat of an idle worker):
  57,700 to 34,500;
- a tick without open spans that looks at none (such a tick): 36,400 to 12,200;
- ends of tasks between two heartbeats added without a comparison with what these listed (heartbeats
  of a task): 2,143 to 1,528;
- the first start and last end of 32 runs noted when they come, and their durations sorted once
  (the end of a task): 21,473 to 20,927;
- the same 28 attributes in each follower of tasks (row 17, which follows tasks with the ledger and
  without it by turns; with 29 and 27 of them): 4,610 to 3,228;
- names of sampled code that are made once for a message, not for each stack (a new stack, row 18):
  147 to 17 µs.

It did not help, or not enough to keep it:

- sizes and times of results that come added up in C with their 32 runs (one result): 974 to 1,007;
- results that go in one stimulus added up before they are multiplied by its time (one result):
  1,852 to 1,271 among many, and 2,339 to 2,779 alone;
- wrappers in Dask's table of transitions for those that matter, and a `transition` of the plugin
  that is a method of C and does nothing: 65,956 to 63,309 with Dask's dispatch. 4 % do not pay for
  a private table. An empty plugin in Python costs a task 24,800 instructions of dispatch, one in C
  12,500, wrappers of four transitions 5,500. A plugin that Dask does not call at all could not be
  found, or unregistered, by its name;
- the modules of the hot path compiled with mypyc: 41,043 to 38,998. Most of the work is in Python's
  own dictionaries and calls, and each platform would need wheels of its own;
- durations of tasks counted in batches: 40,516 to 40,900;
- running sums of the path in each link (row 15, a chain of 60): 8,514 to 8,614, and each task with
  a dependency would pay;
- a chain's links as columns, summed in C (time of a link): 252 to 395 ns;
- stacks that are counted by 64, with warm caches (a sample of row 18): 203 to 211 µs;
- marks on sampled frames (`f_trace`), so that only new ones are walked (a sample of row 18): 163 to
  146 µs, or 135 to 113 where most frames stay. The attribute belongs to debuggers;
- threads whose CPU clock stood still, counted again without a walk (a sample of row 18, where that
  is half of them): 177 to 155 µs. Some kernels' clocks are coarse, and busy threads pay for it;
- frames walked in C, with `accumulate` and `getattr` (a sample of row 18): 165 to 182 µs;
- stacks counted by 16,384 frames, by their addresses as bytes (a sample of row 18): 188 to 186 µs;
- fixed parameters in the worker's hook (row 9): 2.3 to 2.1 µs. A release of Dask with one more
  parameter would break it.

## The peers

- *naive bridge*: a simple bridge that polls Dask's properties. It asks all spans for
  `cumulative_worker_metrics` (`benchmarks/naive.py`). Its cost grows with the number of all spans
  since the start, and its event loop stands still meanwhile.
- *Dask's /metrics*: Dask's own pages for Prometheus, of the scheduler and of the workers.
- *dask-opentelemetry* 0.0.1a0 (PyPI) does nothing on the scheduler. On the workers it makes two
  spans of each task with the SDK: about 80 µs of CPU a task, by hand, with SDK 1.24 (it does not
  start on 1.45), a batch processor and an exporter that discards everything. It has no row, since
  one environment can't hold both.
"""


def write(content: dict[str, Any]) -> None:
    """Write docs/benchmarks.md."""
    rows = [Row(**row) for row in content["rows"]]
    machine = content["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items())
    facts = (
        f"\n{machine['cpu']}, {machine['cores']} cores; {machine['system']}; Python "
        f"{machine['python']}; {versions}. {machine['time']}, load "
        f"{machine['load'][0]:.1f} at the end.{' Quick mode.' if content['quick'] else ''}\n"
    )
    text = _HEAD + shown(rows) + facts + _READING
    (DOCS / "benchmarks.md").write_text(text, encoding="utf-8")
