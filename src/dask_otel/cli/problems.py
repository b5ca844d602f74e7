"""What can go wrong in a command, as a person is told it."""

from __future__ import annotations


class DemoError(Exception):
    """A step of the demo failed; the text says which, and what to do."""
