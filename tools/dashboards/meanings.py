"""The report's table of colours and parts, as Grafana and Prometheus want it."""

from __future__ import annotations

from dask_otel.report.meanings import ALIKE, MEANINGS, NEUTRAL, PARTS, Meaning, Part

__all__ = [
    "ALIKE",
    "BAD",
    "GOOD",
    "MEANINGS",
    "NEUTRAL",
    "PARTS",
    "TEXT",
    "Meaning",
    "Part",
    "matcher",
    "names",
    "pattern",
]

GOOD = "green"
BAD = "red"
TEXT = "text"


def names(*meanings: str) -> str:
    """The regular expression of the activities with one of these meanings."""
    return "|".join(name for meaning in meanings for name in MEANINGS[meaning].names)


def matcher(part: Part) -> str:
    """The label matcher of a part's activities."""
    if part.meanings:
        return f'dask_activity=~"{names(*part.meanings)}"'
    claimed = [meaning for other in PARTS for meaning in other.meanings]
    return f'dask_activity!~"{names(*claimed)}"'


def pattern(meaning: str) -> str:
    """Grafana's regular expression of the series with a meaning, as ``what: name`` or ``name``."""
    alike = [name.replace("(", r"\(").replace(")", r"\)") for name in ALIKE.get(meaning, ())]
    return f"/^(?:.*: )?(?:{'|'.join([*MEANINGS[meaning].names, *alike])})$/"
