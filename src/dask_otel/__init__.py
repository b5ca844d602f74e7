"""OpenTelemetry for Dask: every span a trace, every fine performance metric a counter.

What is here is imported when it is used: an instrumented process loads this package before the
application's own code. At import nothing happens but that Dask's configuration gets the section
``otel``, as soon as there is a Dask. A scheduler loads `dask_otel.preload`, or
`dask_otel`, which is the same; a client can `register` the bridge on a running cluster, mark its
work with `span`, and have its own trace go on in Dask with `instrument`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from dask_otel.client.hook import ImportHook

if TYPE_CHECKING:
    from dask_otel._version import __version__
    from dask_otel._wire import SpanMetrics, TraceContext
    from dask_otel.client.blocks import span
    from dask_otel.client.handles import SpanHandle
    from dask_otel.client.instrumentation import instrument, uninstrument
    from dask_otel.client.registration import register, span_metrics, unregister
    from dask_otel.client.traces import trace_context
    from dask_otel.report.document import Report, read_report

__all__ = [
    "Report",
    "SpanHandle",
    "SpanMetrics",
    "TraceContext",
    "__version__",
    "instrument",
    "read_report",
    "register",
    "span",
    "span_metrics",
    "trace_context",
    "uninstrument",
    "unregister",
]

#: Where each public name is.
_MODULES: Final = {
    "Report": "dask_otel.report.document",
    "SpanHandle": "dask_otel.client.handles",
    "SpanMetrics": "dask_otel._wire",
    "TraceContext": "dask_otel._wire",
    "__version__": "dask_otel._version",
    # What Dask looks for in a preload.
    "dask_setup": "dask_otel.preload",
    "dask_teardown": "dask_otel.preload",
    "instrument": "dask_otel.client.instrumentation",
    "read_report": "dask_otel.report.document",
    "register": "dask_otel.client.registration",
    "span": "dask_otel.client.blocks",
    "span_metrics": "dask_otel.client.registration",
    "trace_context": "dask_otel.client.traces",
    "uninstrument": "dask_otel.client.instrumentation",
    "unregister": "dask_otel.client.registration",
}


def _defaults_into_dask(_: object = None) -> None:
    try:
        from dask_otel.settings.defaults import put_into_dask

        put_into_dask()
    except Exception:  # noqa: BLE001
        # Whoever needs them tries again, and says so: an import of Dask is not to fail.
        pass


if "dask.config" in sys.modules:
    _defaults_into_dask()
else:
    ImportHook("dask.config", _defaults_into_dask).put()


def __getattr__(name: str) -> Any:
    """Import a public name with its first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
