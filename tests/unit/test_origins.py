"""Each setting says where it comes from, and none says a secret."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.config
import pytest

from dask_otel.settings.keys import KNOBS
from dask_otel.settings.origins import InForce, settings_in_force, variables_in_force
from dask_otel.settings.reading import read_settings


@pytest.fixture(autouse=True)
def _own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(dask.config, "paths", [str(tmp_path)])
    monkeypatch.delenv("DASK_INTERNAL_INHERIT_CONFIG", raising=False)
    with dask.config.set({"otel": {}}):
        yield


def in_force(overrides: dict[str, Any] | None = None) -> dict[str, InForce]:
    """Return what is in force after Dask has read everything again."""
    dask.config.config["otel"] = dask.config.collect([str(p) for p in dask.config.paths]).get(
        "otel", {}
    )
    return {one.key: one for one in settings_in_force(read_settings(overrides), overrides)}


def test_every_key_is_told_and_what_nobody_set_is_the_default() -> None:
    found = in_force()
    assert found.keys() == set(KNOBS) - {"otel.environment"}
    shown = [found[f"otel.{key}"].value for key in ("spans.linger", "enabled", "cluster-name")]
    assert (shown, {one.origin for one in found.values()}) == (["2", "true", "null"], {"default"})


def test_each_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("otel:\n  cluster_name: nightly\n  spans: {linger: 3s, trace_gap: 2h}\n")
    monkeypatch.setenv("DASK_OTEL__SPANS__LINGER", "4s")
    overrides = {"metrics": {"max_names": 7}, "environment": {"OTEL_BSP_SCHEDULE_DELAY": 5}}
    found = in_force(overrides)
    given = {"otel": {"spans": {"detail": "span"}}}
    monkeypatch.setenv("DASK_INTERNAL_INHERIT_CONFIG", dask.config.serialize(given))
    with dask.config.set({"otel.spans.max-groups": 3, "otel.spans.detail": "span"}):
        changed = {one.key: one for one in settings_in_force(read_settings(overrides), overrides)}
    for key, origin in {
        "otel.cluster-name": ("nightly", str(file)),
        "otel.spans.trace-gap": ("7200", str(file)),
        "otel.spans.linger": ("4", "DASK_OTEL__SPANS__LINGER"),
        "otel.metrics.max-names": ("7", "register()"),
        "otel.environment.OTEL_BSP_SCHEDULE_DELAY": ("5", "register()"),
        "otel.spans.max-groups": ("3", "dask.config.set, in Python"),
        "otel.spans.detail": ("span", "the process that started this one"),
    }.items():
        one = (changed if origin[0] in ("3", "span") else found)[key]
        assert one[1:] == origin


def test_broken_sources_are_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.yaml").write_text("otel: [")
    monkeypatch.setenv("DASK_INTERNAL_INHERIT_CONFIG", "no base64")
    monkeypatch.setenv("DASK_OTEL__NO_SUCH_KEY", "1")
    assert settings_in_force(read_settings())[0].origin == "default"


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        *(("SERVICE_NAME", "etl"), ("TRACES_SAMPLER", " ")),
        ("EXPORTER_OTLP_HEADERS", "key=geheim"),
    ):
        monkeypatch.setenv(f"OTEL_{name}", value)
    given = {"OTEL_SERVICE_NAME": "other", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://u:geheim@c:1"}
    expected = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1", "otel.environment"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "key=…", "environment"),
        ("OTEL_SERVICE_NAME", "etl", "environment"),
    ]
    assert variables_in_force(given) == expected
    # Beside an application's provider its environment is not the bridge's.
    won = ("OTEL_SERVICE_NAME", "other", "otel.environment")
    assert variables_in_force(given, win=True) == [*expected[:2], won]


def test_a_variable_that_the_bridge_does_not_obey_is_not_in_force() -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = page.partition("Not supported (")[2].partition("On a client")[0].splitlines()
    # All of those that stand first in a row, by themselves.
    names = " ".join(row.split("|")[1] for row in rows if row.startswith("| `OTEL_"))
    ignored = re.findall("`(OTEL_[A-Z_]+)`", names)
    for name, _, origin in variables_in_force(dict.fromkeys([*ignored, "OTEL_LOGS_EXPORTER"], "x")):
        said = "otel.environment, but the bridge ignores it"
        assert origin == ("otel.environment" if name == "OTEL_LOGS_EXPORTER" else said)
    assert "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION" in ignored
