"""Terminal input and output of all commands."""

from __future__ import annotations

import gc
import io
import logging
import os
import shutil
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from dask_otel.report import words
from dask_otel.settings.rule import Rule

#: The smallest width for fitting text to a terminal.
_NARROW: Final = 60
#: Columns of a progress bar.
_BAR: Final = 40
#: As a file to write: standard output.
STDOUT: Final = Path("-")
#: Seconds between two looks while waiting.
LOOK: Final = 0.05

Parsed = TypeVar("Parsed")


class Failed(RuntimeError):
    """A step of a command failed; the message says why."""


class Closed(io.StringIO):
    """Standard output that was closed before the start: a result that goes there is lost."""

    def write(self, _: str) -> NoReturn:
        """Raise an OSError."""
        raise OSError("standard output is closed")


def wait_until(done: Callable[[], bool], seconds: float) -> None:
    """Wait until something is done, or for `seconds`."""
    until = time.monotonic() + seconds
    while not done() and time.monotonic() < until:
        time.sleep(LOOK)


def parsed(read: Callable[[str], Parsed], allowed: str) -> Callable[[str], Parsed]:
    """Return the type of an argument; its error says in words which values are `allowed`."""

    def parse(text: str) -> Parsed:
        try:
            return read(text)
        except (ValueError, OverflowError):
            raise ArgumentTypeError(f"{text!r} is not {allowed}") from None

    return parse


def number(
    least: float, most: float, allowed: str, kind: Callable[[str], float] = float
) -> Callable[[str], float]:
    """Return the type of an argument: a number within limits, which `allowed` has in words."""
    rule = Rule(allowed, {"minimum": least, "maximum": most}, kind)
    return parsed(rule.parse, allowed)


def width(most: int, unknown: int = 100) -> int:
    """Return the width for a text, in columns.

    `most` is the greatest readable width; `unknown` is for an unknown width, or no terminal.
    """
    return max(_NARROW, min(most, shutil.get_terminal_size((unknown, 24)).columns))


def is_ascii() -> bool:
    """Return whether the terminal may show nothing but ASCII."""
    return not (sys.stdout.encoding or "ascii").lower().startswith("utf")


def show(text: str) -> None:
    """Print a command's result; a closed pipe is no error."""
    try:
        try:
            print(text, flush=True)
        except UnicodeEncodeError:
            # Print the rest, even if the terminal's encoding lacks a character.
            encoding = sys.stdout.encoding
            shown = words.in_ascii(text).encode(encoding, "replace")
            print(shown.decode(encoding), flush=True)
    except BrokenPipeError:
        # The reader has closed the pipe; avoid a second error at the interpreter's end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def tell(text: str) -> None:
    """Print what a command has done; that nobody can read it is no error."""
    with suppress(OSError):
        show(text)


def say(command: str, text: str) -> None:
    """Print a message besides a command's result, without what a terminal would obey."""
    sys.stdout.flush()
    print(
        f"dask-otel {command}:",
        "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text),
        file=sys.stderr,
    )


def progress(text: str) -> None:
    """Show how far a command is, in a terminal alone; an empty text ends it."""
    if sys.stderr.isatty():
        print(f"\r{text}\033[K", end="", file=sys.stderr, flush=True)


def listed(number: int, of: int) -> None:
    """Show how far a listing is."""
    progress(f"{number:,} of {of:,}" if number < of else "")


def replayed(done: int, of: int) -> None:
    """Show how far a replay is."""
    share = done / (of or 1)
    progress(f"replayed {share:4.0%} {words.in_ascii(words.bar(share, _BAR))}")


def write(path: Path, text: str) -> None:
    """Write a page, and print its path; to standard output for the path ``-``."""
    if path == STDOUT:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # The page says that it is UTF-8.
            sys.stdout.reconfigure(encoding="utf-8")
        show(text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise Failed(f"can't write {path}: {reason}") from error
    tell(str(path))


@contextmanager
def held_back(name: str) -> Iterator[dict[str, None]]:
    """Keep a logger's messages from the terminal; yield its warnings, each once."""
    messages: dict[str, None] = {}

    def keep(record: logging.LogRecord) -> bool:
        messages[record.getMessage()] = None
        return False

    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.WARNING)
    logger.addFilter(keep)
    try:
        yield messages
    finally:
        # An abandoned slow connection logs an error when it is garbage-collected.
        gc.collect()
        logger.removeFilter(keep)
        logger.setLevel(before)
