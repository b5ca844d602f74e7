"""The report's table of colours and parts, as Grafana and Prometheus want it."""

from __future__ import annotations

from dask_otel.report.meanings import ALIKE, MEANINGS, NEUTRAL, PARTS, PATH, Meaning, Part

__all__ = [
    "ALIKE",
    "BAD",
    "GOOD",
    "MEANINGS",
    "NEUTRAL",
    "PARTS",
    "PATH",
    "TEXT",
    "Meaning",
    "Part",
    "matcher",
    "names",
    "shades",
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


#: Shades of a meaning's colour, for names that stand beside each other in one panel.
_SHADES = {
    "p2p-.*-cpu": "light-green",
    "p2p-.*-noncpu": "light-blue",
    "send": "light-purple",
    "serialize": "dark-purple",
    "deserialize": "super-light-purple",
    "offload": "semi-dark-purple",
    "disk-write": "light-yellow",
    "compress": "dark-yellow",
    "decompress": "semi-dark-yellow",
    "executor": "#C9BBA3",
    "queued": "#2E6E6E",
    "no-worker": "#8FB8A8",
    "executing": "#D9F0F0",
}


def shades() -> list[tuple[str, str]]:
    """Grafana's regular expressions of series, as ``what: name`` or ``name``, and their colours."""
    found: dict[str, list[str]] = {}
    for name, meaning in MEANINGS.items():
        alike = [one.replace("(", r"\(").replace(")", r"\)") for one in ALIKE.get(name, ())]
        for own in (*meaning.names, *alike):
            found.setdefault(_SHADES.get(own, meaning.colour), []).append(own)
    return [(f"/^(?:.*: )?(?:{'|'.join(each)})$/", shade) for shade, each in found.items()]
