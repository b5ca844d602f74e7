"""What travels to the workers: text that any of them can read."""

from __future__ import annotations

import ast
import pickle
import pickletools
import sys
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from distributed.diagnostics.plugin import WorkerPlugin

from dask_otel.scheduler import workers
from dask_otel.scheduler.workers import pickled
from dask_otel.worker.plugin import TaskContextPlugin

PICKLED = pickled({"inject": True})


@pytest.mark.parametrize("settings", [{"inject": True}, {"later": [1]}, {}])
def test_it_is_the_plugin_where_the_package_is(settings: dict[str, Any]):
    """With settings of another version, too, as Dask pickles them; no name stays."""
    before = set(vars(sys.modules[__name__]))
    plugin = pickle.loads(pickled(settings))
    assert type(plugin) is TaskContextPlugin
    assert plugin.inject is pickle.loads(pickle.dumps(plugin)).inject is ("inject" in settings)
    assert set(vars(sys.modules[__name__])) == before


def test_what_travels_names_only_a_builtin_and_holds_no_bytecode():
    """By reference a worker without the package dies; bytecode is another with each Python."""
    found = [(op.name, arg) for op, arg, _ in pickletools.genops(PICKLED)]
    assert [name for name, _ in found if "GLOBAL" in name] == ["STACK_GLOBAL"]
    assert not any(isinstance(arg, CodeType) for _, arg in found)
    # The rest is the text, and plain values.
    assert [arg for _, arg in found if isinstance(arg, str)] == [
        "builtins", "eval",
        "exec(source) or plugin", "source", workers.SOURCE, "settings", "inject",
    ]  # fmt: skip
    # In the syntax of every Python that runs a worker.
    ast.parse(workers.SOURCE, feature_version=(3, 8))


@pytest.mark.parametrize("code", ["", "raise RuntimeError('broken')"])
def test_it_does_nothing_where_the_package_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: str
):
    (tmp_path / "dask_otel").mkdir()
    (tmp_path / "dask_otel" / "__init__.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [one for one in sys.modules if one.partition(".")[0] == "dask_otel"]:
        monkeypatch.delitem(sys.modules, name)
    assert type(pickle.loads(PICKLED)) is WorkerPlugin
    assert ("broken" in caplog.text) == bool(code)
