"""The servers of the tests: all pins are exact, and one that is not there passes no test."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.backends.servers import (
    PINNED,
    Missing,
    binary,
    build_backends,
)


def test_every_pin_is_exact() -> None:
    assert {"jaeger", "collector", "prometheus", "alertmanager"} <= PINNED.keys()
    for name, server in PINNED.items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", server.pin["version"]), name
        assert server.pin["kind"] in build_backends.RECIPES, name
        assert not re.search(r"\blatest\b", str(server.pin)), name


@pytest.mark.parametrize(
    ("refused", "required", "outcome", "words"),
    [
        (False, False, Missing, "Prometheus .* is not built: run `make backends`"),
        (False, True, pytest.fail.Exception, "DASK_OTEL_REQUIRE_BACKENDS=1, and Prometheus"),
        (True, True, Missing, r"the registry refused it \(403 Forbidden\)"),
    ],
)
def test_a_server_that_is_not_there_is_left_out_or_fails_where_it_is_required(
    refused: bool,
    required: bool,
    outcome: type[BaseException],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("DASK_OTEL_REQUIRE_BACKENDS", str(int(required)))
    if refused:
        file = PINNED["prometheus"].refusal_file
        file.parent.mkdir(parents=True)
        record = {"digest": PINNED["prometheus"].digest, "answer": "403 Forbidden"}
        file.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(outcome, match=words):
        binary("prometheus")
