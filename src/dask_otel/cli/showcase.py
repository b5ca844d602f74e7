"""The steps of ``dask-otel demo``.

The bridge in the demo's scheduler writes files (``otel.files.path``), and the demo prints the
report of these files. If the standard variables name an endpoint, or if something listens at the
default one, the bridge also exports there.
"""

from __future__ import annotations

import io
import logging
import os
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias

import dask.config
from distributed import Client, LocalCluster, span
from rich.console import Console
from rich.text import Text

import dask_otel
from dask_otel import semconv
from dask_otel._otel.sdk.environment import defaults_for_environment, is_disabled
from dask_otel.cli import terminal
from dask_otel.cli.report import judged
from dask_otel.cli.terminal import Failed
from dask_otel.client.registration import span_metrics
from dask_otel.core.graph import SUFFIX
from dask_otel.pump.rotated import obstacle
from dask_otel.report import words
from dask_otel.report.document import Report, read_report
from dask_otel.report.text import Line, Sheet, pieces, report_lines
from dask_otel.settings.problems import ConfigurationError
from dask_otel.settings.reading import read_settings
from dask_otel.settings.variables import environment_of


def _load_workflow() -> Any:
    """Import the example: it is in the installed package, or in a checkout."""
    package = Path(dask_otel.__file__).parent
    packed, checkout = package / "_examples", package.parents[1] / "examples"
    # Workers import it too: they start with the same path.
    sys.path.append(str(packed if packed.exists() else checkout))
    return import_module("demo_workflow")


workflow: Final = _load_workflow()

PRELOAD: Final = "dask_otel.preload"
WORKERS: Final = 2

#: Ctrl-C in a terminal reaches the workers too. They should end with the cluster: without a
#: traceback each, and without one of a heartbeat that was under way when the scheduler closed.
#: (A preload may be a module's source.)
_END_QUIETLY: Final = """
import logging, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
logging.getLogger("distributed.worker").addFilter(
    lambda record: "during heartbeat" not in record.getMessage()
)
"""

#: Instead of variables that would prevent a trace.
_AUDIBLE: Final = {"OTEL_SDK_DISABLED": "false", "OTEL_TRACES_SAMPLER": "always_on"}
#: The exporters of those who disable the SDK: everything goes to the demo's own files alone.
_NOWHERE: Final = {f"OTEL_{one}_EXPORTER": "none" for one in ("TRACES", "METRICS", "LOGS")}

DEFAULT_OUTPUT: Final = Path("dask-otel-demo")
#: OTLP's default destination.
_DEFAULT: Final = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317"}
#: Seconds to wait until the root span has settled: a heartbeat or two.
SETTLE_LIMIT: Final = 20.0
#: Seconds to wait until a worker is lost.
_LOSS_LIMIT: Final = 5.0
#: Most columns of the text.
_WIDE: Final = 160
#: Lines of a terminal that all of it fits into, and those beside the report and the curve.
_HIGH, _BESIDE = 40, 4

_ABOUT: Final = (
    "Ran a workflow on a new cluster, and ended one of its idle workers on purpose.",
    "New workers import pandas and pyarrow with their first tasks.",
)

#: Prints the title of a step while it runs, and then its duration.
_Step: TypeAlias = Callable[[str], AbstractContextManager[None]]


def perform(
    *, quick: bool, fail: bool, output: Path | None, console: Console | None = None
) -> None:
    """Run the demo with the command's options, and print the result on a console.

    Raises
    ------
    Failed
        If a step failed. The earlier results have been printed.
    """
    if not read_settings().enabled:
        raise Failed(
            "the bridge is switched off: `otel.enabled` is false in Dask's configuration.\n"
            "Set it to true in the Dask config file with `otel:`, or run with "
            "DASK_OTEL__ENABLED=true."
        )
    if output is not None and (reason := obstacle(output)):
        raise Failed(f"can't write the files: {reason}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the terminal's encoding lacks must not end the demo.
        sys.stdout.reconfigure(errors="replace")
    console = console or Console(highlight=False)
    sent, variables = _destinations(console)
    with tempfile.TemporaryDirectory(prefix="dask-otel-demo-") as temporary:
        data, files = Path(temporary, "data"), Path(temporary, "files")
        with terminal.held_back("distributed.dask_otel") as messages:
            failure = _compute(partial(_step, console), data, files, variables, quick, fail)
        try:
            read = read_report(files)
            report = judged("demo", read, partial(read.replayed, limited=True))
        except FileNotFoundError:
            report = Report([])
        folder = output or (None if sent else DEFAULT_OUTPUT)
        command = _command(folder) if folder else ""
        is_recorded = folder and any(files.glob(f"*{SUFFIX}"))
        replay = f"dask-otel whatif {shlex.quote(str(folder))}" if is_recorded else ""
        _print(console, [*([(line, "dim")] for line in _ABOUT), ""])
        sheet = Sheet(min(console.width, _WIDE), command=command, replay=replay)
        said = [*report_lines(report.accounts(), report.skipped, sheet)]
        _print(console, said)
        for curve in filter(None, ([*one.curve(sheet.width)] for one in report.what_ifs)):
            title: Line = [("The same run with other threads, replayed", "bold")]
            # A run with many causes needs the screen for them.
            if len(_ABOUT) + len(said) + len(curve) <= _HIGH - _BESIDE:
                _print(console, [title, *curve, ""])
        for message in messages:
            print(message, file=sys.stderr)
        unread = [f"can't read the bridge's files: {line}" for line in report.skipped.lines()]
        errors = [*unread, *_missing(report), *_unexpected(fail, failure)]
        if folder is not None:
            errors += _copy(console, files, folder)
    if errors:
        raise Failed("\n".join(errors))


def _destinations(console: Console) -> tuple[bool, dict[str, str]]:
    """Print the destinations besides files; return if there are any, and the variables for them."""
    # Imports the SDK.
    from dask_otel._otel.sdk.exporters import is_named, labels, nobody_listens

    given = environment_of(read_settings().environment)
    with defaults_for_environment(given):
        named = [signal for signal in ("traces", "metrics") if is_named(signal)]
        if is_disabled():
            console.print(
                "OTEL_SDK_DISABLED is true: the telemetry goes only to files.", style="yellow"
            )
            return False, {**given, **_NOWHERE}
        try:
            places = list(dict.fromkeys(place for signal in named for place in labels(signal)))
        except ConfigurationError as error:
            raise Failed(str(error)) from error
    default = {} if named or nobody_listens() else _DEFAULT
    for place in (*default.values(), *places):
        console.print(f"The telemetry goes to {place}, too.", style="green")
    return bool(places or default), {**given, **default}


@contextmanager
def _step(console: Console, title: str) -> Iterator[None]:
    """Print a step while it runs, and then its duration where that stays readable."""
    begin = time.monotonic()
    mark = ("✗", "red")
    spinner = "line" if console.options.ascii_only else "dots"
    try:
        # A pipe has no animation: only the last line is written.
        with console.status(_adapted(console)(f"{title} …"), spinner=spinner):
            yield
        mark = ("✓", "green")
    finally:
        # On a terminal, the steps make room for the result.
        if mark[0] == "✗" or not console.is_terminal:
            took = words.seconds(time.monotonic() - begin)
            _print(console, [[mark, (f" {title} ", ""), (took, "dim")]])


def _compute(
    step: _Step, data: Path, files: Path, variables: dict[str, str], quick: bool, fail: bool
) -> Exception | None:
    """Run the workflow on a cluster that writes `files`; return its exception, if any."""
    size = workflow.QUICK if quick else workflow.FULL
    failure: Exception | None = None
    with step("Generating the data"):
        workflow.generate(data, size, broken=fail)
    with ExitStack() as cluster:
        with step(f"Starting a cluster of {WORKERS} workers with {PRELOAD}"):
            # An intended failure belongs in the trace, not in the worker's log.
            level = logging.CRITICAL if fail else logging.ERROR
            try:
                client = cluster.enter_context(observed_cluster(files, variables, level))
            except Exception as error:
                # Ports, memory, a broken Dask configuration: Dask's message names the cause.
                raise Failed(f"the cluster did not start: {error}") from error
        with span(workflow.ROOT) as root_id:
            try:
                workflow.run(client, data, size, step)
            except Exception as error:  # noqa: BLE001 - whatever it is, its trace counts
                failure = error
        # Without a bridge, there is no answer, and no span will be written.
        with step("Waiting for the spans to settle"), suppress(LookupError, OSError, RuntimeError):
            span_metrics(client, root_id, SETTLE_LIMIT)
        with step("Losing a worker"):
            # Not `scheduler_info`: Dask refreshes it each 2 s, then without workers.
            workers = client.nthreads()
            client.run(_end, workers=[next(iter(workers))])
            terminal.wait_until(lambda: len(client.nthreads()) < len(workers), _LOSS_LIMIT)
        with step("Closing the cluster"):
            cluster.close()
    return failure


def _end() -> None:
    """End the process of an idle worker, after a last line in its log."""
    log = logging.getLogger("demo")
    # Otherwise Python prints it.
    log.addHandler(logging.NullHandler())
    log.error("This worker ends now: it is part of the demo")
    # For the record to leave the process.
    threading.Timer(0.3, os._exit, [1]).start()


def _adapted(console: Console) -> Callable[[str], str]:
    return words.in_ascii if console.options.ascii_only else str


def _print(console: Console, lines: Iterable[Line]) -> None:
    adapted = _adapted(console)
    for line in lines:
        shown = ((adapted(words.one_line(piece)), style) for piece, style in pieces(line))
        console.print(Text.assemble(*shown), soft_wrap=True)


def _command(folder: Path) -> str:
    """Return the command that reads this run, also if the folder has earlier ones."""
    last = " --last 1" if any(folder.glob("*.jsonl*")) else ""
    return f"dask-otel report {shlex.quote(str(folder))}{last}"


def _copy(console: Console, files: Path, folder: Path) -> list[str]:
    """Copy the files to their final place; return the problems."""
    if not files.exists():
        return []
    try:
        folder.mkdir(exist_ok=True)
        for path in files.iterdir():
            shutil.copy(path, folder)
    except OSError as error:
        return [f"can't write the telemetry: {error}"]
    console.print(
        "Jaeger's UI and the Collector can read the files in",
        Text(f"{folder}/"),
        style="green",
        soft_wrap=True,
    )
    return []


def _missing(report: Report) -> list[str]:
    """Return the telemetry that is missing in the export."""
    executed = (run.metrics.total(semconv.SPAN_EXECUTE_TIME.name) for run in report.runs)
    came = {"spans": any(run.spans for run in report.runs), "metrics of the workers": any(executed)}
    what = " and no ".join(one for one, any_came in came.items() if not any_came)
    said = (
        f"the workflow ran, but the bridge exported no {what}.\n"
        "Is there a message of dask-otel above?"
    )
    return [said] if what else []


def _unexpected(fail: bool, failure: Exception | None) -> list[str]:
    """Return the differences between the requested outcome and the workflow's."""
    if fail and not isinstance(failure, workflow.BadData):
        return [f"the workflow should have failed with BadData, but: {failure or 'it succeeded'}"]
    if failure and not fail:
        return [f"the workflow failed: {type(failure).__name__}: {failure}"]
    return []


# ---------------------------------------------------------------------- its cluster


def _with_preload(key: str, preload: str) -> list[Any]:
    """Return the user's preloads, and one more."""
    configured = dask.config.get(key, [])
    before = [configured] if isinstance(configured, str) else list(configured or ())
    return before if preload in before else [*before, preload]


@contextmanager
def observed_cluster(files: Path, variables: dict[str, str], log_level: int) -> Iterator[Client]:
    """Yield a client of a new local cluster whose scheduler has the bridge.

    The bridge writes into the folder `files`, and exports as the `variables` say, whatever this
    process's own are. At the end of the context, everything has been exported and the cluster is
    closed. Dask's own messages are printed from `log_level` on.
    """
    preloads = {
        "distributed.scheduler.preload": PRELOAD,
        "distributed.worker.preload": _END_QUIETLY,
    }
    config: dict[str, Any] = {
        **{key: _with_preload(key, preload) for key, preload in preloads.items()},
        "otel.files.path": str(files),
        "otel.logs.level": "WARNING",
        # Several exports within the demo, so that the series have several points.
        "otel.environment": {"OTEL_METRIC_EXPORT_INTERVAL": "5000", **variables, **_AUDIBLE},
        "otel.provider": "own",
        # Fusing array operations would lose their spans (see `workflow.run`).
        "optimization.fuse.active": False,
    }
    with (
        dask.config.set(config),
        LocalCluster(
            n_workers=WORKERS,
            threads_per_worker=1,
            # On a free port: 8787 may belong to the user's own cluster.
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address=None,
            # Its address is shown nowhere, and it takes most of the time to start.
            scheduler_kwargs={"dashboard": False},
            silence_logs=log_level,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client
