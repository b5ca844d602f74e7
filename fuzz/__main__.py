"""`python -m fuzz`: throw hostile input at each target, a million in sum unless told otherwise.

Needs atheris (``pip install --group fuzz``). Inputs that reach new code are kept in a folder
outside the repository, so that the next run goes on where this one stopped. An input that breaks a
promise is written there, too, and is run again by ``python -m fuzz TARGET FILE``.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

#: The results of the last run that was kept.
KEPT = Path(__file__).parents[1] / "chaos" / "results" / "fuzz.json"

#: Shares of the runs: targets that are slow or tested elsewhere get fewer.
SHARES = {
    "spans": 12,
    "metrics": 10,
    "carriers": 25,
    "messages": 20,
    # Starts a scheduler each time.
    "cluster": 1,
    "settings": 4,
    "environment": 15,
    "exporters": 2,
    "answers": 12,
    "report": 2,
    # Makes files.
    "spool": 1,
}


def main() -> int:
    """Run the targets one after the other; return how many broke a promise."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__.split("\n\n")[0])
    parser.add_argument("target", nargs="?", choices=sorted(SHARES), help="only this one")
    parser.add_argument("file", nargs="?", type=Path, help="run this input once, without atheris")
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs in sum")
    parser.add_argument("--seconds", type=int, default=0, help="at most so long for each target")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser.add_argument("--corpus", type=Path, default=cache / "dask-otel-fuzz")
    parser.add_argument("--write", action="store_true", help="keep the results for the page")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if args.file is not None:
        return _once(args.target, args.file)
    if args.here:
        return _here(args.target, args.corpus / args.target, args.runs, args.seconds)
    results: dict[str, dict[str, Any]] = {}
    for name in [args.target] if args.target else SHARES:
        share = args.runs if args.target else args.runs * SHARES[name] // sum(SHARES.values())
        # libFuzzer ends the process that it runs in.
        command = [sys.executable, "-m", "fuzz", name, "--here", "--corpus", str(args.corpus)]
        command += ["--runs", str(share), "--seconds", str(args.seconds)]
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            # Its end leaves no time to tidy up.
            environment = {**os.environ, "TMPDIR": folder}
            code = subprocess.run(command, check=False, env=environment).returncode
        took = time.monotonic() - began
        print(f"{name}: {'broken' if code else 'held'}, {took:.0f} s", flush=True)
        results[name] = {"inputs": share, "held": not code, "seconds": round(took)}
    if args.write:
        KEPT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return sum(not one["held"] for one in results.values())


def _once(name: str, path: Path) -> int:
    from fuzz.data import Data
    from fuzz.targets import TARGETS

    TARGETS[name](Data(path.read_bytes()))
    return 0


def _here(name: str, corpus: Path, runs: int, seconds: int) -> int:
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

    from fuzz.data import Data

    # Coverage of the bridge alone: what others do with the input is theirs.
    with atheris.instrument_imports(include=["dask_otel"]):
        from fuzz.targets import TARGETS
    kept = corpus / "kept"
    kept.mkdir(parents=True, exist_ok=True)
    options = [f"-runs={runs}", f"-artifact_prefix={corpus}/broken-", "-max_len=2048"]
    options += ["-timeout=30", "-rss_limit_mb=3072", "-verbosity=0", "-print_final_stats=1"]
    options += [f"-max_total_time={seconds}"] if seconds else []
    atheris.Setup([sys.argv[0], *options, str(kept)], lambda raw: TARGETS[name](Data(raw)))
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
