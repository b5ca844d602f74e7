"""OpenTelemetry for Dask: every span a trace, every fine performance metric a counter.

Public names are imported at their first use, because an instrumented process loads this package
before the application's own code. The import itself only adds the section ``otel`` to Dask's
configuration, once Dask is imported. A scheduler loads `dask_otel.preload`, or `dask_otel`, which
is the same. A client can `register` the bridge on a running cluster, mark its work with `span`, and
continue its own trace in Dask with `instrument`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from dask_otel.client.hook import ImportHook

if TYPE_CHECKING:
    from dask_otel._version import __version__
    from dask_otel._wire import Held, Holding, Keeper, Reason, SpanMetrics, TraceContext, Why
    from dask_otel.client.blocks import span
    from dask_otel.client.handles import SpanHandle
    from dask_otel.client.held import held
    from dask_otel.client.instrumentation import instrument, uninstrument
    from dask_otel.client.registration import register, span_metrics, unregister
    from dask_otel.client.reporting import performance_report
    from dask_otel.client.traces import trace_context
    from dask_otel.client.why import why
    from dask_otel.report.document import Report, read_report
    from dask_otel.report.replaying import what_if
    from dask_otel.report.whatif import WhatIfReport

__all__ = [
    "Held",
    "Holding",
    "Keeper",
    "Reason",
    "Report",
    "SpanHandle",
    "SpanMetrics",
    "TraceContext",
    "WhatIfReport",
    "Why",
    "__version__",
    "held",
    "instrument",
    "performance_report",
    "read_report",
    "register",
    "span",
    "span_metrics",
    "trace_context",
    "uninstrument",
    "unregister",
    "what_if",
    "why",
]

#: The module of each public name.
_MODULES: Final = {
    "Held": "dask_otel._wire",
    "Holding": "dask_otel._wire",
    "Keeper": "dask_otel._wire",
    "Reason": "dask_otel._wire",
    "Report": "dask_otel.report.document",
    "SpanHandle": "dask_otel.client.handles",
    "SpanMetrics": "dask_otel._wire",
    "TraceContext": "dask_otel._wire",
    "WhatIfReport": "dask_otel.report.whatif",
    "Why": "dask_otel._wire",
    "__version__": "dask_otel._version",
    # The functions that Dask looks for in a preload.
    "dask_setup": "dask_otel.preload",
    "dask_teardown": "dask_otel.preload",
    "held": "dask_otel.client.held",
    "instrument": "dask_otel.client.instrumentation",
    "performance_report": "dask_otel.client.reporting",
    "read_report": "dask_otel.report.document",
    "register": "dask_otel.client.registration",
    "span": "dask_otel.client.blocks",
    "span_metrics": "dask_otel.client.registration",
    "trace_context": "dask_otel.client.traces",
    "uninstrument": "dask_otel.client.instrumentation",
    "unregister": "dask_otel.client.registration",
    "what_if": "dask_otel.report.replaying",
    "why": "dask_otel.client.why",
}


def _defaults_into_dask(_: object = None) -> None:
    try:
        from dask_otel.settings.defaults import put_into_dask

        put_into_dask()
    except Exception:  # noqa: BLE001
        # Dask's import must not fail: code that needs the defaults tries again, and then raises.
        pass


if "dask.config" in sys.modules:
    _defaults_into_dask()
else:
    ImportHook("dask.config", _defaults_into_dask).put()


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
