"""In the client: the context of each submission, as an annotation of our own.

A graph has the global annotations at its submission; those of its layers override them. So ours is
sent to the scheduler once for each graph, and from there with each task. Nothing here waits or
raises into the user's code: after an error, the submission has no context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary, ref

import dask

from dask_otel._log import logger
from dask_otel._otel.api import caller as api
from dask_otel.client.roots import ROOTS
from dask_otel.core.context import (
    CARRIER_KEY,
    Traceparent,
    caller_dask_id,
    make_carrier,
)
from dask_otel.core.text import Sanitizer, attribute_text
from dask_otel.settings.reading import setting

if TYPE_CHECKING:
    from distributed import Client


#: A caller's span and its carrier, which is shared: do not change it.
_Carried: TypeAlias = tuple[Traceparent, dict[str, str]]

#: By client, whether baggage travels, and whether each caller gets a span of its own. Read at the
#: client's first submission with a context: users set them after this import, before the client.
_settings: WeakKeyDictionary[Client, tuple[bool, bool]] = WeakKeyDictionary()

#: The caller that the environment names, for submissions without an active span.
_environment: _Carried | None = None

#: A cache of one entry: the last span and propagators, and their carrier. Most spans submit more
#: than once, and making a carrier takes most of the time here. One tuple, so that threads never
#: see half an entry.
_last: tuple[object, object, _Carried | None] = (None, None, None)

#: Likewise, the last OpenTelemetry context, propagators and client, and their annotations: to find
#: the span takes most of the remaining time. It keeps neither the context nor the client alive.
_made: tuple[ref[Any], object, ref[Client], dict[str, Any]] | None = None


def prepare() -> None:
    """Read the environment, and load the propagators that it names."""
    global _environment
    api.state()
    caller = api.environment_caller()
    _environment = None if caller is None else (caller.parent, make_carrier(caller))


def annotations_for(client: Client) -> dict[str, Any] | None:
    """Return the annotations for a submission in the present context; None for none."""
    global _made
    try:
        blocks, made = len(ROOTS.alive) > 0, _made
        if made is not None and not blocks:
            present, propagators = api.state()
            if made[0]() is present and made[1] is propagators and made[2]() is client:
                return None if CARRIER_KEY in dask.get_annotations() else made[3]
        span = api.active_span()
        if span is None and _environment is None and not blocks:
            return None
        annotations = _annotations(client, span)
        if annotations and span is not None and not (blocks or _settings[client][1]):
            present, propagators = api.state()
            _made = ref(present), propagators, ref(client), annotations
        return annotations
    except Exception:
        logger.debug("dask-otel could not pass the caller's context on", exc_info=True)
        return None


def _annotations(client: Client, span: Any) -> dict[str, Any] | None:
    present = dask.get_annotations()
    if CARRIER_KEY in present:
        # The user has set it: leave it.
        return None
    if client not in _settings:
        _settings[client] = setting("otel.baggage"), setting("otel.client.span-per-caller")
    baggage, span_per_caller = _settings[client]
    carried = _carried(span, baggage)
    dask_span = present.get("span")
    if dask_span is not None and ROOTS.alive:
        ROOTS.submitted(dask_span["ids"][0], None if carried is None else carried[0])
    if carried is None:
        return None
    parent, carrier = carried
    made: dict[str, Any] = {CARRIER_KEY: carrier}
    if span_per_caller and dask_span is None and not _in_task():
        name = attribute_text(api.name_of(span), Sanitizer())
        made["span"] = {"name": (name,), "ids": (caller_dask_id(parent),)}
    return made


def current_parent() -> Traceparent | None:
    """Return the caller's span for a submission in the present context; None if there is none."""
    carried = _carried(api.active_span(), baggage=False)
    return None if carried is None else carried[0]


def _carried(span: Any, baggage: bool) -> _Carried | None:
    global _last
    if span is None:
        # A worker's environment may name the job that started it, which did not call its tasks.
        return None if _environment is None or _in_task() else _environment
    context, propagators = api.identity_of(span)
    last = _last
    if last[0] is context and last[1] is propagators and not baggage:
        return last[2]
    caller = api.caller_of(span, baggage)
    if caller is not None and _in_task():
        caller = caller._replace(nested=True)
    carried = None if caller is None else (caller.parent, make_carrier(caller))
    if not baggage:
        _last = (context, propagators, carried)
    return carried


def _in_task() -> bool:
    from distributed.worker import get_worker

    try:
        get_worker()
    except ValueError:
        return False
    return True
