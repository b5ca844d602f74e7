"""What SECURITY.md says the code does not do: unpickle, run what it was sent, listen."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import dask_otel

SOURCE = Path(dask_otel.__file__).parent

#: Modules that make objects of bytes; Dask's is `distributed.protocol`.
PICKLES = {
    "pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "_pickle", "protocol",
}  # fmt: skip
#: Names that read or run what others wrote, or wait for others to connect.
READING = {"loads", "unsafe_load", "Unpickler", "deserialize", "read_pickle"}
RUNNING = {"eval", "exec", "compile", "__import__"}
LISTENING = {
    "bind", "listen", "create_server", "start_server", "HTTPServer", "ThreadingHTTPServer",
    "TCPServer", "start_http_server", "make_server", "add_insecure_port", "add_secure_port",
}  # fmt: skip

#: What there is of it, with the reason.
KNOWN = {
    # `dask-otel history --serve`, on 127.0.0.1 alone, when a user asks for it.
    ("cli/serve.py", "http.server.ThreadingHTTPServer"),
    # To pickle a few lines of text for workers, which are told to run them.
    ("scheduler/workers.py", "pickle"),
    ("scheduler/workers.py", "eval"),
    # What it asks a scheduler or worker, which may not have the package, is an expression.
    ("doctor/asking.py", "eval"),
    # base64 of JSON or of a literal, from the process that started this one.
    ("settings/origins.py", "dask.config.deserialize"),
    # Messages of a simulation, which never leave its process.
    ("lab/wires.py", "self.deserialize"),
    ("lab/wires.py", "listener.deserialize"),
    ("lab/wires.py", "distributed.protocol.serialize._nested_deserialize"),
}


def findings(tree: ast.AST) -> Iterator[str]:
    """Yield what a module has of it."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            before = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            names = [before + name.name for name in node.names]
            yield from (one for one in names if {*one.split(".")} & (PICKLES | LISTENING))
        elif isinstance(node, ast.Name) and node.id in RUNNING:
            yield node.id
        elif isinstance(node, ast.Attribute) and node.attr in LISTENING | READING:
            whole = ast.unparse(node)
            if not whole.startswith("json."):
                yield whole


def test_nothing_is_unpickled_run_or_listened_on() -> None:
    found = {
        (path.relative_to(SOURCE).as_posix(), what)
        for path in SOURCE.rglob("*.py")
        for what in findings(ast.parse(path.read_text(encoding="utf-8")))
    }
    # What is not there any more is no exception.
    assert found == KNOWN
