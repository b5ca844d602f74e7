"""In the client: the context that travels with a submission, as an annotation of our own.

A graph's annotations are those that are global where it is submitted, below those of its layers.
So ours goes to the scheduler once a graph, and from there with each of its tasks. Nothing here
waits, and nothing is raised into the user's code: what fails is left out.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import dask

from dask_otel._otel.api import caller as api
from dask_otel.client.roots import ROOTS
from dask_otel.core.context import CARRIER_KEY, Caller, caller_dask_id, make_carrier
from dask_otel.core.text import Sanitizer, attribute_text
from dask_otel.settings.reading import setting

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger("distributed.dask_otel")


class _Carried(NamedTuple):
    """Who calls, and the carrier that says so. The carrier is shared and not to be changed."""

    caller: Caller
    carrier: dict[str, str]


#: Whether baggage travels, and each caller has a span of its own: by client, read with its first
#: submission under a span. In Python they are set before a client is made, and after this module
#: was imported.
_settings: WeakKeyDictionary[Client, tuple[bool, bool]] = WeakKeyDictionary()

#: The caller that the environment names: it counts where no span is active.
_environment: _Carried | None = None

#: The last span and propagators, and what was carried for them: most spans submit more than once,
#: and making a carrier costs the most here. One tuple, so that threads see all of it or nothing.
_last: tuple[object, object, _Carried | None] = (None, None, None)


def prepare() -> None:
    """Read the environment, and load the propagators that it names."""
    global _environment
    api.prepare()
    caller = api.environment_caller()
    _environment = None if caller is None else _Carried(caller, make_carrier(caller))


def annotations_for(client: Client) -> dict[str, Any] | None:
    """Return the annotations that a submission gets here and now; None if it gets none."""
    try:
        span = api.active_span()
        if span is None and _environment is None and not ROOTS:
            return None
        return _annotations(client, span)
    except Exception:
        logger.debug("dask-otel could not pass the caller's context on", exc_info=True)
        return None


def _annotations(client: Client, span: Any) -> dict[str, Any] | None:
    present = dask.get_annotations()
    if CARRIER_KEY in present:
        # The user's own: whoever put it there knows why.
        return None
    if client not in _settings:
        _settings[client] = setting("otel.baggage"), setting("otel.client.span-per-caller")
    baggage, span_per_caller = _settings[client]
    carried = _carried(span, baggage)
    dask_span = present.get("span")
    if dask_span is not None and ROOTS:
        ROOTS.submitted(dask_span["ids"][0], None if carried is None else carried.caller.parent)
    if carried is None:
        return None
    made: dict[str, Any] = {CARRIER_KEY: carried.carrier}
    if span_per_caller and dask_span is None and not _in_task():
        name = attribute_text(api.name_of(span), Sanitizer())
        made["span"] = {"name": (name,), "ids": (caller_dask_id(carried.caller.parent),)}
    return made


def current_caller() -> Caller | None:
    """Return whose work it would be if some were submitted here and now; None if nobody's."""
    carried = _carried(api.active_span(), baggage=False)
    return None if carried is None else carried.caller


def _carried(span: Any, baggage: bool) -> _Carried | None:
    global _last
    if span is None:
        # A worker may have been started with the context of a job: not that of its tasks.
        return None if _environment is None or _in_task() else _environment
    context, propagators = api.identity_of(span)
    last = _last
    if last[0] is context and last[1] is propagators and not baggage:
        return last[2]
    caller = api.caller_of(span, baggage)
    if caller is not None and _in_task():
        caller = caller._replace(nested=True)
    carried = None if caller is None else _Carried(caller, make_carrier(caller))
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
