"""What a scenario is, and the list of all."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

HTTP = "http/protobuf"
GRPC = "grpc"
BOTH = (HTTP, GRPC)
#: For scenarios without a cluster, in simulated time.
SIMULATED = "simulated"
SHORT = {HTTP: "HTTP", GRPC: "gRPC", SIMULATED: "simulated"}

#: Verdicts. A promise that can't be kept by any means has a bound on what is lost.
KEPT, BROKEN, BOUNDED, SKIPPED = "kept", "broken", "lost, within the bound", "not run"


#: `World` stands above this file: a scenario is a function of one.
Run: TypeAlias = Callable[..., str]


class CannotRun(Exception):
    """This machine can't run a scenario."""


def progress(line: str) -> None:
    """Print how far a long scenario is."""
    print(f"  {time.strftime('%H:%M:%S')}  {line}", flush=True)


@dataclass(frozen=True)
class Scenario:
    """One fault, and the promise for it."""

    name: str
    fault: str
    promise: str
    #: Takes a `World`, returns the observation; an AssertionError says why the promise is broken.
    run: Run
    #: Section of the page.
    section: str
    protocols: tuple[str, ...] = BOTH
    #: Whether the promise is about how much is lost.
    loses: bool = False
    #: Whether it is compared with the same work without the fault, and without the bridge.
    compared: bool = False


SCENARIOS: dict[str, Scenario] = {}


def scenario(name: str, **what: Any) -> Callable[[Run], Run]:
    """Put a function on the list, by the fields of `Scenario`."""

    def listed(run: Run) -> Run:
        assert name not in SCENARIOS, name
        SCENARIOS[name] = Scenario(name, run=run, **what)
        return run

    return listed
