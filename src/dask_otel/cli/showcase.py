"""What ``dask-otel demo`` does, step by step.

The bridge in the demo's scheduler exports to a receiver inside this process (`Sink`). What
arrived there is shown, and sent on or written to files. So the real path is proven (real
exporter, real socket), the endpoint's answer is known, and no telemetry is lost where
nothing listens. The alternative, a second exporter by entry point, would have to be
installed for everybody and would show what the bridge made, not what came out.
"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from distributed import Client, span
from rich.console import Console, Group, RenderableType
from rich.text import Text

from dask_otel.cli import forward, otlp_json, workflow
from dask_otel.cli.cluster import PRELOAD, WORKERS, configured_environment, observed_cluster
from dask_otel.cli.problems import DemoError
from dask_otel.cli.received import Telemetry, spans
from dask_otel.cli.sink import Sink
from dask_otel.cli.time_table import TimeTable, time_by_span
from dask_otel.cli.trace_tree import TraceTree, build_trees, late_starts, span_names
from dask_otel.core import identity
from dask_otel.report import words as text

DEFAULT_OUTPUT: Final = Path("dask-otel-demo-traces.json")
#: Seconds to wait for the root span: a heartbeat or two, then the bridge's linger.
SETTLE_LIMIT: Final = 20.0
SVG_WIDTH: Final = 112

_NOTHING_CAME: Final = """\
the workflow ran, but the bridge exported no {what}.
Is there a message of dask_otel above? Other causes: `otel:` in a Dask config file switches it
off, or the program runs under `opentelemetry-instrument`, whose own exporter got the spans."""


_LATE: Final = (
    "Threads are idle until the first task begins: for the first span that is late, as the "
    "workers are fresh and import what its tasks need. Workers that have run for a while do not."
)


@dataclass(frozen=True)
class Options:
    """The command's options."""

    quick: bool = False
    fail: bool = False
    output: Path | None = None
    svg: Path | None = None


def perform(options: Options) -> None:
    """Run the demo.

    Raises
    ------
    DemoError
        Where a step failed. What could be shown until then has been shown.
    """
    _check_writable(options)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the terminal's encoding can't show must not end the demo.
        sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False)
    targets = _targets(console)
    telemetry, failure = _compute(options, console)
    result = _result(telemetry)
    console.print()
    console.print(result)
    console.print()
    if options.svg is not None:
        _save_svg(options.svg, _result(telemetry, brief=True))
    errors = [*_missing(telemetry), *_hand_over(options, console, targets, telemetry)]
    errors += _unexpected(options, failure)
    if errors:
        raise DemoError("\n".join(errors))


def _check_writable(options: Options) -> None:
    """Fail before the work, not after it."""
    for path in (options.output, options.svg):
        if path is not None and not os.access(path.absolute().parent, os.W_OK):
            raise DemoError(f"can't write {path}: no such directory, or no permission")


def _targets(console: Console) -> list[forward.Destination]:
    """Return the configured destinations at which something listens, and say which."""
    found = []
    environ = configured_environment()
    for signal in ("traces", "metrics"):
        try:
            target = forward.destination(signal, environ)
        except ValueError as error:
            raise DemoError(f"can't use the configured endpoint for {signal}: {error}") from error
        if target is None:
            console.print(f"The environment switches the export of {signal} off.", style="yellow")
        else:
            found.append(target)
    silent = {str(target) for target in found if not forward.listens(target)}
    for place in sorted(silent):
        console.print(f"Nothing listens at {place}: the telemetry goes to files.", style="yellow")
    return [target for target in found if str(target) not in silent]


class _Steps:
    """Shows what is being done, and what has been done in which time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._marks = text.glyphs(console.options.ascii_only)

    @contextmanager
    def __call__(self, title: str) -> Iterator[None]:
        begin = time.monotonic()
        mark, style = self._marks.failed, "red"
        spinner = "line" if self._console.options.ascii_only else "dots"
        try:
            # On a pipe nothing moves: only the line at the end is written.
            with self._console.status(f"{title} {self._marks.ellipsis}", spinner=spinner):
                yield
            mark, style = self._marks.done, "green"
        finally:
            took = text.seconds(time.monotonic() - begin)
            self._console.print(Text.assemble((mark, style), f" {title} ", (took, "dim")))


def _compute(options: Options, console: Console) -> tuple[Telemetry, Exception | None]:
    """Run the workflow; return what was exported, and how the workflow failed."""
    step = _Steps(console)
    size = workflow.QUICK if options.quick else workflow.FULL
    failure: Exception | None = None
    with ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="dask-otel-demo-"))
        data = Path(temporary) / "data"
        with step("Generating the data"):
            workflow.generate(data, size, broken=options.fail)
        sink = stack.enter_context(_open_sink())
        cluster = stack.enter_context(ExitStack())
        with step(f"Starting a cluster of {WORKERS} workers with {PRELOAD}"):
            # A task that is to fail is shown in the trace, not by the worker's log.
            level = logging.CRITICAL if options.fail else logging.ERROR
            client = _start(cluster, sink, level)
        with span(workflow.ROOT) as root_id:
            try:
                workflow.run(client, data, size, step)
            except Exception as error:  # noqa: BLE001 - whatever it is, its trace counts
                failure = error
        with step("Waiting for the spans to settle"):
            sink.wait_for_span(identity.span_id(root_id), SETTLE_LIMIT)
        with step("Closing the cluster"):
            cluster.close()
        return sink.telemetry(), failure


def _open_sink() -> Sink:
    try:
        return Sink()
    except OSError as error:
        raise DemoError(f"can't open a port on 127.0.0.1 to receive on: {error}") from error


def _start(stack: ExitStack, sink: Sink, log_level: int) -> Client:
    try:
        return stack.enter_context(observed_cluster(sink.endpoint, log_level))
    except Exception as error:
        # Ports, memory, a broken Dask configuration: Dask's text says what.
        raise DemoError(f"the cluster did not start: {error}") from error


def _result(telemetry: Telemetry, *, brief: bool = False) -> RenderableType:
    roots = build_trees(telemetry.traces)
    late = late_starts(roots)
    parts: list[RenderableType] = [
        TraceTree(roots, brief),
        Text(),
        Text("Where did the workers' threads spend their time?", "bold"),
        TimeTable(time_by_span(telemetry.metrics, order=span_names(roots)), late, brief),
    ]
    if late and not brief:
        parts.append(Text(f"\n{_LATE}", "dim"))
    return Group(*parts)


def _missing(telemetry: Telemetry) -> list[str]:
    """Return what should have been exported and was not."""
    names = [] if any(spans(telemetry.traces)) else ["spans"]
    if not time_by_span(telemetry.metrics):
        names.append("metrics of the workers")
    return [_NOTHING_CAME.format(what=" and no ".join(names))] if names else []


def _unexpected(options: Options, failure: Exception | None) -> list[str]:
    """Return how the workflow's outcome differs from the one that was asked for."""
    if options.fail:
        if isinstance(failure, workflow.BadData):
            return []
        return [f"the workflow should have failed with BadData, but: {failure or 'it succeeded'}"]
    return [f"the workflow failed: {type(failure).__name__}: {failure}"] if failure else []


# ------------------------------------------------------------------------- handing over


def _hand_over(
    options: Options,
    console: Console,
    targets: list[forward.Destination],
    telemetry: Telemetry,
) -> list[str]:
    """Send the telemetry on, or write it to files; return what went wrong."""
    sent, errors = _send(console, targets, telemetry)
    if options.output is None and (sent or not (telemetry.traces or telemetry.metrics)):
        return errors
    return [*errors, *_write(console, options.output or DEFAULT_OUTPUT, telemetry)]


def _send(
    console: Console, targets: list[forward.Destination], telemetry: Telemetry
) -> tuple[bool, list[str]]:
    """Send to all targets; return whether any took something, and what went wrong."""
    sent = False
    errors: list[str] = []
    unknown: list[str] = []
    for target in targets:
        requests: Sequence[forward.Request] = (
            telemetry.traces if target.signal == "traces" else telemetry.metrics
        )
        try:
            forward.send(target, requests)
        except forward.SignalNotTaken as error:
            unknown.append(f"{target} does not take {target.signal} ({error})")
        except forward.ForwardError as error:
            errors.append(f"{target} did not take the {target.signal}: {error}")
        else:
            sent = True
            console.print(f"Sent the {target.signal} to {target}.", style="green")
    if not sent:
        return False, errors + unknown
    # As Jaeger, which keeps traces only: nothing is wrong with that.
    for line in unknown:
        console.print(f"{line}.", style="yellow")
    return True, errors


def _write(console: Console, path: Path, telemetry: Telemetry) -> list[str]:
    metrics = otlp_json.metrics_path(path)
    try:
        otlp_json.write_traces(path, telemetry.traces)
        otlp_json.write_metrics(metrics, telemetry.metrics)
    except OSError as error:
        return [f"can't write the telemetry: {error}"]
    # Paths as they are, on a line of their own: for copying.
    for title, file in (
        ("Traces, to upload in Jaeger's UI or for the Collector's otlpjsonfile receiver:", path),
        ("Metrics, for the same receiver:", metrics),
    ):
        console.print(title, style="green")
        console.print(Text(f"  {file}"), soft_wrap=True)
    return []


def _save_svg(path: Path, result: RenderableType) -> None:
    console = Console(
        record=True,
        width=SVG_WIDTH,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    console.print(Text("$ dask-otel demo", "bold"))
    console.print(result)
    svg = console.export_svg(title="dask-otel demo", unique_id="dask-otel-demo")
    # Without rich's web font: a picture in a README loads nothing from elsewhere.
    path.write_text(re.sub(r"@font-face\s*{[^}]*}", "", svg), encoding="utf-8")
