"""The meanings of Dask's activities, and one colour for each, in the report and all dashboards.

``tools/dashboards`` and the text in terminals use these tables, too. Colours are Grafana's names
if it has one; `HEX` has their values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

#: Grafana's palette by name.
HEX: Final = {
    "green": "#73BF69",
    "light-green": "#C8F2C2",
    "blue": "#5794F2",
    "dark-blue": "#1F60C4",
    "purple": "#B877D9",
    "yellow": "#FADE2A",
    "orange": "#FF9830",
    "red": "#F2495C",
    "light-red": "#FF7383",
    "dark-red": "#C4162A",
}

#: The colour for series without a meaning: workers, functions, workflows, values without a limit.
NEUTRAL = "#4E9A9A"


@dataclass(frozen=True)
class Meaning:
    """A colour, the names that have it (regular expressions for RE2 and JavaScript), and words."""

    colour: str
    names: tuple[str, ...]
    about: str = ""


#: Activities of threads. Users' own activities have no meaning here: they are in "other".
MEANINGS = {
    "computing": Meaning("green", ("thread-cpu", "p2p-.*-cpu"), "computing"),
    "off the CPU": Meaning(
        "blue", ("thread-noncpu", "p2p-.*-noncpu"), "waiting: I/O, GIL, GPU, core"
    ),
    "network": Meaning(
        "purple",
        ("network", "send", "serialize", "deserialize", "offload"),
        "network, and packing for it",
    ),
    "spill": Meaning(
        "yellow",
        ("disk-read", "disk-write", "compress", "decompress"),
        "disk, and packing for it",
    ),
    "idle": Meaning("orange", ("idle",), "free threads despite work"),
    "unused": Meaning("#808080", ("unused",), "no work at all"),
    "failed": Meaning("red", ("failed",), "of failed tasks"),
    "cancelled": Meaning("light-red", ("cancelled",), "of cancelled, repeated runs"),
    "lost": Meaning("dark-red", ("lost",), "of workers that left"),
    "other": Meaning("#A08C6E", ("other", "executor"), "overhead, or your own meters"),
    # States of tasks, not times.
    "to do": Meaning(NEUTRAL, ("waiting", "queued", "no-worker")),
    "running": Meaning("#9AD5D5", ("processing", "executing")),
    # Waits of a path, which are no activities of threads.
    "taken": Meaning("dark-blue", ()),
    "absent": Meaning("#8A4B6A", ()),
    "starting": Meaning("#E58FC3", ()),
    "seceded": Meaning("light-green", ()),
}

#: Names in other labels with the same meaning, which no activity has.
ALIKE = {
    "computing": (
        *("Computing", "memory", "succeeded", "memory-read", "managed"),
        *("shard-partition-cpu", "get-output-cpu"),
    ),
    "off the CPU": (
        *("Off the CPU", "shard-partition-noncpu", "get-output-noncpu"),
        "Scheduler",
    ),
    "network": ("Moving data", "p2p-shards", "Transfer", "replica"),
    "spill": ("p2p-disk-read", "spilled", "on disk"),
    "idle": ("Idle", "(idle threads)", "Uneven"),
    "unused": ("Unused", "rescheduled", "client", "Client", "unmanaged_old"),
    "failed": ("Wasted", "erred", "error", "Repeated"),
    "cancelled": ("recomputed",),
    "lost": ("worker_lost",),
    "other": ("Other", "process", "released", "Report", "unmanaged_recent"),
    "to do": ("Other span", "held"),
    "running": ("processes", "scattered"),
    "taken": ("No free thread",),
    "absent": ("No worker", "unaccounted"),
    "starting": ("Starting",),
    "seceded": ("Inner",),
}


@dataclass(frozen=True)
class Part:
    """A part of the paid time. The parts together are all of it, each second once."""

    title: str
    #: Names in the table above; none for the rest.
    meanings: tuple[str, ...]
    advice: str
    #: The alert whose runbook covers it.
    alert: str


PARTS = (
    Part(
        "Computing",
        ("computing",),
        "The useful part. If it is small, the largest other part shows why.",
        "DaskEfficiencyFell",
    ),
    Part(
        "Off the CPU",
        ("off the CPU",),
        "I/O, sleep, GPU or GIL: look at its functions to tell which.",
        "DaskThreadsWait",
    ),
    Part(
        "Moving data",
        ("network", "spill"),
        "Tasks wait for disk, network, serialization: give them more memory.",
        "DaskSpilling",
    ),
    Part(
        "Other",
        (),
        "Overhead, and what your code meters: make fewer and longer tasks.",
        "DaskEfficiencyFell",
    ),
    Part(
        "Idle",
        ("idle",),
        "Too few tasks at a time: smaller partitions or a smaller cluster.",
        "DaskClusterIdle",
    ),
    Part(
        "Unused",
        ("unused",),
        "There was no work: close the cluster earlier, or scale it down.",
        "DaskClusterUnused",
    ),
    Part(
        "Wasted",
        ("failed", "cancelled", "lost"),
        "Failed, cancelled or lost runs: see exceptions and workers' memory.",
        "DaskWorkWasted",
    ),
)


#: The titles of what a span waited for at a moment of its path, by `semconv.PATH_PARTS`.
PATH: Final = {
    "client": "Client",
    "scheduler": "Scheduler",
    "no_worker": "No worker",
    "no_thread": "No free thread",
    "uneven": "Uneven",
    "repeated": "Repeated",
    "transfer": "Transfer",
    "starting": "Starting",
    "compute": "Computing",
    "inner": "Inner",
    "report": "Report",
    "other_span": "Other span",
}

#: The common prefix of the addresses of what the kinds of diagnoses mean.
DIAGNOSES: Final = "https://dask-otel.readthedocs.io/en/stable/diagnoses.html#"

#: The titles of the parts of the paid time, by themselves.
PART_TITLES: Final = {part.title: part.title for part in PARTS}
_OTHER: Final = next(part for part in PARTS if not part.meanings)


def hex_colour(colour: str) -> str:
    """Return a colour of the tables as ``#rrggbb``."""
    return HEX.get(colour, colour)


@cache
def meaning_of(activity: str) -> str:
    """Return the meaning of an activity; ``other`` for users' own."""
    known = ((name, pattern) for name, one in MEANINGS.items() for pattern in one.names)
    return next((name for name, pattern in known if re.fullmatch(pattern, activity)), "other")


@cache
def colour_of(name: str) -> str:
    """Return the colour of an activity, or of another name with its meaning, as ``#rrggbb``."""
    meaning = next((one for one, names in ALIKE.items() if name in names), meaning_of(name))
    return hex_colour(MEANINGS[meaning].colour)


def shares(
    seconds: Mapping[str, float], titles: Mapping[str, str]
) -> list[tuple[str, float, float]]:
    """Return the titles of the parts that took time, with their seconds and shares."""
    whole = sum(seconds.values())
    took = ((title, seconds.get(name, 0.0)) for name, title in titles.items())
    return [(title, part, part / whole) for title, part in took if part > 0]


@cache
def part_of(activity: str) -> Part:
    """Return the part of the time that an activity belongs to."""
    meaning = meaning_of(activity)
    return next((part for part in PARTS if meaning in part.meanings), _OTHER)
