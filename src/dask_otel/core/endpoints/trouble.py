"""Trouble with an endpoint: what was seen, and the likely cause in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dask_otel.core.endpoints.address import Endpoint

#: The variables that most of it is about.
PROTOCOL: Final = "OTEL_EXPORTER_OTLP_PROTOCOL"
ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why an endpoint does not take what it is sent."""

    #: A short name that does not change, for scripts.
    kind: str
    #: A sentence: the likely cause.
    cause: str
    #: A sentence or two: what to do.
    remedy: str

    def __str__(self) -> str:
        return f"{self.cause} {self.remedy}"


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a failed export; see `explain`."""

    endpoint: Endpoint
    signal: str
    reason: str
    listener: str | None

    def says(self, *parts: str) -> bool:
        """Whether the reason holds one of these words, however written."""
        lowered = self.reason.lower()
        return any(part.lower() in lowered for part in parts)

    @property
    def grpc(self) -> bool:
        """Whether gRPC was spoken."""
        return self.endpoint.protocol == "gRPC"

    @property
    def exporter(self) -> str:
        """The variable that names the signal's exporters."""
        return f"OTEL_{self.signal.upper()}_EXPORTER"
