"""The first diagnosis of a report names the cause that was planted.

`python -m tests.planted --real` shows them all, with those that need real processes. Those whose
cure is tried, too, are in `test_replayed`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from dask_otel.core.diagnosis import Diagnosis
from dask_otel.report.document import read_report
from tests.planted.case import Case
from tests.planted.page import PAGE
from tests.planted.recording import BESIDE, CASES, UNSEEN, judged, record
from tests.planted.test_replayed import CURED

#: Cases whose diagnoses are wrong, and why. Nobody tunes for those of `unseen`.
WRONG = {
    "slow-one-of-eight": "one task on each slow worker is too few to distinguish it from skew",
    "import-and-waiting": "an import of an eighth of the run is not distinguished from its sleep",
}

#: Of those with real processes, the one whose facts are the same on a busy machine.
QUICK = ("slow-reduce",)


def param(case: Case) -> object:
    wrong = case.name in WRONG
    marks = [pytest.mark.xfail(reason=WRONG[case.name], strict=True)] if wrong else []
    return pytest.param(case, id=case.name, marks=marks)


#: Kinds whose cure is a cluster without what delays, slows, pauses or kills something.
CURABLE = {*BESIDE, "slow_worker", "paused", "lost"} - {"uneven"}
#: Cases in which two kinds share the seconds of one cause.
SHARED = ("import-while-others-end", "import-where-the-data-lie-after-much-work")


@pytest.mark.parametrize(
    "case",
    [
        param(case)
        for case in (*CASES.values(), *UNSEEN.values())
        if case.name not in CURED and (not case.real or case.name in QUICK)
    ],
)
@pytest.mark.filterwarnings("ignore:Sending large graph:UserWarning")
def test_the_planted_cause_comes_first(case: Case, tmp_path: Path) -> None:
    """And what its cure can save is what it saves, where the cluster alone is the cause.

    That is an estimate: the next wait may hide behind the cause, and measurements miss some of it.
    """
    _, faults = judged(case, tmp_path / "with")
    assert not faults
    outside = (case.latency or case.events) and case.workers and CURABLE.issuperset(case.kinds)
    if outside and case.name in CASES:
        record(replace(case, latency=None, events={}), tmp_path / "without")
        runs = (tmp_path / "with", tmp_path / "without")
        first, last = (read_report(one, replay=False).accounts()[0] for one in runs)
        saved = first.seconds - last.seconds
        least = 0.6 if case.name in SHARED else 0.85
        assert least * saved <= first.diagnoses[0].seconds <= 1.35 * saved


def test_the_page_has_the_cases_at_hand() -> None:
    """`make planted ARGS=--page` writes it; what it says of each is measured then."""
    text = PAGE.read_text(encoding="utf-8").partition("## In real processes")
    for part, real in ((text[0], False), (text[2], True)):
        rows = re.findall(r"^\| (\S+) \| (`.*?) \| (.*) \| (yes|no|–) \|$", part, re.MULTILINE)
        cases = [case for case in CASES.values() if case.real is real]
        planted = [", ".join(f"`{kind}`" for kind in case.kinds) for case in cases]
        names = [case.name for case in cases]
        assert [row[:2] for row in rows] == [*zip(names, planted, strict=True)]
        for name, kinds, said, right in rows:
            assert right != "yes" or said.partition(":")[0] in kinds.split(", ")
            assert real or right == ("no" if name in WRONG else "yes")


def said(kind: str, title: str = "", then: str = "", seconds: float = 1.0) -> Diagnosis:
    return Diagnosis(kind, "train", seconds, title, "", then)


BOB = Case(
    lambda client, cluster: None, ("held",), also=("spill",), names=("alice",), never=("threads",),
    most=2.0, least=0.5,
)  # fmt: skip
HELD, SPILL = said("held", "bob waited for alice"), said("spill")


@pytest.mark.parametrize("case", [BOB, replace(BOB, most=inf, least=0.0, without=(1.0, 2.5))])
@pytest.mark.parametrize(
    "wrong",
    [
        [HELD],
        [SPILL, HELD],
        [said("held", "bob waited"), SPILL],
        [HELD, SPILL, said("threads")],
        [HELD, SPILL, said("uneven", then="Doubling the threads saves 3 s.")],
        [said("held", "bob waited for alice", seconds=3.0), SPILL],
        [said("held", "bob waited for alice", seconds=0.4), SPILL],
    ],
)
def test_a_case_tells_right_from_wrong(case: Case, wrong: list[Diagnosis]) -> None:
    assert (case.faults([HELD, SPILL], 3.0), bool(case.faults(wrong, 3.0))) == ([], True)
