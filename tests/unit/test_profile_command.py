"""``dask-otel profile``: what it lists, what it says is missing, and its file for speedscope."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema

from dask_otel.cli import main
from dask_otel.core.profiles.pprof import SUFFIX, Profile, SpanStacks, encoded
from dask_otel.core.profiles.stacks import Frame

_FRAME = {"name": {"type": "string"}, "file": {"type": "string"}, "line": {"type": "number"}}
_PROFILE = {
    "type": {"const": "sampled"},
    "name": {"type": "string"},
    "unit": {"enum": ["bytes", "microseconds", "milliseconds", "nanoseconds", "none", "seconds"]},
    "startValue": {"type": "number"},
    "endValue": {"type": "number"},
    "samples": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    "weights": {"type": "array", "items": {"type": "number"}},
}
#: What https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources asks for.
FORMAT = {
    "required": ["$schema", "shared", "profiles"],
    "properties": {
        "$schema": {"const": "https://www.speedscope.app/file-format-schema.json"},
        "shared": {
            "required": ["frames"],
            "properties": {
                "frames": {"items": {"required": ["name"], "properties": _FRAME}, "minItems": 1}
            },
        },
        "profiles": {"items": {"required": [*_PROFILE], "properties": _PROFILE}, "minItems": 1},
    },
}

LOAD = Frame("load", "jobs/etl.py", 3)
PARSE = Frame("parse", "jobs/etl.py", 30)
MATCH = Frame("match", "re.py", 300)
FIT = Frame("fit", "jobs/etl.py", 50)


def make_profile(*stacks: tuple[str, str, tuple[Frame, ...], int, float], **about: Any) -> Profile:
    """Return a profile: of each stack its span, prefix, frames, line and seconds."""
    spans: dict[str, SpanStacks] = {}
    for name, prefix, frames, line, seconds in stacks:
        number = f"{len(spans) + 1:016x}"
        span = spans.setdefault(name, SpanStacks("1" * 32, number, name, name))
        stack = (Frame(prefix), *frames[:-1], frames[-1]._replace(at=line))
        span.stacks[stack] += round(1e6 * seconds)
    facts = {"root": "etl", "complete": True, "interval": 0.02, **about}
    return Profile(facts, 10**18, 60.0, [*spans.values()])


USUAL = (
    ("etl/read", "load", (LOAD, PARSE), 33, 10.0),
    ("etl/read", "load", (LOAD, PARSE), 34, 4.0),
    ("etl/read", "load", (LOAD, PARSE, MATCH), 301, 6.0),
    # Recursion is counted once.
    ("etl/train", "fit", (FIT, FIT, FIT), 55, 5.0),
    ("etl/train", "fit", (PARSE,), 33, 1.0),
)


def write(folder: Path, profile: Profile, name: str = "run-1") -> Path:
    path = folder / f"{name}{SUFFIX}"
    path.write_bytes(encoded(profile))
    return path


def said(capsys: Any, *arguments: object, code: int = 0) -> tuple[str, str]:
    assert main(["profile", *map(str, arguments)]) == code
    found: tuple[str, str] = capsys.readouterr()
    return found


def test_lists_functions_by_their_own_time(tmp_path: Path, capsys: Any) -> None:
    write(tmp_path, make_profile(*USUAL))
    out, err = said(capsys, tmp_path)
    head, _, *rows = out.splitlines()
    assert (head, err) == ("all spans: 26.0 s of threads, sampled", "")
    assert [" ".join(row.split()) for row in rows] == [
        "15.0 s 58% 21.0 s parse (jobs/etl.py:33)",
        "6.00 s 23% 6.00 s match (re.py:301)",
        "5.00 s 19% 5.00 s fit (jobs/etl.py:55)",
        "0 s 0% 20.0 s load (jobs/etl.py:3)",
    ]
    out, _ = said(capsys, tmp_path, "etl/train")
    assert out.startswith("etl/train: 6.00 s of")
    assert "match" not in out
    assert said(capsys, tmp_path, "etl")[0].startswith("etl: 26.0 s of")


def test_says_what_is_missing(tmp_path: Path, capsys: Any) -> None:
    facts = {"complete": False, "cut_off": ["a", "b"], "left_out": 7, "folded_seconds": 1.5}
    write(tmp_path, make_profile(*USUAL, **facts))
    (tmp_path / f"broken{SUFFIX}").write_bytes(b"nothing")
    out, err = said(capsys, tmp_path)
    assert out.splitlines()[-4:] == [
        "etl had not ended when its profile was written: the rest is missing.",
        "The last samples of 2 workers of etl are missing.",
        "No room was left for 7 samples of etl: they are missing.",
        "1.50 s of etl had no room: they are at their task prefix.",
    ]
    assert "profile that can't be read" in err


def test_what_is_not_there_is_an_error_that_says_what_is(tmp_path: Path, capsys: Any) -> None:
    _, err = said(capsys, tmp_path / "gone", code=1)
    assert err == f"dask-otel profile: there is no {tmp_path / 'gone'}\n"
    _, err = said(capsys, tmp_path, code=1)
    needs = "runs have one with otel.profiles.enabled: true"
    assert err == f"dask-otel profile: no profile in {tmp_path}; {needs}\n"
    write(tmp_path, make_profile(*USUAL))
    for name in ("etl/rea", "none"):
        _, err = said(capsys, tmp_path, name, code=1)
        there = f"no profile of {name} in {tmp_path}: it has etl/read, etl/train"
        assert err == f"dask-otel profile: {there}\n"


def test_the_file_for_speedscope_is_valid_and_has_all_time(tmp_path: Path, capsys: Any) -> None:
    path = write(tmp_path, make_profile(*USUAL))
    target = tmp_path / "out.json"
    said(capsys, path, "--speedscope", target)
    made = json.loads(target.read_text())
    jsonschema.validate(made, FORMAT)
    frames = [frame["name"] for frame in made["shared"]["frames"]]
    whole, *each = made["profiles"]
    assert [one["name"] for one in each] == ["etl/read", "etl/train"]
    assert [one["endValue"] for one in (whole, *each)] == [26_000_000, 20_000_000, 6_000_000]
    for one in (whole, *each):
        assert sum(one["weights"]) == one["endValue"]
    found: Counter[tuple[str, ...]] = Counter()
    for stack, weight in zip(whole["samples"], whole["weights"], strict=True):
        found[tuple(frames[number] for number in stack)] += weight
    assert found["etl/read", "load", "load", "parse"] == 14_000_000
