"""The servers of the tests: all pins are exact."""

from __future__ import annotations

import re

from tests.backends.servers import PINNED, build_backends


def test_every_pin_is_exact() -> None:
    assert {"jaeger", "collector", "prometheus", "alertmanager"} <= PINNED.keys()
    for name, server in PINNED.items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", server.pin["version"]), name
        assert server.pin["kind"] in build_backends.RECIPES, name
        assert not re.search(r"\blatest\b", str(server.pin)), name
