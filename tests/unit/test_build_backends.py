"""The build script: what is pinned, what is rebuilt, and what a registry's no leads to."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.backends.servers import (
    PINNED,
    Missing,
    binary,
    build_backends,
)

PIN = {
    "title": "Example",
    "kind": "install",
    "version": "1.0",
    "package": "example.invalid/cmd/example@v1.0.0",
    "binaries": ["example"],
}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> build_backends.Server:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    build_backends.cache_folder().mkdir(parents=True)
    return build_backends.Server("example", PIN)


@pytest.fixture
def fake_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `go` that does what the returned file says, and counts its calls in ``calls``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "install.sh"
    go = folder / "go"
    go.write_text(f"#!/bin/sh\necho call >> {folder}/calls\n. {script}\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return script


def _calls(fake_go: Path) -> int:
    return (fake_go.parent / "calls").read_text().count("call")


def test_every_pin_is_exact() -> None:
    assert {"jaeger", "collector", "prometheus", "alertmanager"} <= PINNED.keys()
    for name, server in PINNED.items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", server.pin["version"]), name
        assert server.pin["kind"] in build_backends.RECIPES, name
        assert not re.search(r"\blatest\b", str(server.pin)), name


WORKS = 'echo binary > "$GOBIN/example"\n'


@pytest.mark.parametrize(
    ("program", "code", "said", "calls"),
    [
        (WORKS, 0, "", 1),
        # Any other failure than a registry's no is a failure, and is tried again.
        ("echo 'dial tcp: i/o timeout' >&2; exit 1\n", 1, "i/o timeout", 2),
    ],
)
def test_builds_once(
    program: str,
    code: int,
    said: str,
    calls: int,
    server: build_backends.Server,
    fake_go: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake_go.write_text(program)
    states = [server.state()]
    for _ in range(2):
        assert build_backends.build_missing([server], retry_refused=False) == code
        states.append(server.state())
    assert (states, _calls(fake_go)) == (
        ["missing", *["missing" if code else "built"] * 2],
        calls,
    )
    assert said in capsys.readouterr().err
    assert server.folder.exists() == (not code)


@pytest.mark.parametrize(
    ("change", "before"), [({"ldflags": "-X main.version=2"}, "missing"), ({"build": 2}, "built")]
)
def test_a_changed_pin_is_built_again_in_its_place_or_beside_it(
    change: dict[str, object], before: str, server: build_backends.Server, fake_go: Path
) -> None:
    fake_go.write_text(WORKS)
    build_backends.build(server)
    changed = build_backends.Server("example", {**PIN, **change})
    found = [changed.state()]
    build_backends.build(changed)
    assert [*found, changed.state(), server.state()] == ["missing", "built", before]


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
