"""What a nanny is told, so that its worker loads the preload, too."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from distributed.preloading import process_preloads

from dask_otel.worker.preloaded import name_for_worker
from tests.environment import python

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


def test_the_package_is_the_preload_and_imports_it_with_its_first_use() -> None:
    code = """
import sys
import dask_otel
assert "distributed" not in sys.modules and "opentelemetry" not in sys.modules
from distributed.preloading import _import_module
module = _import_module("dask_otel")
assert "dask_otel.preload" not in sys.modules
import dask_otel.preload
assert module.dask_setup is dask_otel.preload.dask_setup
assert module.dask_teardown is dask_otel.preload.dask_teardown
assert "opentelemetry.sdk" not in sys.modules
assert "dask_setup" not in dask_otel.__all__
"""
    python(code)
