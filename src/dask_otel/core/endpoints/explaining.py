"""What an endpoint's answer means: the likely cause in words, and what to do about it.

The scheduler's warning and ``dask-otel doctor`` say the same, for it is said here. What is known
is the endpoint as it was configured, the reason as the exporter gave it, and sometimes who really
listens there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dask_otel.core.endpoints import answering, connecting
from dask_otel.core.endpoints.address import Endpoint
from dask_otel.core.endpoints.trouble import ENDPOINT, PROTOCOL, Seen, Trouble

#: What to do where the cause is not known.
UNKNOWN: Final = f"Check that a collector listens there, and {ENDPOINT} and {PROTOCOL}."

#: Kinds of trouble that come where nobody is.
_NOBODY: Final = frozenset({"refused", "unresolved", "unreachable", "timeout", "closed"})

#: The first one that knows.
_RULES: Final[tuple[Callable[[Seen], Trouble | None], ...]] = (
    connecting.bad_address,
    connecting.certificate,
    connecting.plain_to_tls,
    connecting.tls_to_plain,
    answering.page,
    answering.redirect,
    connecting.proxy,
    answering.status,
    connecting.wrong_protocol,
    answering.code,
    connecting.unresolved,
    connecting.refused,
    connecting.unreachable,
    connecting.timeout,
    connecting.closed,
    answering.vague_code,
)


def explain(
    endpoint: Endpoint, signal: str, reason: str, listener: str | None = None
) -> Trouble | None:
    """Return the likely cause of a failed export; None if it is not known.

    Parameters
    ----------
    endpoint
        As it was configured.
    signal
        ``"traces"`` or ``"metrics"``.
    reason
        What the exporter or the server said.
    listener
        Who listens there (`Listener`), if somebody has looked.
    """
    seen = Seen(endpoint, signal, reason, listener)
    found = (rule(seen) for rule in _RULES)
    return next((trouble for trouble in found if trouble is not None), None)


def answered(endpoint: Endpoint, signal: str, reason: str) -> bool:
    """Return whether a failed export certainly found somebody; see `explain`."""
    trouble = explain(endpoint, signal, reason)
    if trouble is None or trouble.kind in _NOBODY:
        return False
    # gRPC says so of connections that it could not make, in many words.
    return not reason.startswith("UNAVAILABLE") or trouble.kind != "server_error"


def partly_taken(lost: int, words: str) -> Trouble:
    """Return what it means that a server took a request, but not all that was in it."""
    if lost > 0:
        return Trouble(
            "partial_success",
            f"The server took the request and rejected {lost} of its items: {words}.",
            "See the server's limits and its log; what it rejects is lost, as OTLP forbids to "
            "send it again.",
        )
    return Trouble(
        "server_note", f"The server took everything, and says: {words}.", "Read what it says."
    )
