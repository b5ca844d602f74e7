"""Profiles in a report: whose they are, what the page gets, and which function is named."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dask_otel.core.diagnosis import Diagnosis
from dask_otel.core.profiles.pprof import Profile
from dask_otel.core.profiles.stacks import Frame
from dask_otel.report.document import Report, read_report
from dask_otel.report.page.flames import flame, growth
from dask_otel.report.profiles import with_code
from tests.unit.report_files import EVIL, cluster, counter, metrics, point, span, traces
from tests.unit.test_profile_command import FIT, LOAD, MATCH, PARSE, USUAL, make_profile, write

# One process imports the libraries of pages.
pytestmark = pytest.mark.xdist_group("page")


def of(profile: Profile) -> Profile:
    """Return a profile whose spans are those that `span(number)` makes."""
    for number, one in enumerate(profile.spans, 1):
        ids = span(number)
        one.trace_id, one.span_id = ids["traceId"], ids["spanId"]
    return profile


def report(folder: Path, *profiles: Profile, ran: float = 40.0, tasks: float = 0.0) -> Report:
    root = {"dask_span_root_id": "id-1", "dask_span_result": "success"}
    spans = [span(1, "read", **root), span(2, "read/train", parent=1, **root)]
    for one in spans:
        one["attributes"] += [
            {"key": f"dask.span.activity.time.{name}", "value": {"doubleValue": took}}
            for name, took in (("thread-cpu", ran / 4), ("thread-noncpu", ran / 4), ("other", 9.0))
        ]
    if tasks:
        took = {"dask.task.count": tasks, "dask.task_group.duration.compute": 20.0}
        group = {**took, "dask.task.prefix": "load"}
        spans.append(span(3, "load", parent=1, kind="group", **group))
    labels = {"dask.span.name": "etl/read", "dask.task.prefix": "load"}
    executed = counter(
        "dask.span.execute.time",
        point(8.0, {**labels, "dask.activity": "thread-cpu"}),
        point(12.0, {**labels, "dask.activity": "thread-noncpu"}),
    )
    folder.mkdir(exist_ok=True)
    lines = [traces(*spans), cluster({"idle": 1.0}, capacity=1.0), metrics(executed)]
    (folder / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    for number, one in enumerate(profiles):
        write(folder, one, f"run-{number}")
    return read_report(folder)


def shown(made: Report) -> dict[str, Any]:
    (run,) = made.runs
    found: Any = flame(run)
    data: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(found["packed"])))
    return data


def test_a_profile_belongs_to_the_run_that_has_its_spans(tmp_path: Path) -> None:
    made = report(tmp_path, of(make_profile(*USUAL)), make_profile(*USUAL))
    (run,) = made.runs
    assert [one.spans[0].trace_id for one in run.profiles] == [run.spans[0].trace_id]
    assert flame(replace(run, profiles=[])) is None


def test_files_of_a_run_stand_for_its_profiles(tmp_path: Path) -> None:
    made = report(tmp_path, of(make_profile(*USUAL)), of(make_profile(*USUAL)))
    assert len(made.runs[0].profiles) == 2
    traces_of = tmp_path / "run-0-0001-traces.jsonl"
    (tmp_path / "a.jsonl").rename(traces_of)
    (tmp_path / "run-1-profile.pb.gz").rename(tmp_path / "run-0-1-profile.pb.gz")
    (tmp_path / "run-0-profile.pb.gz").rename(tmp_path / "run-9-profile.pb.gz")
    (run,) = read_report(traces_of, traces_of).runs
    assert len(run.profiles) == 1


def test_the_flame_graph_has_all_time_in_the_order_of_the_tree(tmp_path: Path) -> None:
    made = report(tmp_path, of(make_profile(*USUAL)))
    data = shown(made)
    assert data["whole"] == 26_000_000
    named = [(data["frames"][frame][0], depth, whole) for frame, depth, whole, *_ in data["nodes"]]
    assert named == [
        ("etl/read", 0, 20_000_000),
        ("load", 1, 20_000_000),
        ("load", 2, 20_000_000),
        ("parse", 3, 20_000_000),
        ("match", 4, 6_000_000),
        ("etl/train", 0, 6_000_000),
        ("fit", 1, 6_000_000),
        ("fit", 2, 5_000_000),
        ("fit", 3, 5_000_000),
        ("fit", 4, 5_000_000),
        ("parse", 2, 1_000_000),
    ]
    assert sum(own for _, _, _, own, *_ in data["nodes"]) == data["whole"]
    # The widest line of parse, and what Dask measured of its prefix.
    assert data["nodes"][3][4] == 33
    assert data["cpu"] == {"etl/read": [8.0, 12.0], "etl/read\nload": [8.0, 12.0]}


@pytest.mark.parametrize(
    ("facts", "share"),
    [
        # Two spans, of half of 40 s each; what passes outside of threads does not count.
        ({}, 26 / 40),
        # What the bridge has found counts more than Dask's seconds.
        ({"dask.span.profile.time": 26.0, "dask.span.profile.coverage": 0.65}, 26 / 60),
        ({"dask.task.lost.count": 1}, None),
        ({"dask.span.complete": False}, None),
        ({"dask.span.activity.time.thread-cpu": -8.0}, None),
    ],
)
def test_the_coverage_is_that_of_all_spans_or_absent(
    facts: dict[str, Any], share: float | None, tmp_path: Path
) -> None:
    (run,) = report(tmp_path, of(make_profile(*USUAL))).runs
    run.spans[0].attributes.update(facts)
    found: Any = flame(run)
    assert (found["seconds"], found["coverage"]) == (26.0, share and pytest.approx(share))


def test_what_is_too_narrow_has_no_box_and_the_rest_is_not_stretched(tmp_path: Path) -> None:
    small = [("etl/read", "load", (LOAD, PARSE._replace(line=n)), n, 0.01) for n in range(50)]
    data = shown(report(tmp_path, of(make_profile(*USUAL, *small))))
    assert data["whole"] == 26_500_000
    assert len(data["nodes"]) == 11


def test_a_page_is_small_and_a_redacted_one_has_no_code(tmp_path: Path) -> None:
    pytest.importorskip("bokeh")
    deep = [
        ("etl/read", "load", tuple(LOAD._replace(line=n + d) for d in range(100)), n, 0.1)
        for n in range(1, 80)
    ]
    made = report(tmp_path, of(make_profile(*USUAL, *deep, root="read")))
    compared = made.compared_with(made).html()
    assert compared.count("data-flame=") == 3
    assert len(compared) < 5_000_000
    assert "data-flame=" not in made.redacted().html()
    assert "match" in json.dumps(shown(made))


@pytest.mark.parametrize("kind", ["chain", "long_task", "gil", "off_cpu", "threads", "failed"])
def test_a_diagnosis_names_the_function(kind: str) -> None:
    profiles = [make_profile(*USUAL)]
    one = Diagnosis(kind, "etl/read", 9.0, "It is slow", "It took long.", "Look.", ("load",))
    found = with_code(one, profiles)
    if kind in ("threads", "failed"):
        assert found == one
    else:
        assert found.evidence == (
            "It took long. 70% of their sampled time is in parse (jobs/etl.py:33)."
        )
        assert replace(found, evidence="") == replace(one, evidence="")
        # It concerns all functions of its root, also where it was seen in one span.
        every = with_code(replace(one, prefixes=()), profiles).evidence
        assert every == "It took long. 58% of etl's sampled time is in parse (jobs/etl.py:33)."
    assert with_code(replace(one, prefixes=("none",)), profiles).evidence == "It took long."
    assert with_code(replace(one, span="other"), profiles).evidence == "It took long."


def test_a_functions_share_is_of_all_time_even_of_stacks_without_room() -> None:
    one = Diagnosis("chain", "etl/read", 9.0, "It is slow", "", "Look.", ("load",))
    profile = make_profile(*USUAL)
    read = next(its for its in profile.spans if its.name == "etl/read")
    read.stacks[Frame("load"),] += read.stacks.total()
    said = "35% of their sampled time is in parse (jobs/etl.py:33)."
    assert with_code(one, [profile]).evidence == said


def test_a_function_without_most_of_the_time_is_not_named() -> None:
    one = Diagnosis("gil", "", 9.0, "It is slow", "", "Look.")
    even = [("etl", "fit", (FIT._replace(line=n),), n, 1.0) for n in range(11)]
    assert with_code(one, [make_profile(*even)]).evidence == ""


def test_a_comparison_says_which_code_takes_longer(tmp_path: Path) -> None:
    longer = [(*one[:4], one[4] * 3 if MATCH in one[2] else one[4]) for one in USUAL]
    facts = {"root": "read"}
    # Half as many samples of the second: the coverage, not the code, is another one.
    half = [(*one[:4], one[4] / 2) for one in longer]
    before = report(tmp_path / "a", of(make_profile(*USUAL, **facts)), ran=26.0)
    after = report(tmp_path / "b", of(make_profile(*half, **facts)), ran=38.0)
    compared: Any = after.compared_with(before)
    (one,) = [name for name in compared.comparison.names if name.name == "read"]
    assert one.code[0] == ("in match (re.py) of load", pytest.approx(12.0))
    assert all(change == pytest.approx(0.0, abs=1e-4) for _, change in one.code[1:])
    assert "the code: +12.0 s in match (re.py) of load" in list(one.lines())
    json.dumps(compared.to_dict())
    assert "stacks" not in json.dumps(compared.to_dict())
    # The picture: the run after, as wide as its time, with the time before of each box.
    (sides,) = compared.comparison.code.values()
    data = json.loads(gzip.decompress(base64.b64decode(growth(*sides))))
    seen = {
        (data["frames"][frame][0], depth): (round(now / 1e6, 3), round(before / 1e6, 3))
        for frame, depth, now, _, _, before in data["nodes"]
    }
    assert (data["whole"], data["before"]) == (pytest.approx(38e6), pytest.approx(26e6))
    assert seen["match", 4] == (18.0, 6.0)
    assert (seen["parse", 3], seen["etl/train", 0]) == ((32.0, 20.0), (6.0, 6.0))
    assert seen["etl/read", 0] == (32.0, 20.0)
    hidden = compared.redacted().comparison
    assert (hidden.code, [name.code for name in hidden.names]) == ({}, [[]])
    # A side without profiles is not one whose code took no time.
    without: Any = report(tmp_path / "c").compared_with(before)
    assert [name.code for name in without.comparison.names] == [[]]
    assert not without.comparison.code


@pytest.mark.parametrize("swapped", [False, True])
def test_a_comparison_says_what_the_code_took_for_a_task(tmp_path: Path, swapped: bool) -> None:
    """Twice the work takes more seconds with the same code; code of one run is named, too."""
    double = [(*one[:4], one[4] * 2) for one in USUAL if MATCH not in one[2]]
    sides = [
        report(tmp_path / name, of(make_profile(*stacks, root="read")), ran=ran, tasks=tasks)
        for name, stacks, ran, tasks in (("a", USUAL, 26.0, 100.0), ("b", double, 40.0, 200.0))
    ]
    before, after = reversed(sides) if swapped else sides
    compared: Any = after.compared_with(before)
    (one,) = [name for name in compared.comparison.names if name.name == "read"]
    match = "+6.00 s {} none, then 60 ms" if swapped else "-6.00 s {} 60 ms, then none"
    sign = "-" if swapped else "+"
    assert (
        f"the code: {sign}14.0 s in parse (jobs/etl.py) of load (a task: 140 ms, then 140 ms), "
        f"{match.format('in match (re.py) of load (a task:')}), "
        f"{sign}5.00 s in fit (jobs/etl.py) of fit, {sign}1.00 s in parse (jobs/etl.py) of fit"
    ) in list(one.lines())


def evil() -> Profile:
    frame = LOAD._replace(function=EVIL, file=EVIL)
    return of(make_profile((EVIL, EVIL, (frame, PARSE), 3, 1.0), *USUAL))
