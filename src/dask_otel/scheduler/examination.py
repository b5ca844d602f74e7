"""The doctor's examination of a process: versions, settings, health, and a test of the export.

The result is plain data without secrets: safe to share, and readable by another version.
"""

from __future__ import annotations

import asyncio
import difflib
import os
import platform
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import dask.config
from distributed.scheduler import Scheduler

from dask_otel._dask.facts import workers_condition
from dask_otel._version import installed
from dask_otel.pump.thread import apart
from dask_otel.scheduler.bridge import Bridge
from dask_otel.scheduler.redaction import load_redaction
from dask_otel.settings.keys import ConfigurationError, Settings
from dask_otel.settings.origins import mask_of, settings_in_force, variable_of, variables_in_force
from dask_otel.settings.reading import DEFAULTS, read_settings

#: Version of the result's format; never decreases.
FORMAT: Final = 1
#: Packages whose versions are reported.
PACKAGES: Final = (
    "dask-otel",
    "dask",
    "distributed",
    "opentelemetry-api",
    "opentelemetry-sdk",
    "opentelemetry-exporter-otlp-proto-grpc",
    "opentelemetry-exporter-otlp-proto-http",
    "grpcio",
)
#: Smallest similarity of a misspelled name: one letter in ten is wrong.
_NEAR: Final = 0.9
#: Seconds besides the probe's: for imports, resource detectors and the check for listeners.
_MORE: Final = 30.0


async def examine(scheduler: Scheduler, bridge: Bridge | None, seconds: float) -> dict[str, Any]:
    """Return the facts about a scheduler, its bridge and its workers, and test its export.

    Call it on the scheduler's event loop; a thread does the slow part. `seconds` is the longest
    wait for the endpoints' answers.
    """
    facts: dict[str, Any] = {
        "bridge": {"state": "absent"} if bridge is None else _condition(bridge),
        "workers": workers_condition(scheduler, None if bridge is None else bridge.adapter.clocks),
    }
    settings = None if bridge is None else bridge.settings
    slow = partial(process_facts, settings, {} if bridge is None else bridge.overrides, seconds)
    try:
        facts |= await asyncio.wait_for(
            asyncio.wrap_future(apart(slow, "dask-otel-doctor")), seconds + _MORE
        )
    except asyncio.TimeoutError:
        facts |= {"format": FORMAT, "versions": versions(), "timed_out": seconds + _MORE}
    return facts


def _condition(bridge: Bridge) -> dict[str, Any]:
    condition = bridge.condition()
    mask = mask_of(bridge.settings)
    for destination in condition.get("destinations", ()):
        destination["reason"] = mask(destination["reason"])
    return {"state": "running" if condition["exporting"] else "starting", **condition}


def process_facts(
    settings: Settings | None, overrides: Mapping[str, Any], seconds: float
) -> dict[str, Any]:
    """Return versions and settings of this process, and test its export. This may block.

    `settings` are the effective ones; None to read them. For the others, see `examine`.
    """
    facts: dict[str, Any] = {
        "format": FORMAT,
        "versions": versions(),
        "fusion": dask.config.get("optimization.fuse.active", None),
        "problems": [],
        "settings": [],
        "variables": [],
        "probe": None,
    }
    if settings is None:
        try:
            settings = read_settings(overrides)
        except ConfigurationError as error:
            facts["problems"] = list(error.problems)
            return facts
    # Slow to import.
    from dask_otel._otel.sdk.probe import probe

    found = probe(settings, seconds)
    mask = mask_of(settings)
    problems = [*_redaction_problems(settings), *found.pop("problems")]
    for result in found["results"]:
        result["reason"], result["said"] = mask(result["reason"]), mask(result["said"])
    variables = variables_in_force(settings.environment, settings.provider == "own")
    return {
        **facts,
        "enabled": settings.enabled,
        "linger": settings.spans.linger,
        "settle_timeout": settings.spans.settle_timeout,
        "prometheus": settings.metrics.prometheus,
        "settings": [list(one) for one in settings_in_force(settings, overrides)],
        "variables": [list(one) for one in variables],
        "misspelled": _misspelled(settings.environment),
        "problems": [mask(problem) for problem in problems],
        "mistakes": [mask(mistake) for mistake in found.pop("mistakes")],
        "probe": found,
    }


def _misspelled(environment: Mapping[str, str]) -> list[list[str]]:
    """Return each unknown variable with a name similar to a standard one or a key's, and that."""
    from dask_otel._otel.sdk.environment import known_variables

    known = known_variables() | {variable_of(key) for key in DEFAULTS}
    near = {
        name: difflib.get_close_matches(name.upper(), known, 1, _NEAR)
        for name in sorted({*os.environ, *environment} - known)
        # Such a name has been read as a key.
        if not name.startswith("DASK_OTEL__")
    }
    return [[name, *meant] for name, meant in near.items() if meant]


def _redaction_problems(settings: Settings) -> tuple[str, ...]:
    """Return why the operator's function cannot be loaded; without it the bridge does not run."""
    try:
        if settings.redact is not None:
            load_redaction(settings.redact)
    except ConfigurationError as error:
        return error.problems
    return ()


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of `PACKAGES`; None for a missing package."""
    return {"python": platform.python_version(), **{name: installed(name) for name in PACKAGES}}
