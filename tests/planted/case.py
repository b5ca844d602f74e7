"""A planted cause: the program of a user, and the diagnosis that its report must begin with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from math import inf, nan
from typing import Any

from distributed import span, wait

import dask_otel
from dask_otel.core.diagnosis import Diagnosis
from dask_otel.lab.wires import Latency
from tests.planted.means import Event, at

#: A user's program. It gets a client, and the cluster to do something to it. What it returns are
#: futures that the user waits for.
Program = Callable[[Any, Any], Any]

#: What a diagnosis of another kind must not say either, where its kind would be wrong.
ADVICE: Mapping[str, Sequence[str]] = {
    "threads": ("doubling the threads", "use more threads", "start more workers"),
    "lost": ("oom killer", "died"),
    "uneven": ("work stealing",),
    "restricted": ("loosen",),
}


@dataclass(frozen=True)
class Case:
    """One cause, or two, and what a report of it must say."""

    program: Program
    #: Kinds of a right headline; mostly one.
    kinds: tuple[str, ...]
    #: A second planted cause: one of these kinds is among the diagnoses.
    also: tuple[str, ...] = ()
    #: What the headline names, in its span, title or evidence: the holder, not the victim.
    names: tuple[str, ...] = ()
    #: Kinds that the facts of the run refute: no diagnosis has them, or gives their advice.
    never: tuple[str, ...] = ()
    #: The seconds that the run would be shorter without the cause: the headline promises no more.
    most: float = inf
    #: Those that it would be shorter at least: the headline says no less.
    least: float = 0.0
    #: Instead of both, where the order of Dask's sets decides how long the run takes: its seconds
    #: without the cause, if all threads share the work evenly, and as Dask does.
    without: tuple[float, float] | None = None
    #: Of the cluster.
    workers: int = 2
    threads: int = 2
    #: The spans around the program, the outermost first: of `distributed`, or blocks of ours.
    span: str = ""
    block: str = ""
    #: In simulated time: how long messages take, and what happens so many seconds after the begin.
    latency: Latency | None = None
    events: Mapping[float, Event] = field(default_factory=dict)
    #: Dask's configuration.
    config: Mapping[str, Any] = field(default_factory=dict)
    #: Whether it needs real processes.
    real: bool = False
    #: In words, with dashes.
    name: str = ""

    def run(self, client: Any, cluster: Any) -> None:
        """Run the program as its user does."""
        if self.latency:
            cluster.latency = self.latency
        for seconds, event in self.events.items():
            at(cluster, seconds, event)
        block = dask_otel.span(self.block) if self.block else nullcontext()
        with span(*self.span.split("/")) if self.span else nullcontext(), block:
            if futures := self.program(client, cluster):
                wait(futures)

    def faults(self, said: Sequence[Diagnosis], took: float = nan) -> list[str]:
        """Return the faults of these diagnoses of a run that took so long; none if right."""
        found = []
        first, *_ = said
        least, most = self.least, self.most
        if self.without:
            most, least = (took - seconds for seconds in self.without)
        if first.kind not in self.kinds:
            found.append(f"the headline is {first.kind}, not {' or '.join(self.kinds)}")
        # Messages take some milliseconds.
        if first.seconds > 1.02 * most:
            found.append(f"the headline promises {first.seconds:.3g} s of {most:.3g} s")
        if first.seconds < 0.98 * least:
            found.append(f"the headline promises {first.seconds:.3g} s, not {least:.3g} s")
        headline = f"{first.span} {first.title} {first.evidence}"
        found += [
            f"the headline does not name {name}" for name in self.names if name not in headline
        ]
        kinds = {one.kind for one in said}
        if self.also and not kinds.intersection(self.also):
            found.append(f"nothing is {' or '.join(self.also)}")
        for kind in self.never:
            for one in said:
                text = f"{one.title} {one.evidence} {one.next}".lower()
                if one.kind == kind or any(words in text for words in ADVICE.get(kind, ())):
                    found.append(f"the facts refute {kind}: {one.title}")
        return found


class Cases(dict[str, Case]):
    """Cases by name, in the order in which they were planted."""

    def add(self, cases: Mapping[str, Case]) -> None:
        """Plant cases under their names."""
        assert not self.keys() & cases.keys()
        self.update((name, replace(case, name=name)) for name, case in cases.items())

    def plant(self, *kinds: str, **more: Any) -> Callable[[Program], Program]:
        """Return a decorator: the program is a case of these kinds; see `Case`."""

        def planted(program: Program) -> Program:
            self.add({program.__name__.replace("_", "-"): Case(program, kinds, **more)})
            return program

        return planted
