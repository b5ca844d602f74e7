"""Decides what cost an interval its time: each second of the paths has one cause at most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from math import inf
from typing import Final, NamedTuple

from dask_otel.core.diagnosis.facts import NOWHERE, Facts, Link, SpanFacts, Times
from dask_otel.core.diagnosis.kinds import KINDS
from dask_otel.core.figures import counted, noun, seconds, size
from dask_otel.core.sums import covered, joined, summed
from dask_otel.core.text import full_name, listed, span_tags

#: The most events that are evidence of deaths: with all of many, nothing else is on the screen.
_EVENTS: Final = 2
#: The smallest share of the run, and of the largest saving, for a diagnosis; the most of them.
_SHARE, _OF_LARGEST, _MOST = 0.1, 0.25, 5
#: A shorter run is not judged.
_SHORTEST: Final = 0.1
#: What went wrong comes before what could be better, if it cost the smallest share.
_INCIDENTS: Final = ("failed", "lost", "memory", "paused", "repeated")
_NOTICES: Final = ("sizing", "open", "gaps", "merged")
#: The most seconds that Dask itself needs for a task, and the tasks of a thread that are many.
_OVERHEAD, _MANY = 0.02, 25
#: A task is long if it takes so many times as long as the others.
_LONG: Final = 2.0
#: The seconds between two ticks of an event loop, and those for which a thread keeps the GIL while
#: others wait for it. On a busy machine, workers' ticks are later than the scheduler's.
_TICK, _SWITCH, _LATE = 0.02, 0.005, 2.0
#: There are more tasks on a path than are known if it computed for so many times as long.
_FOLDED: Final = 1.01
#: The fewest and most cores that tasks of a process use while its threads share the GIL. With
#: fewer, CPUs are missing.
_HALF_CORE, _ONE_CORE = 0.5, 1.4

#: The subjects of sentences, instead of the names of spans.
_NAMES: Final = {"": "The run", "default": "Work outside spans (default)"}
#: Kinds that more than the idle time of threads, and what these spent on them, can cost: their
#: cures add threads or take work away, or no task was there.
_BEYOND: Final = ("threads", "held", "no_workers", "client", "slow_worker", "shuffle")
#: Kinds whose cures leave the tasks as they are.
_BESIDE_TASKS: Final = (
    *("no_workers", "paused", "held", "threads", "restricted", "uneven", "queued", "starting"),
    *("transfer", "pickle", "scheduler", "graph", "messages", "client"),
)
#: Kinds whose evidence names who had most of the results in memory.
_OF_MEMORY: Final = ("memory", "paused", "spill")
#: Dask spills from this share of a worker's memory on, and restarts a worker soon after that one.
_SPILLS, _FULL = 0.6, 0.9
#: Less memory is proposed from this share of it, and with so many heartbeats of each worker; fewer
#: threads if tasks waited for a free one for less than this share of the time.
_LESS, _BEATS, _WAITED = 0.8, 20, 0.01

#: Prefixes of peer-to-peer shuffles.
_P2P: Final = (
    *("shuffle-transfer", "shuffle-barrier", "p2pshuffle", "shuffle_p2p", "shuffle-p2p"),
    *("hash-join", "rechunk-transfer", "rechunk-p2p", "rechunk-barrier"),
)
_BESIDE: Final = ("executor", "other")
_DISKS: Final = ("disk-read", "disk-write")
#: Parts in which tasks did not begin, or were not known to be ready or done.
_STALLS: Final = ("scheduler", "starting", "unbegun", "report")
#: Parts of the time before a first task, but for waits behind tasks that do not begin.
_BEFORE_FIRST: Final = (
    *("client", "scheduler", "no_worker", "uneven", "transfer", "starting", "other_span"),
)
#: What a part costs for which no other fact has a cause.
_ELSE: Final = {
    "inner": "inner",
    "no_worker": "no_workers",
    "scheduler": "scheduler",
    "starting": "starting",
    "unbegun": "starting",
    "client": "client",
}
_NOT_ENDED: Final = "Threads had tasks of others that had not ended yet."
_NONE_BEGAN: Final = "None of its tasks began, and no thread was free."
_UNBEGUN: Final = "Threads had tasks that did not begin, and others waited behind these."
_NEWS: Final = "The scheduler knew of ends {} later than blocked event loops explain."
_NO_PATH: Final = "What the run waited for is not known: its spans have no path"
_WHY_NO_PATH: Final = (
    "They are still open or were cut off, some of their work is older than the bridge, or "
    "otel.spans.path is off."
)
_BEFORE: Final = (
    "The client had submitted nothing yet: it built a graph, sent data, or did something else."
)
_BLOCKED: Final = (
    "Its event loop was blocked for {} before the first span, and did not hear of submissions."
)
_BETWEEN: Final = (
    "Between root spans, nothing was submitted: the client fetched results or did something else, "
    "or a person was away."
)
_HELD_THREADS: Final = "Tasks of {} used no CPU for {:.0%} of the threads' time"
_NO_TASK_BEHIND: Final = (
    "How much sooner the run would end without that is not known: hardly any task waited for a "
    "thread."
)
_NOTHING: Final = (
    "The telemetry has no span with work that has ended",
    "A span is exported when it has ended; until then, only metrics have its work.",
)


@dataclass(frozen=True)
class Diagnosis:
    """One cause that cost a run time; the first of a run is its headline."""

    #: A stable name; docs/diagnoses.md has an entry for each.
    kind: str
    #: The full name of the span that it concerns; empty for the whole run.
    span: str
    #: The seconds of wall clock that the cure can save: an estimate, no bound.
    seconds: float
    #: The cause, the evidence for it, and the next step: a sentence each.
    title: str
    evidence: str
    next: str
    #: The tasks that it concerns, by prefix; empty for all.
    prefixes: tuple[str, ...] = ()
    #: The change that saved the seconds in a replay; None if they are an estimate.
    experiment: str | None = None

    @property
    def saving(self) -> str:
        """The saving in a sentence; empty if there is none."""
        if self.experiment:
            return f"Measured by replay, {self.experiment}: {seconds(self.seconds)} less."
        return f"The cure can save about {seconds(self.seconds)}." if self.seconds else ""


class _Claim(NamedTuple):
    """The seconds of a span that a cause costs, and the facts for its words."""

    kind: str
    name: str
    seconds: float
    what: Sequence[str] = ()
    evidence: str = ""
    prefixes: tuple[str, ...] = ()
    root: str = ""
    #: Whether roots that were open at the same time have a share each of the same seconds.
    divided: bool = False
    #: The seconds that the kind can have cost the root at most.
    most: float = inf


def diagnose(facts: Facts) -> list[Diagnosis]:
    """Return what cost an interval its time, the most expensive cause first.

    Notices, such as gaps in the telemetry, come last. There is always one diagnosis.
    """
    # What a blocked scheduler cost its spans is no time before them.
    stalls = (span.parts.get(part, 0.0) for span in facts.spans for part in (*_STALLS, "client"))
    blocked = min(facts.before_first, facts.blocked_first - sum(stalls))
    if blocked < facts.before_first / 2:
        blocked = 0.0
    claims = [
        _Claim("scheduler", "", blocked, (), _BLOCKED.format(seconds(blocked))),
        _Claim("client", "", facts.before_first - blocked, (), _BEFORE),
    ]
    claims += [claim for span in facts.spans for claim in _Case(facts, span).claims]
    of_kinds = ([one for one in claims if one.kind == kind and one.seconds > 0] for kind in KINDS)
    causes = [_merged(facts, same) for same in of_kinds if same]
    whole = facts.seconds + facts.before_first
    least = max(_SHARE * whole, _OF_LARGEST * max((one.seconds for one in causes), default=0.0))
    worth = [one for one in causes if one.seconds >= least > 0]
    # If two save the same, the more specific one comes first.
    worth.sort(key=lambda one: (one.kind not in _INCIDENTS, _place(one.seconds)))
    if whole < _SHORTEST:
        short = f"The run is too short to judge: {seconds(whole)}", ""
        # It can be much longer than what its open spans say.
        said = (_NO_PATH, _WHY_NO_PATH) if facts.open else short if whole else _NOTHING
        worth = [] if facts.failed else [_said(facts, "short", "", *said)]
    # Last, as it can be a person who thinks; but with it, something is in the way.
    if facts.between >= _SHARE * (whole + facts.between) > 0 and all(
        one.kind != "client" for one in worth
    ):
        longer = replace(facts, seconds=facts.seconds + facts.between)
        worth = [*worth[: _MOST - 1], _said(longer, "client", "", "", _BETWEEN, facts.between)]
    if facts.failed:
        exceptions = _listed(facts.exceptions)
        worth.insert(0, _said(facts, "failed", "", counted(facts.failed, "task"), exceptions))
    return [*(worth or [_healthy(facts)])[:_MOST], *_notices(facts)]


def ranked(
    found: Sequence[Diagnosis], saved: Mapping[tuple[str, str], tuple[str, float]], whole: float
) -> list[Diagnosis]:
    """Return diagnoses in the order of what their cures save, as far as replays have measured it.

    Those whose cures save less than the smallest share of the run go behind the others. What went
    wrong stays first, and notices stay last.

    Parameters
    ----------
    found
        The diagnoses with their estimates.
    saved
        By kind and span: the change, and the seconds that it saved in a replay.
    whole
        The seconds of the run.
    """
    known = [_measured(one, *saved.get((one.kind, one.span), ("", 0.0))) for one in found]
    movable = [one for one in known if one.experiment and one.kind not in _INCIDENTS]
    # An estimate keeps its place, unless the one before it turned out to save little.
    order = iter(sorted(movable, key=lambda one: _place(one.seconds)))
    known = [next(order) if one in movable else one for one in known]
    vain = [one for one in movable if one.seconds < _SHARE * whole]
    # Nor does it go before a larger saving.
    last, worth = inf, list[float]()
    for one in known:
        if one.kind not in _INCIDENTS:
            last = one.seconds if one in movable else min(last, one.seconds)
        worth.append(_place(last))
    pairs = sorted(
        zip(known, worth, strict=True),
        key=lambda pair: (pair[0].kind in _NOTICES, pair[0] in vain, pair[1]),
    )
    return [one for one, _ in pairs]


def _place(saved: float) -> float:
    """Return a saving as a key to sort by: those that are shown as equal are."""
    return -float(f"{saved:.3g}")


def _measured(one: Diagnosis, experiment: str, saved: float) -> Diagnosis:
    if not experiment:
        return one
    # The estimate is not the title's any more.
    said = "can save" in KINDS[one.kind].title
    title = one.title.rpartition(": ")[0] if said else one.title
    return replace(one, title=title, seconds=max(0.0, saved), experiment=experiment)


def _merged(facts: Facts, same: list[_Claim]) -> Diagnosis:
    """Return the claims of one kind as one diagnosis, of the span that they are all in."""
    if same[0].kind == "held":
        # Not of those that held the threads, which the whole run includes.
        waits = summed({one.root: one.seconds} for one in same)
        longest = max(waits, key=waits.__getitem__)
        same = [one for one in same if one.root == longest]
    sums = summed({one.name: one.seconds} for one in same)
    name = max(sums, key=sums.__getitem__)
    same.sort(key=lambda one: (one.name != name, -one.seconds))
    if sums[name] >= (1.0 - _SHARE) * sum(sums.values()):
        # The others have a remainder, which would hide the span.
        sums = {name: sums[name]}
        same = [one for one in same if one.name == name]
    total = min(_once(facts, same), facts.seconds + facts.before_first)
    evidence = same[0].evidence
    large = [one for one in same if one.seconds >= _SHARE * same[0].seconds]
    what = _listed(what for one in large for what in one.what)
    if len(sums) > 1:
        where = f"in {name}" if name else "before the first span"
        evidence = f"{seconds(min(sums[name], total))} of it passed {where}. {evidence}".rstrip()
        levels = zip(*map(span_tags, sums), strict=False)
        same_tags = takewhile(lambda tags: len({*tags}) == 1, levels)
        name = full_name(tags[0] for tags in same_tags)
    prefixes = tuple(dict.fromkeys(prefix for one in same for prefix in one.prefixes))
    return replace(_said(facts, same[0].kind, name, what, evidence, total), prefixes=prefixes)


def _once(facts: Facts, same: Sequence[_Claim]) -> float:
    """Return the seconds of claims; those of spans that wait at the same time count once."""
    spans = {span.name: span.times for span in facts.spans}
    total, apart = 0.0, dict[str, float]()
    left = {one.root: one.most for one in same}
    for root, divided in {(one.root, one.divided): None for one in same}:
        own = [one for one in same if (one.root, one.divided) == (root, divided)]
        took = min(left[root], _together(summed({one.name: one.seconds} for one in own), spans))
        left[root] -= took
        total += took * divided
        apart[root] = max(apart.get(root, 0.0), took * (not divided))
    roots = {root: joined(facts.roots.get(root, NOWHERE).times) for root in apart}
    return total + _together(apart, roots)


def _together(claimed: Mapping[str, float], times: Mapping[str, Times]) -> float:
    """Return claimed seconds, of which those in the same times count once: by their share."""
    known = {name: times.get(name, ()) for name in claimed}
    alone = (took * _share(known[name]) for name, took in claimed.items())
    return max(sum(claimed.values()) * _share([*chain(*known.values())]), *alone, 0.0)


def _share(times: Times) -> float:
    """Return the share that is left of times if those that overlap count once."""
    return covered(times) / (sum(end - start for start, end in times) or inf) or 1.0


def _said(
    facts: Facts, kind: str, name: str = "", what: str = "", evidence: str = "", took: float = 0.0
) -> Diagnosis:
    """Return a diagnosis in words."""
    known = (one.seconds for one in facts.spans if one.name == name)
    longest = facts.seconds + facts.before_first
    # Spans of one name can be open at the same time.
    whole = max(min(next(known, longest), longest), took)
    words = {
        "span": _NAMES.get(name, name),
        "what": what,
        "took": seconds(took) if whole == took else f"{seconds(took)} of {seconds(whole)}",
    }
    title, next_step = (text.format_map(words) for text in KINDS[kind])
    return Diagnosis(kind, name, took, title, evidence, next_step)


def _healthy(facts: Facts) -> Diagnosis:
    if not any(any(span.parts.values()) for span in facts.spans):
        return _said(facts, "short", "", _NO_PATH, _WHY_NO_PATH)
    roots = facts.roots.values()
    computing = sum(_spent(root.activities, "-cpu") for root in roots)
    unknown = sum(root.unreported for root in roots)
    paid = sum(root.busy + (root.idle or 0.0) for root in roots) + unknown
    known = computing and paid and unknown <= _SHARE * paid
    waited = sum(_spent(root.activities, "-noncpu") for root in roots)
    cancelled = int(sum(root.cancelled for root in roots))
    # They may have waited to the end.
    said = [f"{counted(cancelled, 'task')} cancelled"] if cancelled else []
    if waited > paid / 2 > 0:
        # It can wait for the task that computed, or beside it: nobody knows what a cure saves.
        functions = _listed(name for span in facts.spans for name in _waiting(span.work))
        found = _said(facts, "off_cpu", "", functions, _NO_TASK_BEHIND)
        return replace(
            found, title=", ".join([_HELD_THREADS.format(functions, waited / paid), *said])
        )
    if known:
        said.insert(0, f"computing {computing / paid:.0%}")
    return _said(facts, "healthy", what=f": {', '.join(said)}" if said else "")


def _notices(facts: Facts) -> list[Diagnosis]:
    name, asked = next(iter(facts.merged), ("", ""))
    known = any(span.name == asked for span in facts.spans)
    was, it = ("span is", "It is") if len(facts.open) == 1 else ("spans are", "They are")
    sizing, why = _sizing(facts)
    said: tuple[tuple[object, str, str, str, str], ...] = (
        (sizing, "sizing", "", sizing, why),
        (facts.open, "open", "", f"{len(facts.open):,} {was}", f"{it} {_listed(facts.open)}."),
        (facts.gaps, "gaps", "", ", ".join(facts.gaps), ""),
        (asked, "merged", name, asked, "" if known else f"{asked} has no span of its own."),
    )
    return [_said(facts, kind, span, what, why) for true, kind, span, what, why in said if true]


def _sizing(facts: Facts) -> tuple[str, str]:
    """Return that workers were too large, or hardly large enough, and the evidence; or neither."""
    known = [(root.fullest, name) for name, root in facts.roots.items() if root.fullest]
    if not known or facts.pauses or facts.terminated or facts.deaths:
        return "", ""
    (share, worker, beats, _, spans, after), root = max(known, key=lambda one: one[0].share)
    # Of different workers, the one that used most bytes can be another one.
    limit = max(facts.limits) if len(facts.limits) == 1 else 0.0
    evidence = f"That was worker {worker}, in {_listed(spans or [root])}"
    if after is not None:
        evidence += f", {seconds(after)} after {root} began"
    evidence += f": the most at {counted(beats, 'heartbeat')}."
    used = f"{size(share * limit, limit)} ({share:.0%})" if limit else f"{share:.0%} of its memory"
    if share > _FULL:
        return f"A worker used {used}: it was about to be restarted", evidence
    # Roots can have the same ones.
    beats = max(one.heartbeats for one, _ in known)
    least, found = share / _SPILLS, list[tuple[str, str, str]]()
    if least <= _LESS:
        found.append((used, size(least * limit) if limit else f"{least:.0%} of it", evidence))
    most = int(max(one.tasks or facts.threads for one, _ in known))
    waits = (own.parts[one] for own in facts.roots.values() for one in ("no_thread", "uneven"))
    # None of them had work for all of its threads, and all have as many.
    if most < facts.threads == facts.fewest and sum(waits) < _WAITED * facts.seconds:
        ran = f"None ran more than {counted(most, 'task')} at any of {beats:,} heartbeats."
        found.append((f"{most} of {facts.threads:.0f} threads", counted(most, "thread"), ran))
    # What is on disk is missing in that, and a smaller worker would spill more.
    spilled = any(one.activities.get("disk-write") for one in facts.roots.values())
    unknown = spilled or 0.0 in facts.limits
    if not found or unknown or beats < _BEATS * max(1, facts.workers):
        return "", ""
    used, enough = (" and ".join(one[place] for one in found) for place in (0, 1))
    end = ", without spilling" * (least <= _LESS)
    return (
        f"No worker used more than {used}: {enough} would have done{end}",
        " ".join(one[2] for one in found),
    )


def _listed(names: Iterable[str]) -> str:
    """Return names in words, each once."""
    return listed(dict.fromkeys(filter(None, names)))


def _spent(activities: Mapping[str, float], *ends: str) -> float:
    return sum(took for name, took in activities.items() if name.endswith(ends))


def _waiting(works: Mapping[str, Mapping[str, float]]) -> Sequence[str]:
    """Return the functions that used no CPU for longest, and those with half as much or more."""
    waits = {prefix: _spent(spent, "-noncpu") for prefix, spent in works.items() if prefix}
    most = max(waits.values(), default=0.0)
    return [one for one, took in waits.items() if took >= most / 2] or ["unknown functions"]


def _is_long(link: Link) -> bool:
    return link.others is not None and link.parts.get("compute", 0.0) >= _LONG * link.others


def _late(blocked: float, whole: float) -> float:
    """Return by how much a tick of an event loop is late that was blocked for so long."""
    return _TICK * max(0.0, blocked) / max(whole - blocked, 0.001)


class _Case:
    """The seconds of one span's path, and the causes that claim them one after the other."""

    def __init__(self, facts: Facts, span: SpanFacts) -> None:
        self.facts, self.span, self.claims = facts, span, list[_Claim]()
        self.root = root = facts.roots.get(span.root, NOWHERE)
        self.left, self.spare = dict(span.parts), root.spare
        # A mean, which misses a constant number by a rounding error.
        self.threads = max(1.0, facts.fewest, round(root.present, 6))
        self.on = f"on {self.threads:.3g} {noun(self.threads, 'thread')}"
        #: The share of the root's time on the path of this span.
        self.share = sum(span.parts.values()) / (root.seconds or 1.0)
        # Its results can also have been on a worker that had tasks of other roots.
        self.deaths = [
            one
            for one in facts.deaths
            if not one.roots or root.name in one.roots or "recomputed" in root.retries
        ]
        # While no thread was free, all threads computed for this root or for others, or had tasks
        # that had not begun.
        blocked, self.scheduler = (root.blocked.get(one, 0.0) for one in ("worker", "scheduler"))
        # All loops are a little late. It adds up over the workers.
        self.blocked = max(0.0, blocked - _LATE * self.scheduler * facts.workers)
        # Imports block a worker's loop before tasks begin.
        self.begun = root.seconds - span.queue
        self.mean = blocked / max(1, facts.workers)
        self.each = self.mean - span.queue
        self.late = _late(self.each, self.begun) - _LATE * _late(self.scheduler, self.begun)
        beside = sum(root.activities.get(name, 0.0) for name in _BESIDE)
        # Of workers' loops, samples are known. A thread gets no other task before its loop has
        # noticed the end of one.
        is_much = beside > _OVERHEAD * root.tasks
        self.noticed = beside / max(1.0, facts.threads) if is_much else 0.0
        self.blocked = max(self.blocked, self.noticed)
        blocked = max(blocked, self.blocked)
        self.loops = f"Event loops of workers were blocked for {seconds(blocked)}."
        self.loop = "worker_loop", self.loops
        # Workers write and read what they spill on their loops.
        disks = sum(root.activities.get(name, 0.0) for name in _DISKS)
        if disks >= self.blocked / 2 > 0:
            said = f"{self.loops} They wrote and read spilled data for {seconds(disks)}."
            self.loop = "spill", said
        self.starved = f"The scheduler waited {seconds(root.starved)} for each second on a CPU."
        if self.late <= 0.0 and root.starved >= 1.0 and root.starving >= self.scheduler / 2:
            # All of the machine's loops are late, and the scheduler's by its waits for a CPU.
            self.loop, self.blocked = ("cpus", self.starved), blocked
        # A root has ended with its last task, also if the news of that comes late to another one.
        others = sum(one.seconds for one in facts.roots.values()) - root.seconds
        late = max(0.0, span.parts["other_span"] - others)
        self.left["report"] += late if span.name == root.name else 0.0
        self.p2p = [link for link in span.links if self._is_p2p(link.prefix)]
        taken, used = self.left["no_thread"], root.busy + root.elsewhere
        if len(facts.roots) > 1 and root.idle is not None:
            # Tasks of others that have not ended hold threads, too.
            used = max(used, root.threads * root.seconds - root.idle - root.unreported)
        unbegun = taken * min(1.0, root.unbegun / (self.threads * root.parts["no_thread"] or inf))
        # Before its first task begins, no thread computes, but for others.
        at_first = span.queue - sum(span.parts[part] for part in _BEFORE_FIRST)
        others = min(at_first, root.elsewhere / self.threads) * (span.name == root.name)
        at_first -= root.elsewhere / self.threads
        # Nor for other spans of its root.
        at_first = min(at_first, inf if root.idle is None else root.resting / self.threads)
        self.left["unbegun"] = unbegun = max(unbegun, min(taken, at_first))
        # If none of its tasks has ended, it had a thread if one is on its path.
        its = root.busy / used if used else float(root.parts["compute"] > 0.0)
        self.left["own"] = own = (taken - unbegun) * its
        self.left["held"] = max(taken - unbegun - own, min(taken - unbegun, others))
        if root.cancelled and not any("compute" in link.parts for link in span.links):
            # It waited for a thread to the end, or ran in vain, and was not missed.
            self.left["own"] = 0.0
            if root.activities.get("cancelled", 0.0) > self.left["starting"]:
                # No heartbeat says that a run had begun which was cancelled before it.
                self.left["starting"] = 0.0
        self.waited = self.left["own"]
        computed, tasks = _spent(root.activities, "cpu"), max(1, root.tasks)
        self.work = computed / (facts.workers * facts.threads or inf)
        # What a task costs beside its computing.
        overhead = max(0.0, root.seconds - computed / self.threads) / tasks
        self.many = f"{counted(tasks, 'task')} of {seconds(computed / tasks)}"
        short = overhead < self._beside(tasks) and tasks > self.threads
        # A span of few tasks has other stalls, although those of its root are tiny.
        stalls = sum(self.left[part] for part in _STALLS)
        few = stalls >= span.tasks * self._beside(span.tasks)
        self.tiny = short and computed < _LONG * min(overhead, _OVERHEAD) * tasks and not few
        self.waits, self.why = self._off_cpu()
        loop = self.loop[0] if self.blocked * facts.threads >= beside / 2 > 0 else ""
        of_beside = "tiny" if self.tiny else "gil" if self.waits == "gil" else loop
        # Causes of a thread's time without computing, by the ends of its activities' names.
        self.spent = {"-noncpu": self.waits, "deserialize": "starting"}
        self.spent |= dict.fromkeys(_BESIDE, of_beside)
        self.spent |= dict.fromkeys((*_DISKS, "compress"), "spill")
        # Thread-seconds that the cure of a kind gives back.
        self.vain = self._causes({"": root.activities}) | dict.fromkeys(_BEYOND, inf)
        self.vain["repeated"] = _spent(root.activities, "failed") or inf
        # A blocked scheduler does not hear the client.
        self.vain["scheduler"] = self.vain["graph"] = self.threads * root.parts["client"]
        self.functions = _waiting(span.work)
        # By prefix, on the path.
        self.computed = summed({one.prefix: one.parts.get("compute", 0.0)} for one in span.links)
        known = sum(self.computed.values())
        self.more = max(1.0, span.parts["compute"] / known) if known else 1.0
        # In this order: each claims seconds that those before it have left.
        for claim in (
            self.went_wrong,
            self.shuffled,
            self.seceded,
            self.had_slow_workers,
            self.was_placed,
            self.moved,
            self.stalled,
            self.worked,
        ):
            claim()

    def _say(
        self,
        kind: str,
        took: float,
        what: str | Sequence[str] = "",
        evidence: str = "",
        *prefixes: str,
        divided: bool = False,
    ) -> None:
        if kind in _OF_MEMORY and self.root.holder and self.root.memory:
            prefix, held = self.root.holder
            part = f"{prefix} {size(held)} ({held / self.root.memory:.0%})"
            memory = size(self.root.memory)
            evidence = f"{evidence} Results took {memory} of memory at most, of that {part}."
        said = [what] if isinstance(what, str) else what, evidence.strip(), prefixes
        # No more than the evidence says: else, the news of an end only took long. No task is
        # shorter, but can wait for others that have no thread. The rest of the work takes as long
        # on threads that are never idle.
        root, vain = self.root, self.vain.get(kind, 0.0)
        # Nor does all of it need less than all threads that there were.
        work = self.work * (kind != "threads")
        rest = (root.seconds or inf) - max(root.longest, work) * (not root.parts["inner"])
        known = self.blocked if kind == "worker_loop" else rest if kind in _BESIDE_TASKS else inf
        most = min(known, root.spare + (root.unbegun + vain) / self.threads)
        self.claims.append(_Claim(kind, self.span.name, took, *said, self.span.root, divided, most))

    def _is_p2p(self, prefix: str) -> bool:
        """Return whether tasks are of a peer-to-peer shuffle, also those fused with others."""
        spent = self.span.work.get(prefix, ())
        return prefix.startswith(_P2P) or any(name.startswith("p2p-") for name in spent)

    def _beside(self, tasks: float) -> float:
        """Return the seconds of Dask's own work for one of so many tasks, at most."""
        # Without a CPU that takes longer.
        return _OVERHEAD * (1.0 + self.root.starved * (tasks > _MANY * self.threads))

    def _take(self, most: float, *parts: str) -> float:
        """Take seconds of parts, which nobody else can claim then; return how many."""
        taken = 0.0
        for part in parts:
            own = min(self.left[part], max(0.0, most - taken))
            self.left[part] -= own
            taken += own
        return taken

    def _evidence(self, part: str) -> str:
        """Return which function has most of a part, if one has."""
        waits: dict[str, list[float]] = {}
        for link in self.span.links:
            waits.setdefault(link.prefix, []).append(link.parts.get(part, 0.0))
        for prefix, took in waits.items():
            if sum(took) > self.span.parts.get(part, inf) / 2:
                return f"Most of that concerns {counted(sum(map(bool, took)), 'task')} of {prefix}."
        return ""

    # ------------------------------------------------------------------------ what went wrong

    def went_wrong(self) -> None:
        """Claim what runs cost that were repeated, and paused workers."""
        facts, root = self.facts, self.root
        lost = sum(root.retries.get(why, 0.0) for why in ("worker_lost", "recomputed"))
        again = self._take(inf, "repeated")
        restarted = all(one.restarted for one in self.deaths)
        # Dask forgets the tasks of a client that restarts the cluster, and repeats none of them.
        cut = root.unreported if restarted and root.cancelled else 0.0
        if self.deaths and (lost or cut or (root.missing and not restarted)):
            # Without them, the rest of the work takes as long on all threads that there were.
            threads = max(1.0, root.threads + root.missing / (root.seconds or 1.0))
            runs = root.tasks + root.retries.get("recomputed", 0.0)
            work = _spent(root.activities, "cpu") / threads * root.tasks / (runs or 1.0)
            most = (root.seconds or inf) - max(root.longest, work) * (not root.parts["inner"])
            # What its tasks waited for on workers that died, and for others. Results that are
            # computed again take all of their time, unless that of the first run is in it, too.
            for link in self.span.links:
                first = link.parts.get("repeated", 0.0) >= link.parts.get("compute", 0.0)
                waits = ("uneven", "no_worker") * ("repeated" in link.parts or link.again)
                anew = ("no_thread", "compute") * (link.again and not first)
                # A run that begins again had a thread before.
                anew += ("no_thread",) * ("repeated" in link.parts and not link.again)
                for part in (*waits, *anew):
                    own = "own" if part == "no_thread" else part
                    again += self._take(min(link.parts.get(part, 0.0), most - again), own)
            # The same work again, and less of it at a time.
            repeated = max(cut, lost * root.busy / (root.tasks + lost or 1.0) * root.shorter)
            cost = repeated / threads * self.share
            again += self._take(min(cost, most) - again, "own", "compute")
            cost += root.missing / threads * self.share
            again += self._take(
                min(self.span.missing, cost - again, most - again), "no_worker", "own"
            )
            # While others are idle, tasks wait behind such runs on one worker: for no longer than
            # its threads have these.
            waited = sum(
                link.parts.get("uneven", 0.0)
                for link in self.span.links
                if link.prefix not in self.span.restrictions
            )
            again += self._take(min(waited, repeated / (facts.fewest or inf)), "uneven")
            what = (
                f"{noun(len(self.deaths), 'worker')} {_listed(one.worker for one in self.deaths)}"
            )
            suspects = _listed(name for one in self.deaths for name in one.suspects)
            events = sorted(self.deaths, key=lambda one: one.worker not in facts.terminated)
            said = [*dict.fromkeys(one.said for one in events if one.said)][:_EVENTS]
            said += [f"Suspected: {suspects}."] * bool(suspects)
            of_memory = any(one.worker in facts.terminated for one in self.deaths)
            kind = "memory" if of_memory else "lost"
            if restarted:
                kind, what = "repeated", f"a client restarted {what}"
            whole = repeated + root.missing + root.unreported
            self.vain[kind] = whole * self.threads / threads or inf
            self._say(kind, again, what, " ".join(said))
        elif root.retries.keys() & {"error", "client"}:
            failed = counted(int(sum(root.retries.values())), "run")
            # They took threads from others, too.
            cost = _spent(root.activities, "failed") / self.threads
            again += self._take(cost * self.share - again, "own")
            why = facts.causes.get(self.span.name) or "they failed"
            shared = min(again, cost * self.share)
            self._say("repeated", shared, why, f"{failed} failed.", divided=True)
            self._say("repeated", again - shared, why, f"{failed} failed.")
        elif not root.retries:
            self._say("shuffle" if self.p2p else "repeated", again, "tasks asked for it")
        what = counted(len(facts.pauses), "worker") + (" was", " were")[len(facts.pauses) > 1]
        # Tasks that did not begin on other workers have another cause.
        others = self._take(
            sum(
                one.parts.get("starting", 0.0)
                for one in self.span.links
                if one.worker and one.worker not in facts.pauses
            ),
            "starting",
        )
        took = self._take(self.span.paused, "no_worker", "uneven", "starting", "unbegun")
        self.left["starting"] += others
        # Or for one of the other workers' threads, or behind the tasks of a paused one.
        fewer = root.paused * len(facts.pauses) / max(1, facts.workers)
        behind = sum(one.behind for one in self.span.links if one.worker in facts.pauses)
        took += self._take(min(self.span.paused, max(fewer, behind)) - took, "own")
        self._say("paused", took, f"{what} paused: {_listed(facts.pauses)}")

    # --------------------------------------------------------------------------- places

    def shuffled(self) -> None:
        """Claim what tasks of peer-to-peer shuffles took on the path."""
        parts = ("compute", "transfer", "starting", "uneven", "report")
        took = [self._take(one.parts.get(part, 0.0), part) for one in self.p2p for part in parts]
        self._say("shuffle", sum(took))

    def seceded(self) -> None:
        """Claim what seceded tasks waited for; those that computed on are as others."""
        for link in self.span.links:
            work = self.span.work.get(link.prefix, {})
            computing = _spent(work, "-cpu") / (_spent(work, "cpu") or 1.0)
            self._take(computing * link.parts.get("inner", 0.0), "inner")
        # On threads that were all taken, their tasks could only have had more threads; on others,
        # more tasks at once.
        root, inner = self.root, self.left["inner"]
        computed = _spent(root.activities, "-cpu")
        if computed - (self.threads - 1.0) * root.seconds >= inner / 2 > 0:
            said = f"Its tasks computed for {seconds(computed)} {self.on}."
            self._say("threads", self._take(inf, "inner") / 2, "", said)
        # Nor more tasks at once, as far as their tasks held threads without using a CPU.
        held = self.threads * root.seconds - (root.idle or 0.0) - root.elsewhere
        waited = (self.left["inner"] - self.spare) * max(0.0, 1.0 - computed / (held or inf))
        self._say(self.waits, self._take(waited, "inner"), self.functions, self.why)

    def had_slow_workers(self) -> None:
        """Claim what tasks took longer on slow workers."""
        known = {(name, slow.prefix) for slow in self.span.slow for name in slow.names}
        for slow in self.span.slow:
            lost = slow.runs * (slow.mean - slow.others)
            each = lost / len(slow.names) / max(1.0, self.facts.threads)
            took = self._take(each, "uneven", "compute", "own")
            # As if all threads had shared the rest of the work evenly, at most.
            took = min(took, self.spare + lost / self.threads)
            # Nor are its other tasks on the path as fast as they would be elsewhere.
            others = (
                link.parts.get("compute", 0.0)
                for link in self.span.links
                if link.worker in slow.names and (link.worker, link.prefix) not in known
            )
            took += self._take(sum(others) * (1.0 - slow.others / slow.mean), "compute")
            known |= {(name, link.prefix) for name in slow.names for link in self.span.links}
            self.spare = max(0.0, self.spare - took)
            said = f"{slow.prefix} took {seconds(slow.mean)} there and {seconds(slow.others)}"
            self._say("slow_worker", took, slow.names, f"{said} elsewhere, on average.")

    def was_placed(self) -> None:
        """Claim waits for workers, and for threads while others were free."""
        left, span, root = self.left, self.span, self.root
        fetched, busy = (
            sum(sum(one.values()) for one in each.values()) for each in (span.before, span.work)
        )
        waited = [
            (link.prefix, link.parts["uneven"]) for link in span.links if "uneven" in link.parts
        ]
        rest = left["uneven"] - sum(took for _, took in waited)
        if rest > _SHARE * left["uneven"]:
            # Tasks that have not ended are no links.
            waited += [(prefix, rest / len(span.unfinished)) for prefix in span.unfinished]
        how = {
            prefix: span.restrictions[prefix] for prefix, _ in waited if prefix in span.restrictions
        }
        own = sum(took for prefix, took in waited if prefix in how)
        share = own / (sum(took for _, took in waited) or 1.0)
        if threads := self.facts.fewest:
            # A worker works while tasks wait behind others on it. Else, these have not begun, for
            # example while its loop is blocked. What threads did while all had tasks is no such
            # work.
            done = root.busy - _spent(root.activities, *_BESIDE) - span.parts["compute"]
            known = fetched + done + root.elsewhere + root.unreported
            outside = max(0.0, known - self.threads * (left["own"] + left["held"]))
            blocked = max(0.0, self.blocked - span.queue * self.facts.workers)
            free = left["uneven"] * (1.0 - share)
            stalled = min(blocked, free * blocked / (outside / threads + blocked or 1.0))
            unbegun = free - min(known / threads, free - stalled)
            # Nor do restricted ones wait only for workers that may run them, if these are blocked.
            unbegun += min(self.blocked, max(0.0, left["uneven"] * share - done / threads))
            left["unbegun"] += self._take(unbegun, "uneven")
        restricted = self._take(self.spare * share, "uneven")
        uneven = self._take(self.spare * (1.0 - share), "uneven")
        # Tasks that wait behind others wait for the data of these, too.
        data = uneven * fetched / (fetched + busy or 1.0)
        left["transfer"] += data
        uneven -= data
        resources = {one: how for one, how in span.restrictions.items() if how == "resources"}
        idle = sum(link.free for link in span.links)
        if resources and (left["unbegun"] or idle):
            # They hold threads, and wait for a resource that others hold; those behind them wait
            # for these threads.
            how |= resources
            waits = sum(
                link.parts["no_thread"] if link.prefix in resources else link.free
                for link in span.links
                if link.free
            )
            restricted += min(idle or inf, self._take(waits if idle else inf, "unbegun", "own"))
        self._say("restricted", restricted, [f"{way}= of {one}" for one, way in how.items()])
        queued = min(uneven, sum(link.queued for link in span.links))
        self._say("queued", queued, "", self._evidence("uneven"))
        self._say("uneven", uneven - queued, "", self._evidence("uneven"))

    # ------------------------------------------------------------------- data and stalls

    def moved(self) -> None:
        """Claim waits for data, also where Dask booked the transfer on another task."""
        before, by, booked = self.span.before, self.root.transfers, 0.0
        # Of each worker, on average.
        fetched = sum(sum(one.values()) for one in before.values()) / max(1, self.facts.workers)
        for link in self.span.links:
            known = max(fetched, sum(before.get(link.prefix, {}).values()))
            if known >= link.parts.get("starting", 0.0):
                booked += self._take(link.parts.get("starting", 0.0), "starting")
        booked += self._take(fetched, "unbegun")
        took = self._take(inf, "transfer") + booked
        disk, network = (
            sum(one.get(action, 0.0) for one in before.values())
            for action in ("disk-read", "transfer")
        )
        pack = ("serialize", "deserialize", "compress", "decompress")
        packing = sum(one for (_, name), one in by.items() if name in pack)
        # A receiver waits while the sender serializes.
        waited = by.get(("transmit", "serialize"), 0.0)
        moving = max(0.0, by.get(("receive", "network"), 0.0) - waited)
        kind, evidence = "transfer", self._evidence("transfer")
        if disk > network:
            kind = "spill"
        elif packing > moving / 2:
            kind = "pickle"
            evidence = (
                f"Workers serialized data for {seconds(packing)}, sent it for {seconds(moving)}."
            )
        elif self.blocked >= took / 2:
            kind, evidence = self.loop
        self._say(kind, took, "", evidence)

    def stalled(self) -> None:
        """Claim why tasks did not begin, or were not known to be ready or done."""
        left = self.left
        before, later = left["scheduler"], left["starting"] + left["unbegun"]
        if self.tiny:
            self._say("tiny", self._take(inf, *_STALLS), self.many)
        elif self.scheduler >= max(self.mean, (before + later + left["report"]) / 2):
            # A graph blocks it before the first task only; large ones block workers, too. Nor does
            # it receive what the client submits meanwhile.
            at_first = self.span.queue >= before / 2 and self.scheduler - before < before / 4
            kind = "graph" if at_first or self.mean > self.scheduler / 3 else "scheduler"
            whole = self._take(inf, *_STALLS)
            said = f"The scheduler's event loop was blocked for {seconds(self.scheduler)}."
            if self.loop[0] == "cpus" and not at_first:
                # Each tick is late by a little, which the client hardly waits for.
                kind, said = self.loop
            else:
                whole += self._take(self.scheduler - whole, "client")
            self._say(kind, whole, "", said)
        elif self.blocked >= (later + left["report"]) / 2 and (
            self.span.queue < later / 2 or self.noticed > later / 2
        ):
            # Imports block the loop of a worker before its first task, and are no such stall.
            kind, said = self.loop
            kind = "gil" if self.waits == "gil" else kind
            self._say(kind, self._take(self.blocked, *_STALLS[1:]), self.functions, said)
        self._say(self.loop[0], self._take(self.blocked, "report"), "", self.loop[1])
        # Samples of loops that were blocked can miss some of it.
        if self.waits == "off_cpu" and left["report"] > self.blocked:
            news = self._take(inf, "report")
            # Messages to workers take as long as those from them.
            late = news + self._take(news, "unbegun", "starting", "own")
            self._say("messages", late, "", _NEWS.format(seconds(news)))
        for part, kind in _ELSE.items():
            evidence = _UNBEGUN if part == "unbegun" else self._evidence(part)
            if kind == "starting" and "worker" in self.root.blocked:
                evidence = f"{evidence} {self.loops}"
            self._say(kind, left[part], "", evidence)

    # ---------------------------------------------------------------------------- work

    def worked(self) -> None:
        """Claim what threads were spent on, and what ran while others were idle."""
        work, links, root, roots = self.span.work, self.span.links, self.root, self.facts.roots
        # Of two roots that hold threads from each other, the one that had fewer waited: else, the
        # same seconds would count twice.
        held, others = self.left["held"], list[str]()
        lost = both = 0.0
        for name, took in root.holders.items():
            its = roots.get(name, NOWHERE)
            back = its.holders.get(root.name, 0.0) * root.seconds / (its.seconds or inf)
            if took >= back:
                others += [name] * (took > root.elsewhere / 4)
                # What each has from the other is no loss of both; among many, that of one counts.
                lost, both = lost + took - back, max(both, back)
        if root.holders:
            whole = sum(root.holders.values())
            held *= (lost + both) * bool(others) / (whole or 1.0)
        said = f"Tasks of others took {seconds(root.elsewhere)} {self.on}."
        if not root.elsewhere:
            said = _NOT_ENDED if root.busy else _NONE_BEGAN
        self._say("held", held, others or "others", said)
        everything = work or {"": root.activities}
        # Tasks of other spans of its root had threads, too.
        beside = self.span.beside if work else {}
        holders = {
            prefix: summed([everything.get(prefix, {}), beside.get(prefix, {})])
            for prefix in {**everything, **beside}
        }
        path = {
            prefix: {
                name: spent * took / sum(work[prefix].values())
                for name, spent in work[prefix].items()
                if spent
            }
            for prefix, took in self.computed.items()
            if took and prefix in work
        }
        own = self._useful("own", holders, _waiting(holders))
        # Those that wait behind tasks of one worker wait for what these wait for.
        self._useful("uneven", everything, self.functions)
        compute = self._useful("compute", path or everything, self.functions)
        waited = sum(one.seconds for one in self.claims if one.kind == self.waits)
        if self.waits in ("off_cpu", "worker_loop") or waited < _SHARE * self.span.seconds:
            # More threads do not help those that wait for the GIL or a CPU. Half of each round of
            # tasks remains: of the wait, and of the last task, which can be longer than the others.
            last = [
                min(
                    link.parts.get("compute", 0.0),
                    link.parts.get("no_thread", 0.0),
                    inf if link.others is None else link.others,
                )
                for link in links
            ]
            whole = self.span.parts["no_thread"] if links else 0.0
            share = min(1.0, sum(last) * self.more / whole) if whole else 1.0
            said = f"Its tasks took {seconds(root.busy)} {self.on}."
            # Else, the threads alone save more.
            what = "once the other causes are gone, " * (1.5 * own < self.waited)
            self._say("threads", own * (1.0 + share) / 2, what, said, divided=True)
        self._alone(min(compute, self.spare))

    def _causes(self, works: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """Return what threads were spent on, by the kind that it is a cause of."""

        def cause(prefix: str, activity: str) -> str:
            ends = (kind for end, kind in self.spent.items() if activity.endswith(end))
            return "shuffle" if self._is_p2p(prefix) else next(ends, "")

        return summed(
            {cause(prefix, activity): spent}
            for prefix, activities in works.items()
            for activity, spent in activities.items()
        )

    def _useful(
        self, part: str, works: Mapping[str, Mapping[str, float]], waiting: Sequence[str]
    ) -> float:
        """Return the seconds of a part for which tasks computed; claim the others."""
        sums = self._causes(works)
        took, whole = self.left[part], sum(sums.values()) or 1.0
        for kind in sums.keys() - {""}:
            said = {self.loop[0]: ("", self.loop[1]), self.waits: (waiting, self.why)}
            what, why = said.get(kind, (self.many, ""))
            self._say(kind, took * sums[kind] / whole, what, why, divided=part == "own")
        return took * (sums.get("", 0.0) / whole if sums else 1.0)

    def _off_cpu(self) -> tuple[str, str]:
        """Return what tasks waited for off the CPU, and the evidence."""
        facts, root = self.facts, self.root
        # Dask does not measure the CPU of coroutines, which run on an event loop and can block it.
        loops = {
            prefix: took
            for prefix, spent in self.span.work.items()
            if (took := _spent(spent, "-noncpu")) and not any(one.endswith("-cpu") for one in spent)
        }
        coroutines, waited = sum(loops.values()), _spent(root.activities, "-noncpu")
        if 0 < max(waited, self.blocked) <= 2 * min(coroutines, self.blocked):
            return "worker_loop", f"{self.loop[1]} Coroutines of {_listed(loops)} ran on these."
        on, off = (_spent(root.activities, end) / (root.busy or 1.0) for end in ("-cpu", "-noncpu"))
        cores = on * facts.threads
        # Tasks that wait for the GIL make their event loop wait for it, too; those that sleep do
        # not. A task alone in its process waits for no other.
        active = root.seconds - root.parts["client"] - root.parts["no_worker"]
        together = root.busy * facts.threads > self.threads * active
        shares = together and off >= on / 2 and _HALF_CORE <= cores <= _ONE_CORE
        # What the scheduler's loop was late for without waiting for a CPU, theirs was not.
        delay = _late(min(self.scheduler, root.starving), self.begun)
        late = _late(self.each, self.begun) - _LATE * delay
        if shares and late >= _SWITCH * (facts.threads - 1) > 0:
            share = self.each / max(self.begun, self.each)
            said = f"Event loops of workers waited for it, too, for {share:.0%} of the time."
            return "gil", f"{said} Tasks used {cores:.1f} cores on {facts.threads:.0f} threads."
        # Its tasks wait for a CPU as the scheduler does.
        if root.starved * on >= off / 2 > 0:
            return "cpus", f"{self.starved} Tasks were on a CPU for {on:.0%} of their time."
        return "off_cpu", f"Tasks used no CPU for {off:.0%} of their time."

    def _alone(self, most: float) -> None:
        """Claim what tasks on the path took while other threads were idle."""
        work, threads = self.span.work, self.threads * self.more
        beside = {
            prefix: max(1.0, _spent(work.get(prefix, {}), "cpu") / (took * self.more or 1.0))
            for prefix, took in self.computed.items()
        }
        # The others followed the client's submissions, not one another: so many tasks ran at once
        # that the client was busy all the time.
        links = [
            link
            for link in self.span.links
            if link.parts.get("client", 0.0) * beside[link.prefix] < link.parts.get("compute", 0.0)
        ]
        runs = Counter(link.group for link in links)
        # No client that is busy all the time makes tasks longer than the others.
        long, few = [*filter(_is_long, self.span.links)], list[Link]()
        for link in links:
            took, own = link.parts.get("compute", 0.0), runs[link.group]
            # On average, fewer of its group ran at a time than there are threads.
            if not _is_long(link) and link.alike < threads * (own if own > 2 else 1):
                # On all threads, its group takes a while, too.
                mean = took if link.others is None else link.others
                least = took + max(0, link.alike - 1) * mean
                few.append(link._replace(others=min(took, least / threads / own)))
        chain = sum(link.parts.get("compute", 0.0) for link in few)
        saved = sum(link.parts.get("compute", 0.0) - (link.others or 0.0) for link in long or few)
        if len(few) > 2 and chain > saved:
            names = [link.prefix for link in few]
            said = f"These are tasks of {_listed(names)}."
            what = "more than " * (self.more > _FOLDED) + counted(len(few), "task")
            self._say("chain", min(most, chain * self.more), what, said, *names)
            return
        known = long or few
        # A slow one looks the same, with too few runs to be known as slow.
        places = {link.worker for link in known}
        where = f" {'All' if known[1:] else 'It'} ran on worker {''.join(places)}."
        where *= self.facts.workers > len(places) == 1
        for prefix in {link.prefix: None for link in known}:
            same = [link for link in known if link.prefix == prefix]
            took = sum(link.parts.get("compute", 0.0) for link in same)
            others = sum(link.others or 0.0 for link in same)
            said = f"Others of {prefix} took {seconds(others / len(same))} on average."
            said = said * bool(long and others) + where
            what = f"{counted(len(same), 'task')} of {prefix} ({seconds(took)})"
            took = (took - others) / (saved or 1.0) * min(most, saved)
            self._say("long_task", took, what, said, prefix)
