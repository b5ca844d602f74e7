"""Says why a task or a span is not done yet, and what to do next: `dask_otel.why`.

The facts are from `_dask/present`: plain data with clean text. Times are seconds until now; unknown
ones are None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from dask_otel.core.figures import size
from dask_otel.core.text import listed

Facts: TypeAlias = Mapping[str, Any]

_STACK: Final = "look at its stack: client.call_stack(keys=[key])"
_STUCK: Final = (
    "If nothing changes, it is stuck: restart the worker with client.restart_workers([address]), "
    "and report it to Dask with the file of client.dump_cluster_state()."
)

#: No worker takes a task, of any kind.
_NOBODY: Final = (
    (
        "deserted",
        "no workers",
        "The scheduler has no workers. The task has been ready{during}.",
        "Start workers, or see the logs of those that should run; an adaptive cluster may be "
        "unable to start any.",
    ),
    (
        "fitting",
        "workers not running",
        "The workers that may run it take no tasks: {fitting}. The task has been ready{during}.",
        "A paused worker needs memory: dask_otel.held(client) says what keeps results there. A "
        "silent one hangs: see its log. For one that closes, start another.",
    ),
)

#: By the state of a task (a span, an unknown key): conditions in order, and for the first that is
#: true its stable name, what is to be said, and the next step. A condition is a fact, or one of
#: `_words`; the empty one is always true.
_RULES: Final[Mapping[str, Sequence[tuple[str, str, str, str]]]] = {
    "unknown": (
        (
            "",
            "unknown",
            "The scheduler knows no task with this key, and no span with this id or name: it was "
            "never submitted, is still on its way, or was forgotten because nobody kept its "
            "future.",
            "Compare it with future.key, keep a reference to the future, and ask again.",
        ),
    ),
    "span": (
        (
            "first",
            "unfinished",
            "Tasks not done: {least}{counts}.{bounded} Below are the oldest tasks that are ready "
            "or at work, in this span or in task groups that it depends on.",
            "See {first}.",
        ),
        (
            "counts",
            "unfinished",
            "Tasks not done: {least}{counts}.{bounded} None of them is among the oldest tasks that "
            "are ready or at work.",
            "Ask for one of its tasks: dask_otel.why(client, future).",
        ),
        (
            "",
            "no unfinished task",
            "No task is left to do: {missing}.{bounded}",
            "If you expect more work, it has not been submitted, or is still on its way.",
        ),
    ),
    "waiting": (
        (
            "first",
            "dependencies",
            "It waits for dependencies, {waiting:,} of {dependencies:,}: {waits}. Tasks before it "
            "that are ready or at work: {found:,}. The most urgent is {first}, at depth {depth:,}.",
            "See {first}.",
        ),
        (
            "",
            "dependencies",
            "It waits for dependencies, {waiting:,} of {dependencies:,}: {waits}. All tasks before "
            "it that were visited ({visited:,}) wait, too.",
            "Ask again for one of these dependencies.",
        ),
    ),
    "no-worker": (
        *_NOBODY,
        (
            "resources",
            "restrictions",
            "No worker (of {workers:,}) has met its restrictions{during}: it asks for {asked}.",
            "Start a worker that has these resources (--resources), or submit it with other "
            "resources= and workers=. allow_other_workers= applies to workers= only.",
        ),
        (
            "",
            "restrictions",
            "No worker (of {workers:,}) has met its restrictions{during}: it asks for {asked}.",
            "Start a worker that meets them, or submit it with other workers=, or with "
            "allow_other_workers=True.",
        ),
    ),
    "queued": (
        *_NOBODY,
        (
            "",
            "no free thread",
            "It has been in the scheduler's queue{during}{behind}; tasks in the queue: {queued:,}. "
            "The running workers ({running_workers:,} of {workers:,}, threads: {all_threads:,}) "
            "are busy: {busiest}.",
            "Use more threads, or submit it with a higher priority=.",
        ),
    ),
    # Of a silent worker all that is known is old, and so on.
    "processing": (
        (
            "silent",
            "worker silent",
            "It was sent{ago} to {worker}, whose last heartbeat came {heartbeat:,.1f} s ago.",
            "See that worker's log, and whether its process and its machine are alive; a task that "
            "holds the GIL makes it silent, too. Dask removes it after "
            "distributed.scheduler.worker-ttl, and runs the task elsewhere.",
        ),
        (
            "leaving",
            "worker leaving",
            "It was sent{ago} to {worker}, which is {status}.",
            f"It will run elsewhere once that worker has left. {_STUCK}",
        ),
        (
            "seceded",
            "seceded",
            "It was sent{ago} to {worker}, and has left its thread there (secede): it runs on, or "
            "waits for tasks.",
            f"Ask why these are not done, or {_STACK}.",
        ),
        (
            "executing",
            "executing",
            "It has been executing on {worker} for {began:,.1f} s{usual}.",
            f"Wait; if it takes longer than it should, {_STACK}.",
        ),
        (
            "paused",
            "worker paused",
            "It was sent{ago} to {worker}, which begins no task because its memory is full{used}.",
            "dask_otel.held(client) says what keeps results in memory. Release them, make "
            "partitions smaller, or give workers more memory (distributed.worker.memory.pause).",
        ),
        (
            "remote",
            "fetching",
            "It was sent{ago} to {worker}, which fetches dependencies, {remote:,} of "
            "{dependencies:,}, from {sources}. Its threads ({threads:,}) execute {running}.",
            "Wait for the transfer; if it takes longer than it should, see the logs of these "
            "workers.",
        ),
        (
            "busy",
            "worker busy",
            "It was sent{ago} to {worker}, whose threads ({threads:,}) execute {running}, the "
            "longest for {longest:,.1f} s. Unfinished tasks of that worker: {processing:,}; idle "
            "workers: {idle:,}.",
            "Wait; if others are idle, see whether its restrictions or "
            "distributed.scheduler.work-stealing keep it there.",
        ),
        (
            "unheard",
            "just sent",
            "It was sent{ago} to {worker}, which has not reported since.",
            "Ask again in a few seconds.",
        ),
        (
            "resources",
            "resources in use",
            "It was sent{ago} to {worker}, which has a free thread. It asks for {asked}; other "
            "tasks there may use it.",
            f"Wait for those tasks, or start another worker with these resources. {_STUCK}",
        ),
        (
            "",
            "not begun",
            "It was sent{ago} to {worker}, which has a free thread and its dependencies, and has "
            "not begun it.",
            f"Its function may take long to unpickle or to import. {_STUCK}",
        ),
    ),
    "memory": (
        (
            "",
            "done",
            "It is done; its result is on {holders}.",
            "Nothing: future.result() returns it.",
        ),
    ),
    "released": (
        (
            "wanted",
            "released",
            "It has no result: it is about to run again, or a task that it needs was forgotten.",
            "Ask again in a few seconds; if nothing has changed, submit it again.",
        ),
        (
            "",
            "released",
            "It has no result, and no client wants one: its futures were released or cancelled.",
            "Submit it again, and keep a reference to its future.",
        ),
    ),
    "erred": (
        (
            "blame",
            "dependency failed",
            "It was not run, because {blame} failed: {error}",
            "Correct that task, then call future.retry(), or submit both again.",
        ),
        (
            "",
            "failed",
            "It failed: {error}",
            "future.result() raises it; client.recreate_error_locally(future) runs it here.",
        ),
    ),
}


def reasons(subjects: Sequence[Facts], cluster: Facts) -> list[dict[str, Any]]:
    """Return the reason for a task or a span, and those for tasks that hold it up.

    The fields are those of `dask_otel._wire.Reason`.
    """
    found = []
    first = subjects[1]["name"] if len(subjects) > 1 else ""
    for facts in subjects:
        words = {**cluster, **facts, "first": first}
        words |= _words(words)
        rules = _RULES[facts["state"]]
        kind, what, next_step = next(rule for true, *rule in rules if not true or words[true])
        given = {name: facts.get(name) for name in ("name", "state", "worker", "seconds", "path")}
        given["diagnosis"] = facts.get("diagnosis", ())
        texts = {"what": what.format_map(words), "next_step": next_step.format_map(words)}
        found.append({**given, "kind": kind, **texts})
    return found


def _words(facts: Facts) -> dict[str, str]:
    """Return the parts of sentences that depend on what is known."""
    places = facts.get("places", ())
    return {
        "ago": _given(" {:,.1f} s ago", facts.get("seconds")),
        "during": _given(" for {:,.1f} s", facts.get("seconds")),
        "usual": _given("; tasks of this name take {:,.1f} s on average", facts.get("mean")),
        "behind": _given("; tasks before it: {:,}", facts.get("ahead")),
        "used": _given(": it uses {}", facts.get("memory") and size(*facts["memory"])),
        "counts": listed(
            f"{count:,} {state}" for state, count in facts.get("states", {}).items() if count
        ),
        "bounded": _bounded(facts.get("path"), facts.get("since"), facts.get("diagnosis", ())),
        "waits": listed(
            (
                f"{name} ({state}{_given(' on {}', worker)}{_given(' for {:,.1f} s', seconds)})"
                for name, state, worker, seconds in facts.get("waits", ())
            ),
            facts.get("waiting", 0),
        ),
        "asked": " and ".join(
            [f"a worker at {listed(places)}"] * bool(places)
            + [
                f"{name} = {asked} (the most on a worker: {most})"
                for name, asked, most in facts.get("resources", ())
            ]
        )
        or "a running worker",
        **{name: _counts(facts.get(name, {})) for name in ("running", "busiest")},
        **{name: listed(facts.get(name, ())) for name in ("fitting", "sources", "holders")},
    }


def _bounded(
    path: Mapping[str, float] | None, since: float | None, diagnosis: Sequence[Facts]
) -> str:
    """Return what an open span has waited for so far, the longest first, and why."""
    if path is None or since is None:
        return ""
    parts = sorted(path.items(), key=lambda part: -part[1])
    said = [f"{part.replace('_', ' ')} {took:,.1f} s" for part, took in parts if took >= 0.05]
    spent = ", ".join(said) or "less than 0.1 s"
    why = "".join(f" {one['title']}." for one in diagnosis[:1])
    return f" Its path so far: {spent}; no task of it has ended for {since:,.1f} s.{why}"


def _given(words: str, value: object) -> str:
    """Return words with a value, or nothing if the value is unknown."""
    return "" if value is None else words.format(value)


def _counts(prefixes: Mapping[str, int]) -> str:
    return listed(f"{count:,} of {name}" for name, count in prefixes.items()) or "nothing"
