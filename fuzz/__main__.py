"""`python -m fuzz`: throw hostile input at the tests' properties, a million in sum by default.

Needs atheris (``pip install --group fuzz``). Inputs that reach new code are kept in a folder
outside the repository, so that the next run goes on where this one stopped. An input that breaks a
property is written there, too, and is run again by ``python -m fuzz PROPERTY FILE``, which shows
the arguments.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fuzz.properties import PROPERTIES, property_of

#: The results of the last run that was kept.
KEPT = Path(__file__).parents[1] / "chaos" / "results" / "fuzz.json"


def main() -> int:
    """Try the properties one after the other; return how many did not hold."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__.split("\n\n")[0])
    parser.add_argument("property", nargs="?", choices=sorted(PROPERTIES), help="only this one")
    parser.add_argument("file", nargs="?", type=Path, help="run this input once, without atheris")
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs in sum")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser.add_argument("--corpus", type=Path, default=cache / "dask-otel-fuzz")
    parser.add_argument("--write", action="store_true", help="keep the results for the page")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.file is not None or args.here:
        return _here(args)
    results: dict[str, dict[str, Any]] = {}
    whole = sum(share for share, _ in PROPERTIES.values())
    for name in [args.property] if args.property else PROPERTIES:
        share = args.runs if args.property else args.runs * PROPERTIES[name][0] // whole
        # libFuzzer ends the process that it runs in.
        command = [sys.executable, "-m", "fuzz", name, "--here", "--corpus", str(args.corpus)]
        command += ["--runs", str(share)]
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            # Its end leaves no time to tidy up.
            environment = {**os.environ, "TMPDIR": folder, "PYTHONHASHSEED": "0"}
            code = subprocess.run(command, check=False, env=environment).returncode
        took = time.monotonic() - began
        print(f"{name}: {'broken' if code else 'held'}, {took:.0f} s", flush=True)
        results[name] = {"inputs": share, "held": not code, "seconds": round(took)}
    if args.write:
        KEPT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return sum(not one["held"] for one in results.values())


def _here(args: argparse.Namespace) -> int:
    """Run one input, or let atheris make them, in this process."""
    from dask_otel import lab

    # Before Dask is imported, as the tests do.
    lab.install()
    logging.disable(logging.CRITICAL)
    if args.file is not None:
        property_of(args.property)(args.file.read_bytes())
        return 0
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

    # Coverage of the bridge alone: what others do with the input is theirs.
    with atheris.instrument_imports(include=["dask_otel"]):
        run = property_of(args.property)
    corpus = args.corpus / args.property
    kept = corpus / "kept"
    kept.mkdir(parents=True, exist_ok=True)
    # Fewer bytes than the arguments need are no input, and the fuzzer begins with none.
    for seed in range(20):
        (kept / f"seed-{seed}").write_bytes(random.Random(seed).randbytes(4096))
    options = [f"-runs={args.runs}", f"-artifact_prefix={corpus}/broken-", "-max_len=8192"]
    options += ["-timeout=30", "-rss_limit_mb=3072", "-verbosity=0", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, str(kept)], run)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
