"""speedscope shows a profile in a browser: its functions, and their time."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections import Counter
from pathlib import Path

import pytest

from dask_otel.cli import main
from tests.browser import open_page
from tests.unit.looped import looped
from tests.unit.test_profile_command import USUAL, make_profile, write

from .servers import binary

pytestmark = [pytest.mark.backend, pytest.mark.xdist_group("page")]

#: A function in the table: its time with callees, its own, their shares of all time, its name.
_ROW = re.compile(r"([\d.]+)s \((\d+)%\)\s+([\d.]+)(?:s|ns) \(<?([\d.]+)%\)\s+(\S+)")


@looped
@pytest.mark.parametrize("own_format", [False, True], ids=["pprof", "speedscope"])
async def test_speedscope_shows_a_profile(own_format: bool, tmp_path: Path, chromium: str) -> None:
    path = write(tmp_path, make_profile(*USUAL))
    if own_format:
        target = tmp_path / "profile.json"
        assert main(["profile", str(path), f"--speedscope={target}"]) == 0
        path = target
    whole, own = Counter[str](), Counter[str]()
    for span, prefix, frames, _, seconds in USUAL:
        # A prefix and a function of one name are two rows.
        above = {f"span {span}", f"prefix {prefix}"} if own_format else set[str]()
        whole.update(dict.fromkeys(above | {one.function for one in frames}, seconds))
        own[frames[-1].function] += seconds
    # As its own command does it.
    script = path.with_suffix(".js")
    content = b64encode(path.read_bytes()).decode()
    script.write_text(
        f"speedscope.loadFileFromBase64({json.dumps(path.name)}, {json.dumps(content)})"
    )
    page_of_it = Path(binary("speedscope"), "speedscope", "dist", "release", "index.html")
    async with open_page(chromium, f"{page_of_it.as_uri()}#localProfilePath={script}") as page:
        name = "all spans" if own_format else path.name
        await page.until(f"document.title.startsWith({json.dumps(name)})")
        # The view that is a table, which is drawn before its rows are.
        await page.call("Input.dispatchKeyEvent", type="keyDown", key="3", text="3")
        text = "document.body.innerText"
        shown = await page.until(f"{text}.split('%)').length > {len(whole)} && {text}")
        assert page.trouble == []
    rows = [(int(float(row[1])), int(float(row[3])), row[5]) for row in _ROW.finditer(shown)]
    assert sorted(rows) == sorted(
        (int(seconds), int(own[name]), name.rpartition(" ")[2]) for name, seconds in whole.items()
    )
    for row in _ROW.finditer(shown):
        assert int(row[2]) == round(100 * float(row[1]) / own.total())
