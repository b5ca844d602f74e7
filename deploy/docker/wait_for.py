#!/usr/bin/env python3
"""Wait until each of some URLs answers with a 2xx status: ``wait_for.py [--timeout S] URL...``.

Some servers' images have no shell that a health check of their own could run in.
Exit status: 0 when all have answered, 1 with the names of those that have not.
"""

from __future__ import annotations

import argparse
import sys
import time
import urllib.error
import urllib.request


def answers(url: str) -> bool:
    """Whether a GET is answered with 2xx."""
    try:
        with urllib.request.urlopen(url, timeout=3) as response:
            return 200 <= response.status < 300
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timeout", type=float, default=0.0, metavar="S", help="default: ask once")
    parser.add_argument("urls", nargs="+", metavar="URL")
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.timeout
    waiting = list(arguments.urls)
    while waiting := [url for url in waiting if not answers(url)]:
        if time.monotonic() >= deadline:
            print("no answer from " + ", ".join(waiting), file=sys.stderr)
            return 1
        time.sleep(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
