"""OpenTelemetry's side: the only package that imports the SDK and speaks OTLP.

Records are encoded once (`encode`) and sent by a transport (`transport`). The bridge uses the SDK's
resource detectors and samplers, an application's tracer provider, and others' exporters. It does
not use the SDK's batch processor and metric state: see `dask_otel.pump` and
`dask_otel.core.metrics.state`.

Everything here is slow to import and may block (resource detectors), so only the bridge's own
threads call it, never the scheduler's event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dask_otel import semconv
from dask_otel._otel.sdk.encode import Encoder
from dask_otel._otel.sdk.environment import (
    Environment,
    defaults_for_environment,
    is_disabled,
    read_environment,
)
from dask_otel._otel.sdk.exporters import is_named, make_sinks, nobody_listens
from dask_otel._otel.sdk.files import GraphSink, WriteGraph, file_sinks, folder_of, run_name
from dask_otel._otel.sdk.otlp_json import RecorderTransport
from dask_otel._otel.sdk.resource import make_resource
from dask_otel._otel.sdk.sampling import TraceSampler, make_sampler
from dask_otel._otel.sdk.sink import ExporterSink
from dask_otel._otel.sdk.spans import ProviderSpanSink, application_provider
from dask_otel._version import __version__
from dask_otel.core.profiles.store import Profiles
from dask_otel.core.records import Origin
from dask_otel.core.trace import Trace
from dask_otel.pump.destination import Destination
from dask_otel.pump.profile_files import ProfileFiles
from dask_otel.pump.recorder import Recorder

if TYPE_CHECKING:
    from dask_otel.settings.keys import Settings

_SIGNALS: Final = ("traces", "metrics", "logs")


@dataclass(frozen=True, slots=True, repr=False)
class Outputs:
    """Everything that the pump needs from OpenTelemetry."""

    environment: Environment
    span_sinks: tuple[ProviderSpanSink | ExporterSink, ...]
    metric_sinks: tuple[ExporterSink, ...]
    log_sinks: tuple[ExporterSink, ...]
    graph_sinks: tuple[GraphSink, ...]
    #: The files' folder, as a destination, and the beginning of their paths; None without files.
    files: Destination | None
    prefix: Path | None
    #: Whether a trace is sampled, for exemplars; None allows all.
    sampled: Callable[[int], bool] | None
    #: Whether a trace is sampled.
    decides: Callable[[Trace], bool]
    #: Attributes of the resource, and resource and scope of the exported spans as bytes.
    resource: Mapping[str, Any]
    origin: Origin
    #: The default endpoint, if it is used for lack of another one and there is no server.
    without_server: Destination | None
    #: Makes the sinks that keep spans, metrics and log records in memory, and those of graph logs.
    recording: Callable[[Recorder], tuple[list[ExporterSink], list[GraphSink]]]
    #: Writes profiles; None without files.
    profiles: ProfileFiles | None = None


def build(
    settings: Settings,
    instance_id: str,
    started_ns: int,
    claims: Callable[[str, str], bool] | None = None,
    graph: WriteGraph | None = None,
    profiles: Profiles | None = None,
) -> Outputs | None:
    """Make the exporters in the standard variables, and those that write files.

    With files, a signal is sent elsewhere only if the standard variables name a destination. With
    ``otel.provider: own``, a tracer provider of the application is ignored, and its environment is
    not the bridge's either.

    Parameters
    ----------
    settings
        The bridge's settings.
    instance_id
        The Dask id of the scheduler.
    started_ns
        Start of the bridge, for the names of the files.
    claims
        See `dask_otel._otel.sdk.resource.make_resource`. None for telemetry that is no bridge's.
    graph
        Makes the text of a graph log; None for no graph logs.
    profiles
        Merges the samples of workers; None for no profiles.

    Returns
    -------
    outputs
        None if ``OTEL_SDK_DISABLED`` switches everything off.

    Raises
    ------
    ConfigurationError
        If a variable has a value that is not allowed.
    """
    files, own_provider = settings.files, settings.provider == "own"
    with defaults_for_environment(settings.environment, win=own_provider):
        if is_disabled():
            return None
        read = read_environment()
        resource = make_resource(instance_id, settings.cluster_name, claims)
        # The constructor reads all limits: make it before things that must be closed.
        encoder = Encoder(resource.attributes, __version__)
        provider = None if own_provider else application_provider()
        sampler = make_sampler() if provider is None else TraceSampler(provider.sampler)
        make = partial(ExporterSink, encoder, sampler)
        to_file: list[ExporterSink | GraphSink] = []
        prefix: Path | None = None
        written: ProfileFiles | None = None
        signals = _SIGNALS if settings.logs.exported else _SIGNALS[:-1]
        if files.path is not None:
            # Before the others, which must be closed after an error.
            cluster = str(resource.attributes[semconv.CLUSTER_NAME])
            folder, run = folder_of(files.path), run_name(cluster, instance_id, started_ns)
            prefix, eager = folder / run, read.file_interval is not None
            to_file = file_sinks(signals, folder, files, run, eager, make, graph, sampler.decides)
            if profiles is not None:
                most = files.max_size * files.max_files
                written = ProfileFiles(folder, run, most, profiles, sampler.decides)
        made = make_sinks(
            (
                signal
                for signal in signals
                if (is_named(signal) or files.path is None)
                and (signal != "traces" or provider is None)
            ),
            make,
        )
    traces, metrics, events = (
        tuple(
            sink
            for sink in (*made, *to_file)
            if sink.signal == signal and isinstance(sink, ExporterSink)
        )
        for signal in _SIGNALS
    )
    applications = [] if provider is None else [ProviderSpanSink(provider, __version__, sampler)]
    filters: dict[str, Callable[[int], bool] | None] = {
        "always_on": None,
        "always_off": lambda _: False,
        "trace_based": sampler.decides,
    }
    unnamed = [one.destination for one in made if not one.named]

    def recording(recorder: Recorder) -> tuple[list[ExporterSink], list[GraphSink]]:
        memory = Destination("memory")
        made = [make(signal, memory, RecorderTransport(signal, recorder)) for signal in _SIGNALS]
        return made, [] if graph is None else [
            GraphSink(memory, recorder.add_graphs, graph, lambda _: True)
        ]

    return Outputs(
        read,
        (*applications, *traces),
        metrics,
        events,
        tuple(sink for sink in to_file if isinstance(sink, GraphSink)),
        to_file[0].destination if to_file else None,
        prefix,
        filters[read.exemplars],
        sampler.decides,
        resource.attributes,
        encoder.origin,
        unnamed[0] if unnamed and nobody_listens() else None,
        recording,
        written,
    )


def build_for_spool(environment: Mapping[str, str]) -> list[ExporterSink]:
    """Make the trace exporters in the standard variables, for spans of earlier runs.

    Parameters
    ----------
    environment
        Defaults for variables that are not set.

    Returns
    -------
    sinks
        The sinks with a key in the spool; empty with ``OTEL_SDK_DISABLED`` or without exporters.

    Raises
    ------
    ConfigurationError
        If a variable has a value that is not allowed.
    """
    with defaults_for_environment(environment):
        if is_disabled():
            return []
        # Each span has its own resource.
        encoder = Encoder({}, __version__)
        sinks = make_sinks(["traces"], partial(ExporterSink, encoder, make_sampler()))
    for sink in sinks:
        if sink.key is None:
            sink.close()
    return [sink for sink in sinks if sink.key is not None]
