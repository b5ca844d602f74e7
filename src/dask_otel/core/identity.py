"""Deterministic trace and span ids: computable anywhere, without any propagation.

One rule (see the telemetry contract): BLAKE2b over the UTF-8 text of Dask's span id,
16 bytes for a trace id, 8 for a span id; zero, which is invalid in OpenTelemetry,
becomes 1.

The uuid itself won't do: OpenTelemetry's ratio samplers compare the low 64 bits of the trace
id, and in a uuid4 these always begin with binary 10, so every ratio up to one half would sample
nothing.
"""

from __future__ import annotations

from collections.abc import Hashable
from hashlib import blake2b
from typing import Final

#: Hashed if a task's key has no text.
_UNREADABLE: Final = "<unreadable>"


def _digest(text: str, size: int) -> int:
    # A lone surrogate can't arrive over Dask's comms, but an id made inside the scheduler's
    # process could contain one: it must not raise.
    raw = text.encode("utf-8", "backslashreplace")
    return int.from_bytes(blake2b(raw, digest_size=size).digest(), "big") or 1


def trace_id(dask_id: str, generation: int = 1) -> int:
    """Return the 128-bit trace id of a trace that begins with this generation of a Dask span."""
    return _digest(dask_id if generation == 1 else f"{dask_id}#{generation}", 16)


def span_id(dask_id: str, generation: int = 1) -> int:
    """Return the 64-bit span id of one generation of a Dask span.

    Parameters
    ----------
    dask_id
        Dask's span id, which need not be a uuid.
    generation
        1 for the span itself, 2 and up for its continuations.
    """
    return _digest(dask_id if generation == 1 else f"{dask_id}#{generation}", 8)


def group_span_id(dask_id: str, generation: int, name: str, ordinal: int) -> int:
    """Return the span id of a task group.

    Parameters
    ----------
    dask_id, generation
        The Dask span and generation that own the group.
    name
        The group's name, or another part of the span (markers).
    ordinal
        1 for the first group of that name in the span, 2 for the next (Dask can have
        several groups of one name in one span).
    """
    return _digest(f"{dask_id}#{generation}/{name}#{ordinal}", 8)


def task_span_id(dask_id: str, key: Hashable, run: int) -> int:
    """Return the span id of one run of a task.

    Parameters
    ----------
    dask_id
        Dask's id of the span of the task's TaskGroup.
    key
        The task's key.
    run
        Dask's number of the run (``TaskState.run_id``): new for each message that sends a task
        to a worker; the worker knows it too.
    """
    return _digest(f"{dask_id}~{run}/{key_text(key)}", 8)


def is_sampled(key: Hashable, ratio: float) -> bool:
    """Whether the ratio selects a task for a span. Worker and scheduler get the same answer.

    Parameters
    ----------
    ratio
        From 0.0, for none, to 1.0, for all.
    """
    return ratio > 0.0 and _digest(f"task/{key_text(key)}", 8) <= ratio * 2.0**64


def key_text(key: Hashable) -> str:
    """Return a task's key as text that is the same in every process. Never raises.

    Dask's keys are strings, bytes, numbers, and tuples of these. An instance of a subclass, such as
    an enum's member or a NumPy number, may arrive in another process as the plain value, so the
    subclass's methods are not used.
    """
    if type(key) is str:
        return key
    try:
        return _plain(key)
    except Exception:  # noqa: BLE001 - anything can come
        return _UNREADABLE


def _plain(key: Hashable) -> str:
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, tuple):
        return f"({','.join([_plain(part) for part in key])})"
    for kind in (int, float, bytes):
        if isinstance(key, kind):
            return kind.__repr__(key)
    return repr(key)
