"""Decides what cost an interval its time: each second of the paths has one cause at most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, takewhile
from operator import attrgetter, itemgetter
from typing import Final

from dask_otel.core.diagnosis.facts import Facts, Link, RootFacts, SpanFacts
from dask_otel.core.diagnosis.kinds import KINDS
from dask_otel.core.figures import counted, seconds

#: The smallest share of the run, and of the largest saving, for a diagnosis; the most of them.
_SHARE, _OF_LARGEST, _MOST = 0.1, 0.25, 5
#: A shorter run is not judged.
_SHORTEST: Final = 0.1
#: What went wrong comes before what could be better, if it cost the smallest share.
_INCIDENTS: Final = ("lost", "memory", "paused", "repeated")
#: The most seconds that Dask itself needs for a task on a busy machine.
_OVERHEAD: Final = 0.02
#: A task is long if it takes so many times as long as the others of its group.
_LONG: Final = 2.0
#: The seconds between two ticks of an event loop, and those for which a thread keeps the GIL while
#: others wait for it. On a busy machine, workers' ticks are later than the scheduler's.
_TICK, _SWITCH, _LATE = 0.02, 0.005, 2.0
#: The most cores that a process uses while its threads share the GIL; fewest samples of these.
_ONE_CORE: Final = 1.4
_SAMPLES: Final = 3

#: Prefixes of peer-to-peer shuffles.
_P2P: Final = (
    *("shuffle-transfer", "shuffle-barrier", "p2pshuffle", "shuffle_p2p", "shuffle-p2p"),
    *("hash-join", "rechunk-transfer", "rechunk-p2p", "rechunk-barrier"),
)
_SPILL: Final = ("disk-read", "disk-write", "compress", "decompress")
_PACKING: Final = ("serialize", "deserialize", "compress", "decompress")
_OVERHEAD_OF_TASKS: Final = ("executor", "other")


@dataclass(frozen=True)
class Diagnosis:
    """One cause that cost a run time; the first of a run is its headline."""

    #: A stable name; docs/diagnoses.md has an entry for each.
    kind: str
    #: The full name of the span that it concerns; empty for the whole run.
    span: str
    #: The seconds of wall clock that the cure saves at most.
    seconds: float
    #: The cause, the evidence for it, and the next step: a sentence each.
    title: str
    evidence: str
    next: str


@dataclass
class _Claim:
    kind: str
    span: SpanFacts | None
    seconds: float
    what: str = ""
    evidence: str = ""

    @property
    def name(self) -> str:
        """The full name of its span; empty for the whole run."""
        return "" if self.span is None else self.span.name


def diagnose(facts: Facts) -> list[Diagnosis]:
    """Return what cost an interval its time, the most expensive cause first.

    Notices, such as gaps in the telemetry, come last. There is always one diagnosis.
    """
    claims = [one for span in facts.spans for one in _Case(facts, span).claims()]
    claims += _between(facts)
    order = [*KINDS]
    found = [_merged(facts, same) for same in _together(claims, "kind")]
    found.sort(key=lambda one: order.index(one.kind))
    whole = facts.seconds + facts.before_first
    least = max(_SHARE * whole, _OF_LARGEST * max((one.seconds for one in found), default=0.0))
    worth = [one for one in found if one.seconds >= least > 0]
    # If two save the same, the more specific one comes first.
    worth.sort(key=lambda one: (one.kind not in _INCIDENTS, -round(one.seconds / whole, 2)))
    if whole < _SHORTEST:
        worth = [] if facts.failed else [_said("short", None, whole)]
    if facts.failed:
        what = counted(facts.failed, "task")
        worth.insert(0, _said("failed", None, 0.0, what, _listed(facts.exceptions)))
    return [*(worth or [_healthy(facts)])[:_MOST], *_notices(facts)]


def _together(claims: Iterable[_Claim], *by: str) -> Iterator[list[_Claim]]:
    """Yield the claims that are alike, the largest first."""
    same: dict[object, list[_Claim]] = {}
    for one in sorted(claims, key=attrgetter("seconds"), reverse=True):
        same.setdefault(tuple(getattr(one, name) for name in by), []).append(one)
    yield from same.values()


def _merged(facts: Facts, same: list[_Claim]) -> Diagnosis:
    """Return the claims of one kind as one diagnosis, of the span that they are all in."""
    sums = [(sum(one.seconds for one in own), own[0]) for own in _together(same, "name")]
    took, largest = max(sums, key=itemgetter(0))
    most = facts.seconds + facts.before_first
    total = min(sum(took for took, _ in sums), most)
    span, evidence = largest.span, largest.evidence
    if span is not None and took < 0.99 * total:
        evidence = f"{seconds(took)} of it in {span.name}. {evidence}".rstrip()
        levels = zip(*(one.name.split("/") for _, one in sums if one.span), strict=False)
        shared = "/".join(tags[0] for tags in takewhile(lambda tags: len({*tags}) == 1, levels))
        whole = SpanFacts(shared, shared, seconds=facts.seconds)
        span = next((one for one in facts.spans if one.name == shared), whole)
    return _said(largest.kind, span, total, largest.what, evidence, most)


def _said(
    kind: str,
    span: SpanFacts | None,
    took: float,
    what: str = "",
    evidence: str = "",
    whole: float = 0.0,
) -> Diagnosis:
    name = "" if span is None else span.name
    whole = max(whole if span is None else span.seconds, took)
    words = {
        "span": name or "The run",
        "what": what,
        "took": seconds(took) if whole == took else f"{seconds(took)} of {seconds(whole)}",
    }
    title, next_step = (text.format_map(words) for text in KINDS[kind])
    return Diagnosis(kind, name, took, title, evidence, next_step)


def _healthy(facts: Facts) -> Diagnosis:
    roots = facts.roots.values()
    computing = sum(_computing(root.activities) for root in roots)
    paid = sum(root.busy + (root.idle or 0.0) for root in roots)
    what = f": computing {computing / paid:.0%}" if paid and computing else ""
    return _said("healthy", None, 0.0, what)


def _computing(activities: Mapping[str, float]) -> float:
    return sum(took for name, took in activities.items() if name.endswith("-cpu"))


def _waiting(activities: Mapping[str, float]) -> float:
    return sum(took for name, took in activities.items() if name.endswith("-noncpu"))


def _computed(activities: Mapping[str, float]) -> float:
    return _computing(activities) + _waiting(activities)


def _late(blocked: float, whole: float) -> float:
    """Return by how much a tick of an event loop is late that was blocked for so long."""
    return _TICK * max(0.0, blocked) / max(whole - blocked, 0.001)


def _between(facts: Facts) -> Iterator[_Claim]:
    """Yield what cost time outside of all spans."""
    if facts.before_first:
        yield _Claim(
            "client",
            None,
            facts.before_first,
            ", before it submitted anything",
            "Workers were there. The client computed, built a graph, or sent data.",
        )


def _notices(facts: Facts) -> Iterator[Diagnosis]:
    if facts.open:
        was = "span is" if len(facts.open) == 1 else "spans are"
        yield _said("open", None, 0.0, f"{len(facts.open):,} {was}", _listed(facts.open))
    if facts.dropped:
        what = ", ".join(f"{count:,.0f} {why}" for why, count in facts.dropped.items())
        yield _said("gaps", None, 0.0, what)
    for name, asked in facts.merged[:1]:
        known = any(span.name == asked for span in facts.spans)
        evidence = "" if known else f"{asked} has no span of its own."
        yield _said("merged", SpanFacts(name, name), 0.0, asked, evidence)


def _listed(names: Iterable[str], most: int = 3) -> str:
    texts = [*dict.fromkeys(filter(None, names))]
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


class _Case:
    """The seconds of one span's path, and the causes that claim them one after the other."""

    def __init__(self, facts: Facts, span: SpanFacts) -> None:
        self.facts, self.span = facts, span
        self.root = facts.roots.get(span.root) or RootFacts(span.root, span.seconds)
        self.left = dict(span.parts)
        root = self.root
        self.threads = max(1.0, root.threads)
        self.deaths = [one for one in facts.deaths if not one.roots or root.name in one.roots]
        #: What all threads did while none was free.
        self.use = {"own": root.busy, "held": root.elsewhere, "unbegun": root.unbegun}
        self.no_thread = {
            name: self.left["no_thread"] * took / (sum(self.use.values()) or 1.0)
            for name, took in self.use.items()
        }
        if not any(self.use.values()):
            self.no_thread["own"] = self.left["no_thread"]
        #: What other threads could have done while they were idle.
        self.spare = root.spare
        mean = _computed(root.activities) / max(1, root.tasks)
        #: What a task costs beside its computing.
        overhead = max(0.0, root.seconds / max(1, root.tasks) - mean / self.threads)
        self.tiny = mean < _LONG * overhead and overhead < _OVERHEAD and root.tasks > self.threads
        self.waits, self.why = self._off_cpu()
        # A thread is not given another task before its event loop has noticed the end of one.
        spent = sum(root.activities.get(name, 0.0) for name in _OVERHEAD_OF_TASKS)
        blocked = facts.blocked.get("worker", 0.0) * facts.threads
        self.beside = "tiny" if self.tiny else "gil" if self.waits == "gil" else ""
        self.beside = self.beside or ("worker_loop" if blocked >= spent / 2 > 0 else "")

    def claims(self) -> Iterator[_Claim]:
        """Yield the causes with their seconds."""
        yield from self._incidents()
        yield from self._shuffled()
        yield self._inner()
        yield from self._slow_workers()
        yield from self._placed()
        yield from self._moved()
        yield from self._stalled()
        yield self._claim("client", self.left["client"])
        yield from self._held()
        yield from self._worked()

    def _claim(self, kind: str, took: float, what: str = "", evidence: str = "") -> _Claim:
        return _Claim(kind, self.span, took, what, evidence)

    def _take(self, most: float, *parts: str) -> float:
        """Take seconds of parts, which nobody else can claim then; return how many."""
        taken = 0.0
        for part in parts:
            own = min(self.left[part], most - taken)
            self.left[part] -= own
            taken += own
        return taken

    def _links(self, part: str) -> list[Link]:
        return sorted(self.span.links, key=lambda link: -link.parts.get(part, 0.0))

    def _evidence(self, part: str) -> str:
        """Return which function has most of a part."""
        links = [link for link in self._links(part) if link.parts.get(part, 0.0) > 0]
        if not links:
            return ""
        prefix = links[0].prefix
        same = [link.parts[part] for link in links if link.prefix == prefix]
        return f"{seconds(sum(same))} of it at {counted(len(same), 'task')} of {prefix}."

    # ------------------------------------------------------------------------ incidents

    def _incidents(self) -> Iterator[_Claim]:
        facts, root = self.facts, self.root
        reasons = root.retries
        lost = sum(reasons.get(why, 0.0) for why in ("worker_lost", "recomputed"))
        again = self._take(self.left["repeated"], "repeated")
        if self.deaths and lost:
            # The same work again, on all threads, and what tasks waited for on workers that died.
            for link in self.span.links:
                if link.parts.get("repeated"):
                    again += self._take(link.parts.get("uneven", 0.0), "uneven")
            share = self.span.seconds / (root.seconds or 1.0)
            cost = min(self.span.seconds, again + lost * root.retried * share / self.threads)
            kind = "memory" if facts.terminated else "lost"
            yield self._claim(kind, cost, *self._dead())
        elif reasons.keys() & {"error", "client"}:
            why = _listed(facts.causes) or "they failed"
            runs = counted(int(sum(reasons.values())), "run")
            yield self._claim("repeated", again, why, f"{runs} in all.")
        elif reasons.keys() <= {"rescheduled"}:
            yield self._claim("shuffle" if self._p2p() else "repeated", again, "they asked for it")
        if facts.pauses:
            took = self._take(root.paused, "no_worker", "uneven", "starting")
            rest = min(root.paused - took, self.no_thread["unbegun"])
            self.no_thread["unbegun"] -= rest
            what = f"{counted(len(facts.pauses), 'worker')} were paused: {_listed(facts.pauses)}"
            yield self._claim("paused", took + rest, what.replace("1 worker were", "1 worker was"))

    def _dead(self) -> tuple[str, str]:
        """Return the workers that died, and what is known of it."""
        said = " ".join(dict.fromkeys(one.said for one in self.deaths if one.said))
        suspects = _listed(name for one in self.deaths for name in one.suspects)
        names = _listed(one.worker for one in self.deaths)
        what = f"{counted(len(self.deaths), 'worker')} that died ({names})"
        return what, said + (f" Suspected: {suspects}." if suspects else "")

    # --------------------------------------------------------------------------- places

    def _p2p(self) -> list[Link]:
        return [link for link in self.span.links if link.prefix.startswith(_P2P)]

    def _shuffled(self) -> Iterator[_Claim]:
        took = 0.0
        for link in self._p2p():
            for part in ("compute", "transfer", "starting", "uneven", "report"):
                took += self._take(link.parts.get(part, 0.0), part)
        yield self._claim("shuffle", took)

    def _inner(self) -> _Claim:
        """Return what seceded tasks waited for; those that computed on are as others."""
        took = 0.0
        for link in self.span.links:
            work = self.span.work.get(link.prefix, {})
            share = _waiting(work) / (_computed(work) or 1.0) if work else 1.0
            took += share * self._take(link.parts.get("inner", 0.0), "inner")
        took += self._take(self.left["inner"], "inner")
        return self._claim("inner", took, "", self._evidence("inner"))

    def _slow_workers(self) -> Iterator[_Claim]:
        per_worker = max(1.0, self.facts.threads)
        for slow in self.span.slow:
            mean = (slow.seconds - slow.longest) / max(1, slow.runs - 1)
            if slow.runs < 2 or mean < 1.5 * slow.others:
                continue  # One long task, which was there by chance.
            lost = (slow.seconds - slow.runs * slow.others) / per_worker
            took = self._take(min(lost, self.span.seconds), "uneven", "compute", "no_thread")
            self.no_thread["own"] = min(self.no_thread["own"], self.left["no_thread"])
            whole = slow.seconds / slow.runs
            yield self._claim(
                "slow_worker",
                took,
                slow.name,
                f"{counted(slow.runs, 'task')} of {slow.prefix} took {seconds(whole)} there on "
                f"average, and {seconds(slow.others)} elsewhere.",
            )

    def _placed(self) -> Iterator[_Claim]:
        left = self.left
        late = self.span.queue >= left["no_worker"] / 2
        if late or not self.deaths:
            yield self._claim("no_workers", left["no_worker"], "", self._evidence("no_worker"))
        else:
            yield self._claim("lost", left["no_worker"], *self._dead())
        waited = {link.prefix for link in self.span.links if link.parts.get("uneven")}
        how = {self.span.restrictions.get(prefix, "") for prefix in waited} - {""}
        if not how:
            # Behind tasks that had not begun either, nor any of others.
            known = ("client", "scheduler", "no_worker", "no_thread", "starting")
            before = self.span.queue - sum(left[part] for part in known) - self.root.elsewhere
            left["starting"] += self._take(max(0.0, before), "uneven")
        took = self._take(self.spare, "uneven")
        self.spare -= took
        if "resources" in self.span.restrictions.values() and self.no_thread["unbegun"]:
            # They hold threads, and wait for a resource that others hold.
            how |= {"resources"}
            took += self.no_thread["unbegun"] + self.no_thread["own"]
            self.no_thread["unbegun"] = self.no_thread["own"] = 0.0
        kind = "restricted" if how else "uneven"
        what = " and ".join(f"{one}=" for one in sorted(how))
        yield self._claim(kind, took, what, self._evidence("uneven"))

    # ------------------------------------------------------------------- data and stalls

    def _moved(self) -> Iterator[_Claim]:
        """Yield why tasks waited for data, also where Dask booked the transfer on another task."""
        booked = 0.0
        for link in self.span.links:
            actions = self.span.before.get(link.prefix, {})
            if sum(actions.values()) >= link.parts.get("starting", 0.0) > 0:
                booked += self._take(link.parts["starting"], "starting")
        took = self.left["transfer"] + booked
        disk = sum(one.get("disk-read", 0.0) for one in self.span.before.values())
        network = sum(one.get("transfer", 0.0) for one in self.span.before.values())
        by = self.facts.transfers
        packing = sum(one for (_, name), one in by.items() if name in _PACKING)
        # A receiver waits while the sender serializes.
        waited = by.get(("transmit", "serialize"), 0.0)
        moving = max(0.0, by.get(("receive", "network"), 0.0) - waited)
        blocked = self.facts.blocked.get("worker", 0.0)
        evidence = self._evidence("transfer")
        if disk > network:
            yield self._claim("spill", took, "", evidence)
        elif packing > moving / 2:
            moved = f"Workers packed data for {seconds(packing)}, and moved it for"
            yield self._claim("pickle", took, "", f"{moved} {seconds(moving)}.")
        elif blocked >= took / 2:
            said = f"Event loops of workers were blocked for {seconds(blocked)}."
            yield self._claim("worker_loop", took, "", said)
        else:
            yield self._claim("transfer", took, "", evidence)

    def _stalled(self) -> Iterator[_Claim]:
        """Yield why tasks did not begin, or were not known to be ready or done."""
        facts, left = self.facts, self.left
        before = left["scheduler"]
        later = left["starting"] + self.no_thread["unbegun"]
        report = left["report"]
        blocked = facts.blocked.get("scheduler", 0.0)
        workers = facts.blocked.get("worker", 0.0)
        said = f"The scheduler's event loop was blocked for {seconds(blocked)}."
        if self.tiny:
            yield self._claim("tiny", before + later + report, self._many())
            return
        each = workers / max(1, facts.workers)
        if blocked >= max(each, (before + later) / 2):
            # A graph blocks it before the first task only; large ones block workers, too.
            at_first = self.span.queue >= before / 2 and blocked - before < before / 4
            kind = "graph" if at_first or each > blocked / 3 else "scheduler"
            # Nor does it receive what the client submits meanwhile.
            most = blocked - before - later - report
            unread = self._take(max(0.0, most), "client")
            yield self._claim(kind, before + later + report + unread, "", said)
            return
        yield self._claim("scheduler", before, "", self._evidence("scheduler"))
        evidence, kind, loop = self._evidence("starting"), "starting", "worker_loop"
        if workers >= (later + report) / 2:
            evidence += f" Event loops of workers were blocked for {seconds(workers)}."
            loop = "gil" if self.waits == "gil" else loop
            # Imports block the loop of a worker before its first task.
            kind = kind if self.span.queue >= later / 2 else loop
        yield self._claim(kind, later, self._function(), evidence.strip())
        yield self._claim(loop, report, self._function(), self._evidence("report"))

    def _many(self) -> str:
        mean = _computed(self.root.activities) / max(1, self.root.tasks)
        return f"{counted(self.root.tasks, 'task')} of {seconds(mean)}"

    # ---------------------------------------------------------------------------- work

    def _held(self) -> Iterator[_Claim]:
        whole = self.use["held"]
        holders = [name for name, took in self.root.holders if took > whole / 4]
        evidence = f"Their tasks computed for {seconds(whole)} of the threads' time meanwhile."
        yield self._claim("held", self.no_thread["held"], _listed(holders) or "others", evidence)

    def _worked(self) -> Iterator[_Claim]:
        """Yield what kept the threads that computed, and why other threads were idle meanwhile."""
        work, links = self.span.work, self.span.links
        everything = work or {"": self.root.activities}
        path = {link.prefix for link in links if link.parts.get("compute")} & work.keys()
        found: list[_Claim] = []
        taken = self.no_thread["own"]
        own = self._useful(taken, everything, found)
        # Those that wait behind tasks of one worker wait for what these wait for.
        self._useful(self.left["uneven"], everything, found)
        on_path = {prefix: work[prefix] for prefix in path} or everything
        compute = self._useful(self.left["compute"], on_path, found)
        yield from found
        waited = sum(one.seconds for one in found if one.kind == self.waits)
        if self.waits == "off_cpu" or waited < (own + compute) / 4:
            # More threads do not help those that wait for the GIL or a CPU. Half of the computing
            # remains, and a task is not divided.
            longest = max((link.parts.get("compute", 0.0) for link in links), default=own)
            most = self.root.busy * own / (taken or 1.0) / self.threads / 2 + longest
            yield self._claim("threads", min(own, most), "", self._evidence("no_thread"))
        yield from self._alone(compute)

    def _useful(
        self, took: float, works: Mapping[str, Mapping[str, float]], found: list[_Claim]
    ) -> float:
        """Return the seconds for which tasks computed; add what the others were spent on."""
        sums: dict[str, float] = {}
        for prefix, activities in works.items():
            for name, spent in activities.items():
                kind = "shuffle" if prefix.startswith(_P2P) else self._spent_on(name)
                sums[kind] = sums.get(kind, 0.0) + spent
        whole = sum(sums.values()) or 1.0
        for kind in sums.keys() - {""}:
            what, why = self._function(), self.why
            if kind != self.waits:
                what, why = self._many(), ""
            found.append(self._claim(kind, took * sums[kind] / whole, what, why))
        return took * (sums.get("", 0.0) / whole if sums else 1.0)

    def _spent_on(self, activity: str) -> str:
        """Return the kind of time of a task's thread; empty if it is useful."""
        if activity.endswith("-noncpu"):
            return self.waits
        if activity in _OVERHEAD_OF_TASKS:
            return self.beside
        return "spill" if activity in _SPILL else "starting" if activity == "deserialize" else ""

    def _function(self) -> str:
        links = self._links("compute")
        return f"tasks of {links[0].prefix}" if links else "tasks"

    def _off_cpu(self) -> tuple[str, str]:
        """Return what tasks waited for off the CPU, and the evidence."""
        facts, root, span = self.facts, self.root, self.span
        on, off = (of(root.activities) / (root.busy or 1.0) for of in (_computing, _waiting))
        cores = on * facts.threads
        if len(facts.cores) >= _SAMPLES:
            cores = sum(facts.cores) / len(facts.cores)
        # Tasks that wait for the GIL make their event loop wait for it, too; those that sleep do
        # not. Imports block it before tasks begin.
        stalled = span.parts["starting"] + self.no_thread["unbegun"]
        begun = facts.seconds - max(span.queue, stalled)
        blocked = facts.blocked.get("worker", 0.0) / max(1, facts.workers) - facts.seconds + begun
        late = _late(blocked, begun) - _LATE * _late(facts.blocked.get("scheduler", 0.0), begun)
        shares = off >= on / 2 and cores <= _ONE_CORE
        # It is blocked for no longer than its tasks compute.
        shares = shares and blocked * facts.workers <= _computed(root.activities)
        if shares and late >= _SWITCH * (facts.threads - 1) > 0:
            said = (
                f"A tick of their event loop was late by {seconds(late)} on average, and a process"
            )
            return "gil", f"{said} used {cores:.1f} cores for {facts.threads:.0f} threads."
        # Its tasks wait for a CPU as the scheduler does.
        if facts.starved * on >= off / 2 > 0:
            said = f"For each second on a CPU, the scheduler waited {seconds(facts.starved)} for it"
            return "cpus", f"{said}; its tasks were on a CPU for {on:.0%} of their time."
        return "off_cpu", f"{off:.0%} of their time was off the CPU."

    def _alone(self, compute: float) -> Iterator[_Claim]:
        """Yield the tasks on the path that ran while other threads were idle."""
        most = min(compute, self.spare)
        chain, long, longest = 0.0, 0.0, None
        # Those that only the client led to followed its submissions, not one another.
        links = [link for link in self.span.links if not link.parts.get("client")]
        prefix = attrgetter("prefix")
        for _, same in groupby(sorted(links, key=prefix), prefix):
            on_path = [link for link in same if link.parts.get("compute")]
            alike = sum({link.group: link.alike for link in on_path}.values())
            for link in on_path:
                took = link.parts["compute"]
                if link.others is not None and link.alike > 1 and took >= _LONG * link.others:
                    took -= link.others
                elif len(on_path) > 2 and len(on_path) >= min(32, alike) / 2:
                    chain += took
                    continue
                elif link.alike >= self.threads:
                    continue
                long += took
                longest = max(longest or link, link, key=lambda one: one.parts["compute"])
        if chain > long:
            yield self._claim("chain", most, "", self._evidence("compute"))
        elif longest is not None:
            took = longest.parts["compute"]
            what = f"one task of {longest.prefix} that took {seconds(took)}"
            others = (
                "" if longest.others is None else f"; the others took {seconds(longest.others)}"
            )
            where = f"It ran on {longest.worker}{others}." if longest.worker else ""
            yield self._claim("long_task", min(most, long), what, where)
