#!/usr/bin/env python3
"""Build the servers and tools of the backend tests: Collector, Prometheus, Jaeger and others.

Versions are pinned in ``backends.toml`` beside this file. Everything comes from the Go module
proxy through the ordinary ``go`` command, or from npm, and is kept outside the repository, in
``$XDG_CACHE_HOME/dask-otel/backends/<name>-<version>/`` (``~/.cache`` by default). A second run
builds nothing. A server that a registry refuses is left out, openly: the answer is written down
beside the others and is not asked for again until ``--retry-refused``. Packages of npm are left out
where Node.js is missing.

Exit status: 0 when every server is there or was left out, 1 when a build failed, as each does
without the Go toolchain.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest depends on tomli there, so every environment of the tests has it
    import tomli as tomllib

VERSIONS = Path(__file__).with_name("backends.toml")
MINIMUM_GO = "1.26"
#: One that is too old says so itself.
_NO_GO = (
    "The Go toolchain is missing: `go` is not on PATH. The backend servers are built with "
    f"Go {MINIMUM_GO} or newer (https://go.dev/dl/). Every other test runs without it."
)

State = Literal["built", "refused", "missing"]

#: A registry's definite no. A time-out or a broken connection is not one, nor is a 404: that is
#: more likely a wrong pin, which must fail.
_REFUSAL = re.compile(r"\b(403 Forbidden|451 [A-Z][\w ]+)\b")
_URL = re.compile(r"https?://\S+")


class BuildError(Exception):
    """A server could not be built; the text says why, and where the log is."""


class RegistryRefusal(BuildError):
    """A module registry gave a definite no; the text is its answer."""


@dataclass(frozen=True)
class Server:
    """One table of ``backends.toml``."""

    name: str
    pin: Mapping[str, Any]

    @property
    def title(self) -> str:
        return f"{self.pin['title']} {self.pin['version']}"

    @property
    def folder(self) -> Path:
        """Where its binaries are, or would be."""
        parts = (self.name, self.pin["version"], self.pin.get("build"))
        return cache_folder() / "-".join(str(part) for part in parts if part is not None)

    @property
    def refusal_file(self) -> Path:
        return self.folder.with_name(self.folder.name + ".refused.json")

    @property
    def log(self) -> Path:
        return cache_folder() / "logs" / f"{self.name}.log"

    @property
    def digest(self) -> str:
        """Changes with anything in the table, so that an edited pin is built again."""
        text = json.dumps(self.pin, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def binary(self, name: str) -> Path:
        return self.folder / name

    def record(self, path: Path) -> dict[str, Any]:
        """What was written about exactly this pin; empty if nothing was."""
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return found if found.get("digest") == self.digest else {}

    def state(self) -> State:
        there = all(self.binary(name).exists() for name in self.pin["binaries"])
        if there and self.record(self.folder / "built.json"):
            return "built"
        return "refused" if self.refusal() else "missing"

    def refusal(self) -> str | None:
        """The registry's answer, if it refused exactly this pin."""
        return self.record(self.refusal_file).get("answer")


def cache_folder() -> Path:
    """Where built servers are kept; outside of the repository."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dask-otel" / "backends"


def load_servers(path: Path = VERSIONS) -> dict[str, Server]:
    """Every pinned server by name, in the order of the file."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: Server(name, pin) for name, pin in tables.items()}


@dataclass
class Runner:
    """Runs the commands of one build in one folder, with all output in one log."""

    work: Path
    log: Path

    def run(self, command: Sequence[str], **environment: str) -> None:
        """Run `command` to its end.

        Raises
        ------
        RegistryRefusal
            If a module registry answered no.
        BuildError
            If it failed for any other reason; carries the end of its output.
        """
        # Static binaries, which run anywhere and need no C compiler.
        env = os.environ | {"CGO_ENABLED": "0"} | environment
        with self.log.open("a+", encoding="utf-8", errors="replace") as log:
            begin = log.tell()
            done = subprocess.run(
                command, cwd=self.work, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                check=False,
            )  # fmt: skip
            log.seek(begin)
            lines = [line.strip() for line in log]
        if done.returncode:
            raise self._failure(command, lines)

    def _failure(self, command: Sequence[str], lines: list[str]) -> BuildError:
        # A mirror's 404 in a note of `go list` is no failure by itself: the last lines decide.
        for position in range(max(0, len(lines) - 5), len(lines)):
            if found := _REFUSAL.search(lines[position]):
                reason = "".join(lines[position + 1 : position + 2])
                reason = _URL.sub("", reason.removeprefix("server response:")).strip()
                return RegistryRefusal(f"{found[0]}: {reason}" if reason else found[0])
        end = "\n".join("    " + line for line in lines[-20:])
        return BuildError(f"`{' '.join(command[:3])} …` failed.\n{end}\n    whole log: {self.log}")


# --------------------------------------------------------------------------------- recipes


def _ldflags(pin: Mapping[str, Any]) -> str:
    return f"-s -w {pin.get('ldflags', '')}".strip()


def _install(server: Server, runner: Runner, target: Path) -> None:
    flags = ["-v", "-trimpath", f"-ldflags={_ldflags(server.pin)}"]
    runner.run(["go", "install", *flags, server.pin["package"]], GOBIN=str(target))


def _module(server: Server, runner: Runner, target: Path) -> None:
    pin = server.pin
    module, version = pin["module"].split()
    lines = [f"module dask-otel.invalid/{server.name}", "", f"go {MINIMUM_GO}"]
    lines += [f"replace {item}" for item in pin.get("replace", ())]
    lines += [f"exclude {item}" for item in pin.get("exclude", ())]
    (runner.work / "go.mod").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if pin.get("own_checksums"):
        # Sums in the module's go.sum need no question to the checksum database. Go asks it for the
        # module itself, so the chain holds.
        runner.run(["go", "mod", "download", f"{module}@{version}"])
        sums = _module_folder(f"{module}@{version}", runner) / "go.sum"
        shutil.copyfile(sums, runner.work / "go.sum")
    runner.run(["go", "get", f"{module}@{version}"])
    command = ["go", "build", "-v", "-mod=mod", "-trimpath", f"-ldflags={_ldflags(pin)}"]
    if "tags" in pin:
        command.append(f"-tags={pin['tags']}")
    if "placeholder" in pin:
        _add_placeholder(module, pin["placeholder"], runner)
    runner.run([*command, f"-o={target}/", *(f"{module}/{path}" for path in pin["commands"])])


def _module_folder(module: str, runner: Runner) -> Path:
    """Where the module cache has `module` (with or without ``@version``)."""
    answer = subprocess.run(
        ["go", "list", "-m", "-f={{.Dir}}", module],
        cwd=runner.work,
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(answer.stdout.strip())


def _add_placeholder(module: str, missing: str, runner: Runner) -> None:
    """Build from a copy of `module` that has a small page at `missing`.

    (`go build -overlay` would do without the copy, but refuses files of the module cache.)
    """
    copy = runner.work / "copy"
    # Contents without modes: the module cache is read-only.
    shutil.copytree(_module_folder(module, runner), copy, copy_function=shutil.copyfile)
    for folder in [copy, *(path for path in copy.rglob("*") if path.is_dir())]:
        folder.chmod(0o755)
    page = copy / missing
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("<!doctype html><title>API only</title>Built without its web pages.\n")
    runner.run(["go", "mod", "edit", f"-replace={module}=./copy"])


def _collector(server: Server, runner: Runner, target: Path) -> None:
    pin = server.pin
    runner.run(["go", "install", "-trimpath", pin["builder"]], GOBIN=str(runner.work))
    manifest = runner.work / "manifest.yaml"
    dist = {
        "name": pin["binaries"][0],
        "version": pin["version"],
        "description": "OpenTelemetry Collector for dask-otel's tests",
        "output_path": str(target),
    }
    components = {
        kind: [{"gomod": module} for module in modules]
        for kind, modules in pin["components"].items()
    }
    # JSON is YAML too, which spares a YAML library.
    manifest.write_text(json.dumps({"dist": dist, **components}, indent=2), encoding="utf-8")
    # The builder writes its sources beside the binary; only the binary is kept.
    runner.run(
        [str(runner.work / "builder"), f"--config={manifest}", f"--ldflags={_ldflags(pin)}"],
        GOFLAGS=f"{os.environ.get('GOFLAGS', '')} -trimpath -v".strip(),
    )


def _npm(server: Server, runner: Runner, target: Path) -> None:
    options = ["--ignore-scripts", "--no-audit", "--no-fund", f"--prefix={target}"]
    runner.run(["npm", "install", *options, *server.pin["packages"]])


RECIPES: Mapping[str, Callable[[Server, Runner, Path], None]] = {
    "install": _install,
    "module": _module,
    "collector": _collector,
    "npm": _npm,
}

# ----------------------------------------------------------------------------------- build


def build(server: Server) -> None:
    """Build `server` into its folder, completely or not at all.

    Raises
    ------
    RegistryRefusal
        If a registry refused it; also written beside the folder, for `Server.refusal`.
    BuildError
        If the build failed.
    """
    log = server.log
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=f".{server.name}-") as folder:
        work, target, ready = (Path(folder) / name for name in ("work", "target", "ready"))
        for path in (work, target, ready):
            path.mkdir()
        try:
            RECIPES[server.pin["kind"]](server, Runner(work, log), target)
        except RegistryRefusal as refusal:
            _write_record(server, server.refusal_file, answer=str(refusal))
            raise
        for name in server.pin["binaries"]:
            shutil.move(target / name, ready / name)
        _write_record(server, ready / "built.json")
        shutil.rmtree(server.folder, ignore_errors=True)
        ready.rename(server.folder)
    server.refusal_file.unlink(missing_ok=True)


def _write_record(server: Server, path: Path, **found: Any) -> None:
    path.write_text(json.dumps({"digest": server.digest, **found}), encoding="utf-8")


def describe(server: Server) -> str:
    """One line: the server, whether it is there, and why not."""
    state = server.state()
    detail = {
        "built": server.folder,
        "refused": server.refusal(),
        "missing": "run `make backends`",
    }[state]
    return f"{state:8} {server.title:34} {detail}"


def build_missing(servers: Sequence[Server], retry_refused: bool) -> int:
    """Build what is not there; the exit status of the command."""
    outdated = ("missing", "refused") if retry_refused else ("missing",)
    wanted = [server for server in servers if server.state() in outdated]
    failed = False
    for server in wanted:
        print(f"{server.title} … (log: {server.log})", flush=True)
        by_npm = server.pin["kind"] == "npm"
        if by_npm and shutil.which("npm") is None:
            print("  left out: npm is not on PATH (https://nodejs.org)", flush=True)
            continue
        try:
            if not by_npm and shutil.which("go") is None:
                raise BuildError(_NO_GO)
            build(server)
        except RegistryRefusal as refusal:
            print(f"  refused by the registry, left out: {refusal}", flush=True)
        except BuildError as error:
            failed = True
            print(f"  {error}", file=sys.stderr, flush=True)
    print("\n".join(map(describe, servers)))
    return int(failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--retry-refused", action="store_true", help="ask again for what a registry refused"
    )
    given = parser.parse_args()
    import fcntl  # not on Windows, where the rest of this module still serves the tests

    cache_folder().mkdir(parents=True, exist_ok=True)
    # One build at a time: two would compile everything twice.
    with (cache_folder() / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return build_missing([*load_servers().values()], given.retry_refused)


if __name__ == "__main__":
    sys.exit(main())
