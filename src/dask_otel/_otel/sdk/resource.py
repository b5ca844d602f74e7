"""The resource: the origin of all telemetry of one scheduler."""

from __future__ import annotations

import os
import platform
from typing import Any, Final

from opentelemetry.sdk import resources
from opentelemetry.sdk.resources import Resource

from dask_otel import semconv
from dask_otel.core.text import Sanitizer, clean_text
from dask_otel.settings.problems import ConfigurationError

#: The variables in which the Dask operator, Dask Gateway and Coiled put the cluster's name.
_CLUSTER_NAME_VARIABLES: Final = (
    "DASK_CLUSTER_NAME",
    "DASK_GATEWAY_CLUSTER_NAME",
    "COILED_CLUSTER_NAME",
    "DASK_COILED__CLUSTER_NAME",
)


def make_resource(
    service_name: str, instance_id: str, service_version: str, cluster_name: str | None
) -> Resource:
    """Return the resource: the user's attributes, then detectors', then ours.

    Parameters
    ----------
    service_name, instance_id, service_version
        Used if neither the user nor a detector sets another one.
    cluster_name
        ``otel.cluster-name``; None means the environment's name, or else the service's.

    Raises
    ------
    ConfigurationError
        If a configured detector can't be used.
    """
    found = _detected()
    # The SDK's placeholder for a missing name.
    if str(found.get(semconv.SERVICE_NAME) or "unknown_service").startswith("unknown_service"):
        found[semconv.SERVICE_NAME] = service_name
    if _is_random(found.get(semconv.SERVICE_INSTANCE_ID)):
        found[semconv.SERVICE_INSTANCE_ID] = instance_id
    found.setdefault(semconv.SERVICE_VERSION, service_version)
    found.setdefault(semconv.RUNTIME_VERSION, platform.python_version())
    if not found.get(semconv.CLUSTER_NAME):
        names = [cluster_name, *map(os.environ.get, _CLUSTER_NAME_VARIABLES)]
        names.append(str(found[semconv.SERVICE_NAME]))
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
    try:
        return dict(Resource.create().attributes)
    except Exception as error:
        variable = "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS"
        value = os.environ.get(variable, "")
        raise ConfigurationError(
            [
                f"{variable} is {value!r}, and one of these resource detectors can't be used "
                f"({error!r}). Allowed: names of installed detectors that work."
            ]
        ) from error


def _is_random(instance_id: object) -> bool:
    """Whether the id is the random one that newer SDKs give a process."""
    detector = getattr(resources, "ServiceInstanceIdResourceDetector", None)
    if instance_id is None or detector is None:
        return instance_id is None
    return bool(detector().detect().attributes.get(semconv.SERVICE_INSTANCE_ID) == instance_id)
