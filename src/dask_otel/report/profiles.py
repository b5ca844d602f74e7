"""Profiles beside the telemetry: read, merged, listed by function, and for speedscope."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import Any, Final, TypeAlias

from dask_otel import semconv
from dask_otel.core.diagnosis import Diagnosis
from dask_otel.core.profiles.pprof import SUFFIX, Profile, SpanStacks, decoded
from dask_otel.core.profiles.stacks import Frame, Stack
from dask_otel.core.sums import summed
from dask_otel.core.text import full_name, span_tags
from dask_otel.core.traces.values import in_threads
from dask_otel.report import words
from dask_otel.report.seconds import span_activities
from dask_otel.report.telemetry.model import Session, Skipped, Span

#: Kinds of diagnoses that a function explains, and the least share of its time to be named.
_OF_CODE: Final = ("chain", "long_task", "gil", "off_cpu")
_NAMED: Final = 0.1
_LOST: Final = semconv.TASK_OUTCOME_COUNT.format("lost")
#: A file of traces, and the beginning of the names of all files of its run.
_TRACES: Final = re.compile(r"(.+-)\d{4,}-traces\.jsonl")
#: Functions in a list, and columns of a place.
_MOST, _WIDE = 25, 90
_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"
#: Seconds by stack; the outermost frames are the spans.
Seconds: TypeAlias = Mapping[Stack, float]


@dataclass
class Function:
    """A function's own time and that with its callees, in microseconds."""

    frame: Frame
    own: int = 0
    whole: int = 0
    #: Its own time by line.
    lines: Counter[int] = field(default_factory=Counter)

    @property
    def place(self) -> str:
        """Its name, file and widest line, as text."""
        line = max(self.lines, key=self.lines.__getitem__, default=self.frame.line)
        file = f" ({self.frame.file}:{line})" if self.frame.file else ""
        return words.one_line(f"{self.frame.function}{file}")


def profiles_of(paths: Iterable[str | Path], skipped: Skipped) -> list[Profile]:
    """Return the profiles of files and folders, by time; broken ones are counted as skipped.

    A file of traces stands for the profiles of its run beside it.
    """
    found, files = [], dict[Path, None]()
    for path in map(Path, paths):
        run = _TRACES.match(path.name)
        folder, name = (path.parent, escape(run[1])) if run else (path, "")
        is_one = path.name.endswith(SUFFIX)
        own = [path] if is_one else sorted(folder.glob(f"{name}*{SUFFIX}"))
        if not own and not path.exists():
            raise FileNotFoundError(f"there is no {path}")
        files |= dict.fromkeys(own)
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
    return sum(span.stacks.total() for span in spans) / 1e6


def merged(spans: Iterable[SpanStacks]) -> Counter[Stack]:
    """Return the stacks of all spans, whose outermost frames are the spans."""
    whole = Counter[Stack]()
    for span in spans:
        outermost = (Frame(span.name),)
        whole.update({outermost + stack: micros for stack, micros in span.stacks.items()})
    return whole


def functions(spans: Iterable[SpanStacks], prefixes: Iterable[str] = ()) -> list[Function]:
    """Return the functions of spans, that with the most time of its own first.

    With `prefixes`, only tasks of these count.
    """
    wanted = {*prefixes}
    found: dict[Frame, Function] = {}
    for span in spans:
        for (prefix, *frames), micros in span.stacks.items():
            if frames and (not wanted or prefix.function in wanted):
                at, frames[-1] = frames[-1].at, frames[-1]._replace(at=0)
                for frame in {*frames}:
                    found.setdefault(frame, Function(frame)).whole += micros
                found[frames[-1]].own += micros
                found[frames[-1]].lines[at or frames[-1].line] += micros
    return sorted(found.values(), key=lambda one: (-one.own, -one.whole, one.frame))


def mean_run(sessions: Iterable[Session], name: str) -> Seconds:
    """Return the seconds of stacks in a mean run of a name, with neither lines nor their numbers.

    The samples of each run are scaled to the seconds that its tasks ran in threads, so that no
    difference to other runs is one of coverage.
    """
    runs = [
        (profile, session)
        for session in sessions
        for profile in session.profiles
        if profile.about.get("root") == name
    ]
    scaled = [(profile, _scale(profile, session) / len(runs) / 1e6) for profile, session in runs]
    return summed(
        # Lines move where the code has changed.
        {tuple([Frame(frame.function, frame.file) for frame in stack]): micros * scale}
        for profile, scale in scaled
        for stack, micros in merged(profile.spans).items()
    )


def changes(
    before: Seconds, after: Seconds, tasks: Mapping[str, Sequence[float]]
) -> list[tuple[str, float]]:
    """Return by how many seconds functions of two runs differ, the largest change first.

    `tasks` has by prefix the tasks of both runs. Where they are known, the text has the seconds
    for one task, too: more tasks alone do not change these.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for side, stacks in enumerate((before, after)):
        for (_, prefix, *frames), seconds in stacks.items():
            frame = frames[-1] if frames else prefix
            file = f" ({frame.file})" if frame.file else ""
            place = f"in {frame.function}{file} of {prefix.function}"
            found.setdefault((place, prefix.function), [0.0, 0.0])[side] += seconds
    named = [
        (place + _per_task(both, tasks.get(prefix, (0.0, 0.0))), both[1] - both[0])
        for (place, prefix), both in found.items()
    ]
    return sorted(named, key=lambda one: -abs(one[1]))


def _per_task(both: Sequence[float], tasks: Sequence[float]) -> str:
    pairs = [*zip(both, tasks, strict=True)]
    if any(took and not count for took, count in pairs):
        return ""
    first, then = (words.seconds(took / count) if took else "none" for took, count in pairs)
    return f" (a task: {first}, then {then})"


def ran_in_threads(spans: Iterable[Span]) -> float | None:
    """Return the seconds for which tasks of spans ran in threads; None if unknown of one."""
    took = [*map(_ran, spans)]
    return None if None in took else sum(filter(None, took))


def _ran(span: Span) -> float | None:
    sampled, covered = map(span.number, (semconv.SPAN_PROFILE_TIME, semconv.SPAN_PROFILE_COVERAGE))
    if sampled and covered:
        # The bridge knows them, even if workers closed before they reported them to Dask.
        return sampled / covered
    whole = span.attributes.get(semconv.SPAN_COMPLETE, True) and not span.number(_LOST)
    return in_threads(span_activities(span)) if whole else None


def _scale(profile: Profile, session: Session) -> float:
    keys = {(span.trace_id, span.span_id) for span in profile.spans}
    ran = ran_in_threads(span for span in session.of_type("span") if span.key in keys)
    return ran / (seconds_of(profile.spans) or 1.0) if ran else 1.0


def with_code(one: Diagnosis, profiles: Sequence[Profile]) -> Diagnosis:
    """Return a diagnosis of how long code takes, with the function that takes most of it."""
    if one.kind not in _OF_CODE or not profiles:
        return one
    # Other spans of its root have tasks of these functions, too, if none is named.
    name = one.span if one.prefixes else full_name(span_tags(one.span)[:1])
    spans = spans_of(profiles, name)
    found = functions(spans, one.prefixes)
    # Those without room have no function.
    whole = sum(
        micros
        for span in spans
        for (prefix, *_), micros in span.stacks.items()
        if not one.prefixes or prefix.function in one.prefixes
    )
    if not found or not found[0].own or found[0].own < _NAMED * whole:
        return one
    whose = "their" if one.prefixes else f"{name}'s" if name else "all"
    share = f"{found[0].own / whole:.0%} of {whose} sampled time is in {found[0].place}."
    return replace(one, evidence=f"{one.evidence} {share}".lstrip())


def cautions(profiles: Iterable[Profile]) -> Iterator[str]:
    """Yield the gaps in profiles, in sentences."""
    for profile in profiles:
        about, name = profile.about, words.one_line(str(profile.about.get("root", "")))
        gone = words.counted(len(about.get("cut_off", ())), "worker")
        left_out = words.counted(about.get("left_out", 0), "sample")
        folded = words.seconds(about.get("folded_seconds", 0.0))
        gaps = {
            "cut_off": f"The last samples of {gone} of {name} are missing.",
            "left_out": f"No room was left for {left_out} of {name}: they are missing.",
            "folded_seconds": f"{folded} of {name} had no room: they are at their task prefix.",
        }
        if not about.get("complete", True):
            yield f"{name} had not ended when its profile was written: the rest is missing."
        yield from (text for key, text in gaps.items() if about.get(key))


def lines(title: str, spans: Sequence[SpanStacks], is_loop: bool) -> Iterator[str]:
    """Yield the functions as text; of event loops, how busy they were, too."""
    whole = seconds_of(spans)
    loops = (item for span in spans for item in span.stacks.items() if is_loop)
    busy = sum(micros for (prefix, *_), micros in loops if prefix.function == "busy") / 1e6
    more = f", busy for {words.share(busy, whole)} of it" if is_loop else ""
    yield f"{title}: {words.seconds(whole)} of threads, sampled{more}"
    listed = functions(spans)
    head = ["own", "share", "with callees", "function and its widest line"]
    rows = [
        [words.seconds(one.own / 1e6), words.share(one.own / 1e6, whole),
         words.seconds(one.whole / 1e6), words.cut(one.place, _WIDE)]
        for one in listed[:_MOST]
    ]  # fmt: skip
    yield from words.aligned([head, *rows], {*head[:-1]})
    if len(listed) > _MOST:
        yield f"and {len(listed) - _MOST:,} more"


def speedscope(spans: Iterable[SpanStacks], title: str) -> dict[str, Any]:
    """Return spans in the format of speedscope: all together, then one by one."""
    spans = [*spans]
    frames: dict[Frame, int] = {}

    def profile(name: str, stacks: Counter[Stack]) -> dict[str, Any]:
        # Sorted, so that equal frames are beside each other.
        found = sorted(stacks.items())
        return {
            "type": "sampled",
            "name": name,
            "unit": "microseconds",
            "startValue": 0,
            "endValue": stacks.total(),
            "samples": [
                [frames.setdefault(frame._replace(at=0), len(frames)) for frame in stack]
                for stack, _ in found
            ],
            "weights": [micros for _, micros in found],
        }

    profiles = [profile(title, merged(spans)), *[profile(one.name, one.stacks) for one in spans]]
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
