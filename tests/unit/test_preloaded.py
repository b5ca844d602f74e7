"""What a nanny is told, so that its worker loads the preload, too."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from distributed.preloading import process_preloads

from dask_otel.worker.preloaded import name_for_worker

OURS = "dask_otel.preload"


@pytest.mark.parametrize(
    ("preload", "argv", "names", "given"),
    [
        ([], [], [OURS], [[]]),
        (None, None, [OURS], [[]]),
        ("json", [], ["json", OURS], [[], []]),
        (("json",), [["--a"]], ["json", OURS], [["--a"], []]),
        # One list of arguments is for all of them; ours takes none, and does not look.
        (["json"], ["--a"], ["json", OURS], [["--a"], ["--a"]]),
        ([OURS, "json"], [[], ["--a"]], [OURS, "json"], [[], ["--a"]]),
        (["dask_otel"], [], ["dask_otel"], [[]]),
    ],
)
def test_a_nanny_names_it_once(preload: Any, argv: Any, names: list[str], given: list[Any]) -> None:
    nanny: Any = SimpleNamespace(preload=preload, preload_argv=argv)
    before = copy.deepcopy(preload)
    name_for_worker(nanny, OURS)
    # By Dask's own reading of both, as in the worker's process.
    manager: Any = process_preloads(nanny, nanny.preload, nanny.preload_argv or [])
    found = [(one.name, one.argv) for one in manager._preloads]
    # The configuration's own list stays.
    assert (found, preload) == (list(zip(names, given, strict=True)), before)
