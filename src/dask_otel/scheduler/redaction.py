"""Loads and guards the operator's function for users' texts (``otel.redact``)."""

from __future__ import annotations

import importlib
from operator import attrgetter
from typing import Any

from dask_otel._log import logger
from dask_otel.core.traces.redact import Redact
from dask_otel.pump.thread import promptly
from dask_otel.settings.keys import ConfigurationError


def load_redaction(name: str) -> Redact:
    """Return the function. It waits for the operator's code, so call this in a thread.

    Parameters
    ----------
    name
        ``module:function``.

    Raises
    ------
    ConfigurationError
        If there is no such function. The bridge then does not run, because texts must not be
        exported without redaction.
    """
    module, _, path = name.partition(":")
    try:
        found: Any = promptly(lambda: attrgetter(path)(importlib.import_module(module)))
    except Exception as error:
        raise ConfigurationError(
            [
                f"otel.redact = {name!r} cannot be loaded where the scheduler runs "
                f"({type(error).__name__}: {str(error)[:200]})."
            ]
        ) from error
    if not callable(found):
        raise ConfigurationError(
            [f"otel.redact = {name!r} is no function, but of type {type(found).__name__}."]
        )
    return _guarded(name, found)


def _guarded(setting: str, function: Redact) -> Redact:
    """Return a function that logs the first error, without the text that caused it."""
    logged = False

    def redact(name: str, text: str) -> str | None:
        nonlocal logged
        try:
            redacted = function(name, text)
            if redacted is None or isinstance(redacted, str):
                return redacted
            wrong = f"returned {type(redacted).__name__}, which is neither text nor None"
        except (Exception, SystemExit) as error:
            # The error's message may contain the text.
            wrong = f"raised {type(error).__name__}"
        if not logged:
            logged = True
            logger.error(
                "dask-otel: %s (otel.redact) %s, for %r. Such texts are left out, and "
                "counted in dask.otel.sanitized as redact. This is logged once",
                setting,
                wrong,
                name,
            )
        # There is no text to export.
        raise ValueError(wrong)

    return redact
