"""The resource: the origin of all telemetry of one scheduler."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from functools import partial
from importlib.metadata import EntryPoint
from typing import Any, Final

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.version import __version__ as sdk_version

from dask_otel import semconv
from dask_otel._log import logger
from dask_otel._otel.sdk.environment import shown_to_sdk, variables
from dask_otel._otel.sdk.transport import mask_of_environment, words_of
from dask_otel._version import entry_points, installed
from dask_otel.core.text import Sanitizer, clean_text
from dask_otel.pump.thread import apart

#: The variables in which the Dask operator, Dask Gateway and Coiled put the cluster's name.
_CLUSTER_NAME_VARIABLES: Final = (
    "DASK_CLUSTER_NAME",
    "DASK_GATEWAY_CLUSTER_NAME",
    "COILED_CLUSTER_NAME",
    "DASK_COILED__CLUSTER_NAME",
)
_DETECTORS: Final = "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS"
#: Seconds for all detectors: the shortest run of a cluster may end meanwhile, and its close waits.
_PATIENCE: Final = 4.0
#: The SDK's own attributes.
_SDK: Final = {
    "telemetry.sdk.language": "python",
    "telemetry.sdk.name": "opentelemetry",
    "telemetry.sdk.version": sdk_version,
}


def make_resource(
    instance_id: str,
    cluster_name: str | None,
    claims: Callable[[str, str], bool] | None = None,
) -> Resource:
    """Return the resource: the user's attributes, then detectors', then ours.

    Parameters
    ----------
    instance_id
        Used if neither the user nor a detector sets another one.
    cluster_name
        ``otel.cluster-name``; None means the environment's name, or else the service's.
    claims
        Returns whether this bridge may export under a service's name and instance; else it gets
        another instance.
    """
    found = _detected()
    # The SDK's placeholder for a missing name.
    if str(found.get(semconv.SERVICE_NAME) or "unknown_service").startswith("unknown_service"):
        found[semconv.SERVICE_NAME] = "dask-scheduler"
    found.setdefault(semconv.SERVICE_INSTANCE_ID, instance_id)
    name, instance = (
        str(found[key]) for key in (semconv.SERVICE_NAME, semconv.SERVICE_INSTANCE_ID)
    )
    if claims is not None and not claims(name, instance):
        # The user's own, for all of this process. Two totals can't share one series.
        found[semconv.SERVICE_INSTANCE_ID] = f"{instance}/{instance_id}"
        logger.warning(
            "dask-otel: another bridge in this process exports as service.instance.id %r, too, so "
            "this one exports as %r: else both would write the same series. Remove "
            "service.instance.id from OTEL_RESOURCE_ATTRIBUTES: then each has its scheduler's id",
            instance,
            found[semconv.SERVICE_INSTANCE_ID],
        )
    if release := installed("distributed"):
        found.setdefault(semconv.SERVICE_VERSION, release)
    found.setdefault(semconv.RUNTIME_VERSION, platform.python_version())
    if not found.get(semconv.CLUSTER_NAME):
        names = [cluster_name, *map(os.environ.get, _CLUSTER_NAME_VARIABLES), name]
        found[semconv.CLUSTER_NAME] = next(filter(None, names))
    # Values of the environment can contain bytes that are not UTF-8, as lone surrogates.
    sanitizer = Sanitizer()
    return Resource(
        {
            clean_text(key, sanitizer): clean_text(value, sanitizer)
            if isinstance(value, str)
            else value
            for key, value in found.items()
        }
    )


def _detected() -> dict[str, Any]:
    """Return what the user's resource detectors find, then the user's own attributes.

    The SDK would wait for a detector that never answers, here and at the end of the process.
    """
    wanted = [name.strip() for name in variables().get(_DETECTORS, "").split(",")]
    known = {
        entry.name: entry
        # That reads files of all installed packages.
        for entry in (entry_points(group="opentelemetry_resource_detector") if any(wanted) else ())
    }
    everything = sorted(known.keys() - set(wanted))
    names = [name for one in wanted for name in (everything if one == "*" else [one])]
    futures = {
        name: apart(partial(_attributes_of, known, name), "dask-otel-detector")
        for name in dict.fromkeys(names)
        # The user's attributes, which are always read, and a random id, which is never.
        if name not in ("", "otel", "service_instance")
    }
    wait(futures.values(), _PATIENCE)
    errors = {
        name: one.exception() if one.done() else TimeoutError("no answer in time")
        for name, one in futures.items()
    }
    missing = [f"{name} ({words_of(error)})" for name, error in errors.items() if error]
    if missing:
        logger.warning(
            "dask-otel exports without the attributes of these resource detectors, which failed or "
            "took too long: %s. All of them together have %g s; remove those that fail from %s",
            mask_of_environment()(", ".join(missing)),
            _PATIENCE,
            _DETECTORS,
        )
    found = [one.result() for name, one in futures.items() if errors[name] is None]
    parts = (_SDK, *found, shown_to_sdk(OTELResourceDetector().detect).attributes)
    return {key: value for part in parts for key, value in part.items()}


def _attributes_of(installed: Mapping[str, EntryPoint], name: str) -> Mapping[str, Any]:
    return dict(installed[name].load()().detect().attributes)
