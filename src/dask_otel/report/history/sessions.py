"""Finds the files of each session, and keeps a small summary of its runs beside them.

A *session* is what one scheduler's files hold. A summary names the files it was made of and their
sizes, and is made anew when these differ.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from dask_otel.report import words
from dask_otel.report.history.past import PastRun, ended, is_backwards, past_run
from dask_otel.report.telemetry import json_files, remote
from dask_otel.report.telemetry.reader import Reader
from dask_otel.spool.files import replace as replace_file

#: Increases when a summary's content changes its meaning, or gains a key.
VERSION: Final = 3

#: The bridge's names: see `run_name` of the exporter.
_NAME: Final = re.compile(r"(.+)-\d{4,}-(traces|metrics|logs)\.jsonl")


@dataclass(frozen=True)
class SessionFiles:
    """The files of one scheduler, with their sizes.

    All files of a folder that the bridge did not name are one session, without a `prefix`. The
    `folder` is a path, or an address.
    """

    folder: str
    prefix: str
    files: dict[str, int]

    @property
    def command(self) -> str:
        """The command that makes its report."""
        path = shlex.quote(self.where)
        return words.one_line(f"dask-otel report {path}{'-*.jsonl*' if self.prefix else ''}")

    @property
    def where(self) -> str:
        """The beginning of its files' paths."""
        return f"{self.folder}/{self.prefix}".rstrip("/")

    @property
    def paths(self) -> list[str]:
        """All its files that are read."""
        return [f"{self.folder}/{name}" for name in self.files]

    def places(self) -> list[Path]:
        """Return where its summary can be: beside the files, and in the user's cache.

        Only the cache, if the bridge did not write the files, or they are elsewhere.
        """
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        folder = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:32]
        name = f"{self.prefix or 'telemetry'}{json_files.SUMMARY}"
        is_ours = self.prefix and not remote.is_remote(self.folder)
        found = [Path(self.folder, name)] if is_ours else []
        # A user without a home has no cache.
        with suppress(RuntimeError):
            found.append(Path(home).expanduser() / "dask-otel" / folder / name)
        return found


@dataclass(frozen=True)
class Summary:
    """The ended runs of a session, and a line for everything that was left out."""

    runs: list[PastRun]
    left_out: list[str]


def sessions(folders: Iterable[str | Path], left_out: list[str]) -> list[SessionFiles]:
    """Return the sessions below some folders; a folder that can't be read adds a line."""
    found: dict[tuple[str, str], SessionFiles] = {}
    for top in folders:
        try:
            is_remote = remote.is_remote(top)
            files = remote.listed(str(top)) if is_remote else _listed(top, left_out)
            for folder, name, size in files:
                named = _NAME.match(name)
                if json_files.is_json(name) and not (named and named[2] == "logs"):
                    key = (folder, named[1] if named else "")
                    found.setdefault(key, SessionFiles(*key, {})).files[name] = size
        except OSError as error:
            left_out.append(str(error))
    return list(found.values())


def _listed(top: str | Path, left_out: list[str]) -> Iterator[tuple[str, str, int]]:
    """Yield folder, name and size of all files below a local folder."""
    failed: list[OSError] = []
    for folder, _, names in os.walk(Path(top).absolute(), onerror=failed.append):
        for name in sorted(names):
            path = Path(folder, name)
            # It may just have been removed.
            with suppress(OSError):
                if path.is_file():
                    yield folder, name, path.stat().st_size
    left_out += [f"can't read {error.filename}: {error.strerror}" for error in failed]


def listing(
    folders: Iterable[str | Path], progress: Callable[[int, int], None]
) -> tuple[list[tuple[PastRun, SessionFiles]], list[str]]:
    """Return the runs below some folders by their start, each once, and what was left out.

    `progress` is called with the number of sessions that were read, and of all.
    """
    left_out: list[str] = []
    runs: dict[tuple[str, str], tuple[PastRun, SessionFiles]] = {}
    found = sessions(folders, left_out)
    for number, session in enumerate(found, 1):
        progress(number, len(found))
        known = summary(session)
        left_out += map(words.one_line, known.left_out)
        runs |= {(one.trace_id, one.span_id): (one, session) for one in known.runs}
    return sorted(runs.values(), key=lambda one: one[0].start), left_out


def summary(session: SessionFiles) -> Summary:
    """Return the summary of a session: the present one, or a new one, which is kept."""
    said: list[str] = []
    writable: list[Path] = []
    for place in session.places():
        try:
            known = _read(place, session)
        except NotImplementedError as error:
            # Another version needs it.
            said.append(str(error))
            continue
        if known is not None:
            return Summary(known.runs, [*said, *known.left_out])
        writable.append(place)
    reader = Reader()
    # Counters only grow: the last file has them all.
    metrics = [name for name in session.files if "-metrics.json" in name and session.prefix]
    files = {name: size for name, size in session.files.items() if name not in metrics[:-1]}
    try:
        with remote.copied(replace(session, files=files).paths) as paths:
            reader.read(paths)
    except OSError as error:
        return Summary([], [*said, f"can't read {session.where}: {error}"])
    made = _made(session, reader)
    # A file that can't be read today may be read tomorrow.
    if json_files.BROKEN not in reader.skipped.counts:
        content = {"version": VERSION, "files": session.files, **asdict(made)}
        content["digest"] = _digest(content)
        for place in writable:
            with suppress(OSError):
                replace_file(place, json.dumps(content, allow_nan=False).encode())
                break
    return Summary(made.runs, [*said, *made.left_out])


def _read(place: Path, session: SessionFiles) -> Summary | None:
    """Return a summary; None if there is none, or another one is due."""
    try:
        found: Any = json_files.parse(place.read_bytes())
        if found["version"] > VERSION:
            raise NotImplementedError(f"{place} is of a later version of dask-otel: not used")
        # What anybody has changed is not used.
        about = (found.pop("digest"), found["version"], found["files"])
        if about != (_digest(found), VERSION, session.files):
            return None
        # The folder may have moved since.
        runs = [past_run({**run, "command": session.command}) for run in found["runs"]]
        return Summary(runs, found["left_out"])
    except (OSError, KeyError, TypeError, ValueError):
        return None


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, allow_nan=False).encode()).hexdigest()


def _made(session: SessionFiles, reader: Reader) -> Summary:
    where, runs = session.where, reader.sessions()
    roots = [root for run in runs for root in run.roots()]
    left_out = [
        f"{where}: {words.counted(count, 'run')} {what}"
        for count, what in (
            (sum(root.unfinished for root in roots), "without an end"),
            (sum(map(is_backwards, roots)), "that ended before it began: the clock was set back"),
        )
        if count
    ]
    # Other files of JSON are nobody's concern.
    if session.prefix or runs:
        left_out += [f"{where}: {line}" for line in reader.skipped.lines()]
    return Summary([one for run in runs for one in ended(run, session.command)], left_out)
