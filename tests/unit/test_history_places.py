"""``dask-otel history`` of files elsewhere, and its pages on this machine."""

from __future__ import annotations

import http.client
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from unittest.mock import Mock
from urllib.parse import unquote

import fsspec
import pytest

from dask_otel.cli import history, main
from dask_otel.report.telemetry.reader import Reader
from tests.unit.history_files import listed, one, write
from tests.unit.report_files import EVIL, Page, everything
from tests.waiting import ended

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def memory(folder) -> Iterator[str]:
    """A copy of the folder that only fsspec can open."""
    for number in range(3):
        write(folder, number, one(number))
    system = fsspec.filesystem("memory")
    system.put(str(folder), "/runs", recursive=True)
    yield "memory://runs"
    system.rm("/runs", recursive=True)


@pytest.mark.parametrize("kind", ["memory", "file", "uri"])
def test_files_elsewhere_are_read_once_and_leave_no_copy(
    kind, memory, folder, capsys, cache, monkeypatch, tmp_path
):
    if kind == "uri":
        folder = folder.rename(folder.with_name("all 100% runs"))
    address = {"memory": memory, "file": f"file://{folder}", "uri": folder.as_uri()}[kind]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "copies"))
    (tmp_path / "copies").mkdir()
    before = sorted(folder.iterdir())
    first, said = listed(capsys, address)
    # Nothing is written there: the summaries are in the cache, the copies are gone.
    assert (sorted(folder.iterdir()), len(list(cache.rglob("*-summary.json")))) == (before, 3)
    with monkeypatch.context() as patched:
        patched.setattr(Reader, "read", None)
        assert listed(capsys, address)[0] == first
    (_, one, _), _ = listed(capsys, folder)
    assert (one["parts"], said) == (first[1]["parts"], "")
    # Its command works.
    assert main([*shlex.split(first[1]["command"])[1:], "--text"]) == 0
    assert "etl" in capsys.readouterr().out
    assert (main(["report", address, "--json"]), list((tmp_path / "copies").iterdir())) == (0, [])


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("memory://nowhere", "can't read memory://nowhere: there is nothing"),
        ("nosuch://bucket/runs", "can't read nosuch://bucket/runs: Protocol not known: nosuch"),
    ],
)
def test_an_address_that_fails_is_said(address, said, capsys):
    assert [main(["history", address]), main(["report", address, "--text"])] == [1, 1]
    history, report, *_ = capsys.readouterr().err.splitlines()
    assert f"dask-otel history: {said}" in (history, report)
    assert address in report


def test_whatever_a_file_system_raises_is_said(memory, capsys, monkeypatch):
    refused = Mock(side_effect=RuntimeError("no\ncredentials"))
    monkeypatch.setattr(type(fsspec.filesystem("memory")), "get_file", refused)
    assert (main(["history", memory]), capsys.readouterr().err.count("no credentials")) == (1, 3)


@pytest.fixture
def port(folder, monkeypatch) -> Iterator[int]:
    """The server of the folder, with a run whose every name is hostile."""
    pytest.importorskip("bokeh")
    from dask_otel.cli import serve

    write(folder, 0, *everything(EVIL), one(0, EVIL))
    write(folder, 1, one(1, "two\nlines \ud800"))
    servers: list[serve.Pages] = []
    monkeypatch.setattr(serve, "serve", lambda server: servers.append(server) or 0)
    assert main(["history", str(folder), "--serve"]) == 0
    (server,) = servers
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def get(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_it_serves_the_list_and_reports_on_demand(port, folder):
    before = {path: path.read_bytes() for path in folder.iterdir()}
    status, page = get(port, "/")
    shown = Page(page)
    assert (status, [len(shown.of(tag)) for tag in ("script", "img")]) == (200, [1, 0])
    names = sorted(str(row["data-name"]) for row in shown.of("tr") if row)
    assert names == sorted([EVIL, "two?lines ?"])
    links = [value for value in page.split('"') if value.startswith("/")]
    found = [get(port, path) for path in links]
    assert [
        (status, "Made by dask-otel" in report, "<img src=x" in report) for status, report in found
    ] == [(200, True, False)] * 2
    # Nothing there changes, but for summaries.
    assert {path: path.read_bytes() for path in folder.iterdir() if path in before} == before
    # Runs that came since are on the list when it is loaded again.
    write(folder, 2, one(2))
    assert get(port, "/")[1].count(">open</a>") == 3


def test_no_path_of_a_request_is_opened(port, monkeypatch):
    assert get(port, "/")[0] == 200
    monkeypatch.setattr("dask_otel.cli.serve.read_report", None)
    for path in (
        *("/../../../../etc/passwd", "/etc/passwd", "//etc/passwd", "/%2e%2e/%2e%2e/etc/passwd"),
        *("/..%2f..%2fetc%2fpasswd", "/file:///etc/passwd", "/?path=/etc/passwd", "/nightly"),
    ):
        status, page = get(port, path)
        assert (status, "root:" in page, unquote(path) in page) == (404, False, False), path


def test_other_names_of_the_machine_and_other_methods_are_refused(port):
    asked = [("GET", "evil.example"), ("GET", "localhost")]
    asked += [(method, "localhost") for method in ("POST", "PUT", "DELETE")]
    found = [get(port, "/", method, Host=f"{host}:{port}")[0] for method, host in asked]
    assert found == [403, 200, 501, 501, 501]


def test_ctrl_c_ends_it(folder):
    write(folder, 0, one(0))
    command = [sys.executable, "-m", "dask_otel", "history", str(folder), "--serve"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        address, hint = process.stdout.readline(), process.stderr.readline()
        os.kill(process.pid, signal.SIGINT)
        ended(process)
        _, said = process.communicate()
    assert address.startswith("http://127.0.0.1:")
    assert (hint, process.returncode, said) == (
        "dask-otel history: press Ctrl-C to stop\n", 0, "",
    )  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        ["--serve", "--json"],
        ["--serve", "0", "-o", "a.html"],
        ["--serve", "x"],
        ["--serve", "--check", "a"],
    ],
)
def test_options_that_exclude_each_other(options, capsys):
    with pytest.raises(SystemExit):
        main(["history", ".", *options])
    assert history.COMMAND.help not in capsys.readouterr().err
