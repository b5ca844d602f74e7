"""Go's own tool reads a profile: by function, line and label."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.test_profile_command import USUAL, make_profile, write

#: Go builds the tool at its first use.
pytestmark = [pytest.mark.backend, pytest.mark.timeout(900)]


def pprof(path: Path, *options: str) -> str:
    """What the tool says of a file."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("go is not on PATH, which reads profiles of pprof")
    done = subprocess.run(
        [go, "tool", "pprof", *options, str(path)], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_go_reads_a_profile(tmp_path: Path) -> None:
    path = write(tmp_path, make_profile(*USUAL))
    own: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    for span, prefix, frames, line, seconds in USUAL:
        own[frames[-1].function] += int(seconds)
        lines[f"{frames[-1].function} {frames[-1].file}:{line}"] += int(seconds)
        labels[span] += int(seconds)
        labels[prefix] += int(seconds)
    top = pprof(path, "-top", "-unit=s", "-nodefraction=0")
    assert "Duration: 60s, Total samples = 26s" in top
    found = re.findall(r"^\s+(\d+)s\s.*%\s+(\S+)$", top, re.MULTILINE)
    assert {name: int(seconds) for seconds, name in found if seconds != "0"} == own
    by_line = pprof(path, "-top", "-lines", "-unit=s", "-nodefraction=0")
    found = re.findall(r"^\s+(\d+)s\s.*%\s+(\S+ \S+)$", by_line, re.MULTILINE)
    assert {name: int(seconds) for seconds, name in found if seconds != "0"} == lines
    tags = pprof(path, "-tags", "-unit=s")
    for label, seconds in labels.items():
        assert re.search(rf"^\s+{seconds}\.?0*s? .*: {label}$", tags, re.MULTILINE), tags
