"""The stacks of a span as a tree: bounded; what has no room is counted at the nearest frame."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

from dask_otel.core.profiles.stacks import Frame


class Cost(NamedTuple):
    """Samples, and the microseconds for which they stand."""

    samples: int = 0
    micros: int = 0

    def plus(self, samples: int, micros: int) -> Cost:
        """Return the sum."""
        return Cost(self.samples + samples, self.micros + micros)


class Node:
    """A frame with its callees, and its own cost by line; 0 for an unknown one."""

    __slots__ = ("callees", "lines")

    def __init__(self) -> None:
        self.callees: dict[Frame, Node] = {}
        self.lines: dict[int, Cost] = {}

    def __repr__(self) -> str:
        return f"<Node with {len(self.callees)} callees, {self.total().micros / 1e6:g} s>"

    def add(
        self,
        frames: tuple[Frame, ...],
        line: int,
        samples: int,
        micros: int,
        room: int = sys.maxsize,
    ) -> tuple[int, bool]:
        """Add a stack; return how many nodes and lines that made, and whether it had room."""
        node, made = self, 0
        for frame in frames:
            child = node.callees.get(frame)
            if child is None:
                if made >= room:
                    break
                child = node.callees[frame] = Node()
                made += 1
            node = child
        else:
            if line in node.lines or made < room:
                made += line not in node.lines
                node.lines[line] = node.lines.get(line, Cost()).plus(samples, micros)
                return made, True
        node.lines[0] = node.lines.get(0, Cost()).plus(samples, micros)
        return made, False

    def stacks(self) -> Iterator[tuple[tuple[Frame, ...], int, Cost]]:
        """Yield each stack with its innermost line and its own cost."""
        waiting: list[tuple[tuple[Frame, ...], Node]] = [((), self)]
        while waiting:
            frames, node = waiting.pop()
            for line, cost in node.lines.items():
                yield frames, line, cost
            waiting += [((*frames, frame), child) for frame, child in node.callees.items()]

    def total(self) -> Cost:
        """Return the cost of the frame with all its callees."""
        found = Cost()
        for _, _, cost in self.stacks():
            found = found.plus(*cost)
        return found
