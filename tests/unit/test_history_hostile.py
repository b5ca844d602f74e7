"""Any number in a file of spans, or in a summary, leaves the history and a comparison standing."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from dask_otel.cli import main
from tests.unit.history_files import etl, write

NUMBERS = [0, -1, 1e-300, 1e300, 1e308, -1e308, float("nan"), float("inf"), 2**70, "9" * 400, "x"]


@pytest.mark.usefixtures("cache")
def test_any_number_is_survived(tmp_path: Path, capsys: Any) -> None:
    chance = random.Random(0)
    for number in range(20):
        request = etl(number, load=(40, 4.0, 400), clean=(9, 2.0))
        # About half of the numbers of all spans are replaced.
        for span in request["resourceSpans"][0]["scopeSpans"][0]["spans"]:
            for attribute in span["attributes"]:
                for kind in attribute["value"]:
                    if kind in ("intValue", "doubleValue") and chance.random() < 0.5:
                        attribute["value"][kind] = chance.choice(NUMBERS)
        write(tmp_path, number, request)
    for _ in range(2):
        assert main(["history", str(tmp_path), "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["runs"]) > 0
    assert main(["history", str(tmp_path), "-o", str(tmp_path / "page.html")]) == 0
    first, *others = (str(path) for path in sorted(tmp_path.glob("*-traces.jsonl")))
    assert main(["report", "--compare", first, others[0], "--text"]) == 0
    assert main(["report", "--compare", str(tmp_path), str(tmp_path), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))
    assert [one["name"] for one in plain["comparison"]["names"]] == ["etl"]
