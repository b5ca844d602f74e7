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
    started_by_the_user,
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
    for server in PINNED.values():
        assert re.fullmatch(r"\d+\.\d+\.\d+", server.pin["version"]), server.name
        assert server.pin["kind"] in build_backends.RECIPES, server.name
        assert not re.search(r"\blatest\b", str(server.pin)), server.name


WORKS = 'echo binary > "$GOBIN/example"\n'


def test_builds_once(server: build_backends.Server, fake_go: Path) -> None:
    fake_go.write_text(WORKS)
    assert server.state() == "missing"
    for _ in range(2):
        assert build_backends.build_missing([server], retry_refused=False) == 0
        assert server.state() == "built"
    assert server.binary("example").read_text() == "binary\n"
    assert _calls(fake_go) == 1


@pytest.mark.parametrize(
    ("change", "before"), [({"ldflags": "-X main.version=2"}, "missing"), ({"build": 2}, "built")]
)
def test_a_changed_pin_is_built_again_in_its_place_or_beside_it(
    change: dict[str, object], before: str, server: build_backends.Server, fake_go: Path
) -> None:
    fake_go.write_text(WORKS)
    build_backends.build(server)
    changed = build_backends.Server("example", {**PIN, **change})
    assert changed.state() == "missing"
    build_backends.build(changed)
    assert (changed.state(), server.state()) == ("built", before)


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


def test_a_server_of_the_user_is_where_a_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DASK_OTEL_TEMPO", raising=False)
    with pytest.raises(Missing, match="tempo is never built here: set DASK_OTEL_TEMPO='a b c'"):
        started_by_the_user("tempo", "'a b c'")
    monkeypatch.setenv("DASK_OTEL_TEMPO", "http://api/ http://grpc http://http")
    named = started_by_the_user("tempo", "'a b c'")
    assert (named.url, named.grpc, named.http) == ("http://api", "http://grpc", "http://http")


def test_a_refusal_is_kept_and_not_asked_again(
    server: build_backends.Server, fake_go: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_go.write_text(
        "echo 'go: reading https://registry.invalid/example.info: 403 Forbidden' >&2\n"
        "echo '\tserver response: This version is not available.' >&2\n"
        "exit 1\n"
    )
    for _ in range(2):
        assert build_backends.build_missing([server], retry_refused=False) == 0
    assert _calls(fake_go) == 1
    assert server.state() == "refused"
    assert server.refusal() == "403 Forbidden: This version is not available."
    assert "refused by the registry, left out" in capsys.readouterr().out

    fake_go.write_text(WORKS)
    assert build_backends.build_missing([server], retry_refused=True) == 0
    assert server.state() == "built"


@pytest.mark.parametrize(
    "answer",
    [
        "go: reading https://registry.invalid/example.info: 404 Not Found",
        "dial tcp: i/o timeout",
        "example.go:3:1: syntax error",
    ],
)
def test_any_other_failure_is_a_failure(
    server: build_backends.Server,
    fake_go: Path,
    answer: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake_go.write_text(f"echo '{answer}' >&2; exit 1\n")
    assert build_backends.build_missing([server], retry_refused=False) == 1
    assert server.state() == "missing"
    assert answer in capsys.readouterr().err
    assert not server.folder.exists()


def test_without_go_it_says_what_is_needed(
    server: build_backends.Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build_backends.build_missing([server], retry_refused=False) == 1
    assert "Go 1.26 or newer" in capsys.readouterr().err


NPM = {**PIN, "kind": "npm", "packages": ["@example/one@1.0.0"], "binaries": ["node_modules"]}


def test_packages_of_npm_need_node_and_no_go(
    server: build_backends.Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    server = build_backends.Server("example", NPM)
    assert build_backends.build_missing([server], retry_refused=False) == 0
    assert "left out: npm is not on PATH" in capsys.readouterr().out
    npm = tmp_path / "npm"
    npm.write_text('#!/bin/sh\n: > "${5#--prefix=}/node_modules"\n')
    npm.chmod(0o755)
    assert build_backends.build_missing([server], retry_refused=False) == 0
    assert server.state() == "built"


def test_the_collector_manifest_lists_every_pinned_component(tmp_path: Path) -> None:
    pin = PINNED["collector"].pin
    manifest = json.loads(build_backends.collector_manifest(pin, tmp_path))
    listed = {item["gomod"] for kind in pin["components"] for item in manifest[kind]}
    assert listed == {module for modules in pin["components"].values() for module in modules}
    others = {module for module in listed if not module.endswith(" v" + pin["version"])}
    assert {module.partition(" ")[0].rpartition("/")[2] for module in others} == {
        "otlpjsonfilereceiver"
    }


@pytest.mark.parametrize("own", [True, False])
def test_a_module_is_built_with_its_own_checksums_where_the_pin_says_so(
    own: bool, server: build_backends.Server, fake_go: Path, tmp_path: Path
) -> None:
    module = tmp_path / "module"
    module.mkdir()
    (module / "go.sum").write_text("the module's own\n")
    fake_go.write_text(
        'case "$1" in\n'
        f"list) echo {module};;\n"
        f"get) cat go.sum > {tmp_path}/before_get 2> /dev/null; true;;\n"
        'build) for option in "$@"; do case "$option" in\n'
        '  -o=*) echo binary > "${option#-o=}example";;\n'
        "esac; done;;\n"
        "esac\n"
    )
    pin = {**PIN, "kind": "module", "module": "example.invalid v1.0.0", "commands": ["cmd/example"]}
    build_backends.build(build_backends.Server("example", {**pin, "own_checksums": own}))
    assert server.binary("example").read_text() == "binary\n"
    assert (tmp_path / "before_get").read_text() == ("the module's own\n" if own else "")
