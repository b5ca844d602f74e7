"""What the commands have in common where they meet a person: numbers in, text out."""

from __future__ import annotations

import gc
import logging
import math
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Columns below which no text is fitted to a terminal.
_NARROW: Final = 60


class DemoError(Exception):
    """A step of the demo failed; the text says which, and what to do."""


def number(text: str) -> float:
    """Return an argument as a number; NaN, which is in no range, where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def width(most: int, unknown: int = 100) -> int:
    """Return the columns that a text has.

    Parameters
    ----------
    most
        As many as can be read well.
    unknown
        Where the terminal does not say how many it has, or there is none.
    """
    return max(_NARROW, min(most, shutil.get_terminal_size((unknown, 24)).columns))


def show(text: str) -> None:
    """Print what a command has found, for whoever still reads."""
    try:
        try:
            print(text, flush=True)
        except UnicodeEncodeError:
            # A name that the terminal's encoding can't show is no reason to show nothing.
            encoding = sys.stdout.encoding
            print(text.encode(encoding, "replace").decode(encoding), flush=True)
    except BrokenPipeError:
        # Whoever read has seen enough; nothing is left to be said at the interpreter's end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(command: str, text: str) -> None:
    """Say something beside what a command has found."""
    sys.stdout.flush()
    print(f"dask-otel {command}: {text}", file=sys.stderr)


def fail(command: str, text: str) -> int:
    """Say why a command could not do what it says; return its exit code."""
    say(command, text)
    return 1


def interrupted(command: str) -> int:
    """Say that Ctrl-C has ended a command; return its exit code."""
    say(command, "interrupted")
    return 130


@contextmanager
def silence(*names: str) -> Iterator[None]:
    """Keep what libraries log off the terminal: what matters of it is said in our words.

    Parameters
    ----------
    names
        Of their loggers.
    """
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        # A connection that was too slow and given up says so where it is collected.
        gc.collect()
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
