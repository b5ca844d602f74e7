"""Profiles beside the telemetry: read, merged, listed by function, and for speedscope."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import Any, Final

from dask_otel.core.diagnosis import Diagnosis
from dask_otel.core.profiles.pprof import SUFFIX, Profile, SpanStacks, decoded
from dask_otel.core.profiles.stacks import Frame
from dask_otel.core.profiles.tree import Node
from dask_otel.core.traces.values import in_threads
from dask_otel.report import words
from dask_otel.report.seconds import span_activities
from dask_otel.report.telemetry.model import Session, Skipped

#: Kinds of diagnoses that a function explains, and the least share of its time to be named.
_OF_CODE: Final = ("chain", "long_task", "gil", "off_cpu")
_NAMED: Final = 0.1
#: A file of traces, and the beginning of the names of all files of its run.
_TRACES: Final = re.compile(r"(.+-)\d{4,}-traces\.jsonl")
_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"


@dataclass
class Function:
    """A function's own time and that with its callees, in microseconds."""

    frame: Frame
    own: int = 0
    whole: int = 0
    #: Its own time by line.
    lines: dict[int, int] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """Its name, file and widest line, as text."""
        line = max(self.lines, key=self.lines.__getitem__, default=0) or self.frame.line
        file = f" ({self.frame.file}:{line})" if self.frame.file else ""
        return words.one_line(f"{self.frame.function}{file}")


def profiles_of(paths: Iterable[str | Path], skipped: Skipped) -> list[Profile]:
    """Return the profiles of files and folders, by time; broken ones are counted as skipped.

    A file of traces stands for the profiles of its run beside it.
    """
    found, files = [], dict[Path, None]()
    for path in map(Path, paths):
        run = _TRACES.match(path.name)
        if path.name.endswith(SUFFIX):
            files[path] = None
        elif path.is_dir() or run:
            folder, name = (path.parent, escape(run[1])) if run else (path, "")
            files |= dict.fromkeys(sorted(folder.glob(f"{name}*{SUFFIX}")))
    for file in files:
        try:
            found.append(decoded(file.read_bytes()))
        except (OSError, ValueError) as error:
            skipped.add("profile that can't be read", f"{file.name}: {error}")
    return sorted(found, key=lambda one: one.start_ns)


def attach(profiles: Iterable[Profile], sessions: Sequence[Session]) -> None:
    """Give the profiles to the sessions that have their spans."""
    owner = {span.key: session for session in sessions for span in session.spans}
    for profile in profiles:
        keys = ((span.trace_id, span.span_id) for span in profile.spans)
        session = next((owner[key] for key in keys if key in owner), None)
        if session is not None:
            session.profiles.append(profile)


def spans_of(profiles: Iterable[Profile], name: str = "") -> list[SpanStacks]:
    """Return the spans of profiles, or those of that full name and below it."""
    return [
        span
        for profile in profiles
        for span in profile.spans
        if not name or f"{span.name}/".startswith(f"{name}/")
    ]


def seconds_of(spans: Iterable[SpanStacks]) -> float:
    """Return the sampled seconds."""
    return sum(span.tree.total().micros for span in spans) / 1e6


def merged(spans: Iterable[SpanStacks]) -> Node:
    """Return one tree, whose outermost frames are the spans."""
    whole = Node()
    for span in spans:
        for frames, line, cost in span.tree.stacks():
            whole.add((Frame(span.name), *frames), line, *cost)
    return whole


def functions(spans: Iterable[SpanStacks], prefixes: Iterable[str] = ()) -> list[Function]:
    """Return the functions of spans, that with the most time of its own first.

    With `prefixes`, only tasks of these count.
    """
    wanted = {*prefixes}
    found: dict[Frame, Function] = {}
    for span in spans:
        for (prefix, *frames), line, cost in span.tree.stacks():
            if wanted and prefix.function not in wanted:
                continue
            for frame in {*frames}:
                found.setdefault(frame, Function(frame)).whole += cost.micros
            if frames:
                inner = found[frames[-1]]
                inner.own += cost.micros
                inner.lines[line] = inner.lines.get(line, 0) + cost.micros
    return sorted(found.values(), key=lambda one: (-one.own, -one.whole, one.frame))


def changes(
    sides: tuple[Iterable[Session], Iterable[Session]], name: str
) -> list[tuple[str, float]]:
    """Return by how many seconds of a run's threads functions differ, for the roots of a name.

    Samples of each run are scaled to the seconds that its tasks ran in threads, so that no
    difference is one of coverage. Empty if a side has no profile.
    """
    means = []
    for side in sides:
        runs = [
            (profile, session)
            for session in side
            for profile in session.profiles
            if profile.about.get("root") == name
        ]
        sums: dict[str, float] = {}
        for profile, session in runs:
            scale = _scale(profile, session) / len(runs) / 1e6
            for span in profile.spans:
                for (prefix, *frames), _, cost in span.tree.stacks():
                    frame = frames[-1] if frames else prefix
                    file = f" ({frame.file})" if frame.file else ""
                    place = f"in {frame.function}{file} of {prefix.function}"
                    sums[place] = sums.get(place, 0.0) + cost.micros * scale
        means.append(sums)
    before, after = means
    if not (before and after):
        return []
    places = dict.fromkeys([*before, *after])
    found = [(place, after.get(place, 0.0) - before.get(place, 0.0)) for place in places]
    return sorted(found, key=lambda one: -abs(one[1]))


def _scale(profile: Profile, session: Session) -> float:
    keys = {(span.trace_id, span.span_id) for span in profile.spans}
    spans = (span for span in session.of_type("span") if span.key in keys)
    ran = sum(in_threads(span_activities(span)) for span in spans)
    return ran / (seconds_of(profile.spans) or 1.0) if ran else 1.0


def with_code(one: Diagnosis, profiles: Sequence[Profile]) -> Diagnosis:
    """Return a diagnosis of how long code takes, with the function that takes most of it."""
    if one.kind not in _OF_CODE or not profiles:
        return one
    found = functions(spans_of(profiles, one.span), one.prefixes)
    whole = sum(function.own for function in found)
    if not whole or found[0].own < _NAMED * whole:
        return one
    share = f"{found[0].own / whole:.0%} of their sampled time is in {found[0].place}."
    return replace(one, evidence=f"{one.evidence} {share}".lstrip())


def cautions(profiles: Iterable[Profile]) -> Iterator[str]:
    """Yield the gaps in profiles, in sentences."""
    for profile in profiles:
        about, name = profile.about, words.one_line(str(profile.about.get("root", "")))
        if not about.get("complete", True):
            yield f"{name} had not ended when its profile was written: the rest is missing."
        if gone := about.get("cut_off"):
            workers = words.counted(len(gone), "worker")
            yield f"{workers} of {name} ended unexpectedly: their last samples are missing."
        if left_out := about.get("left_out"):
            yield f"Workers left out {words.counted(left_out, 'sample')} of {name}."
        if (folded := about.get("folded_seconds", 0.0)) > 0:
            yield f"{words.seconds(folded)} of {name} had no room: see the nearest frame above."


def speedscope(spans: Iterable[SpanStacks], title: str) -> dict[str, Any]:
    """Return spans in the format of speedscope: all together, then one by one."""
    spans = [*spans]
    frames: dict[Frame, int] = {}

    def profile(name: str, tree: Node) -> dict[str, Any]:
        # In the order of the tree, so that equal frames are beside each other.
        found = sorted(tree.stacks())
        return {
            "type": "sampled",
            "name": name,
            "unit": "microseconds",
            "startValue": 0,
            "endValue": sum(cost.micros for _, _, cost in found),
            "samples": [
                [frames.setdefault(frame, len(frames)) for frame in stack] for stack, _, _ in found
            ],
            "weights": [cost.micros for _, _, cost in found],
        }

    each = [profile(span.name, span.tree) for span in spans]
    profiles = [profile(title, merged(spans)), *each]
    return {
        "$schema": _SCHEMA,
        "shared": {
            "frames": [
                {"name": one.function, **({"file": one.file, "line": one.line} if one.file else {})}
                for one in frames
            ]
        },
        "profiles": profiles,
        "name": title,
        "activeProfileIndex": 0,
        "exporter": "dask-otel",
    }
