"""`pate run` on a quiet machine and beside one busy process, one after the other.

    python benchmarks/busy.py [CONFIG] [--set key=value …] [--data-dir DIR] [--busy 1]

Prints the seconds of both, by stage, and their ratio. The load before each says how quiet the machine was: on one that
others use as well, the ratio comes out too small.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def busy(number: int) -> Iterator[None]:
    """So many processes that do nothing but compute."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def timed(arguments: list[str]) -> dict[str, float]:
    """Seconds of one run, as a user would wait for it, and of its stages."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "pate.cli", "run", *arguments, "--out", str(out), "--json"]
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env=environment)
        total = time.perf_counter() - started
        stages: dict[str, float] = json.loads((out / "private" / "seconds.json").read_text())
    return {"total": total} | stages


def main() -> None:
    parser = argparse.ArgumentParser(description="pate run, quiet and beside busy processes.")
    parser.add_argument("config", nargs="?")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--data-dir")
    parser.add_argument("--busy", type=int, default=1)
    options = parser.parse_args()
    arguments = [options.config] if options.config else []
    arguments += [part for setting in options.set for part in ("--set", setting)]
    arguments += ["--data-dir", options.data_dir] if options.data_dir else []
    found = {}
    for name, number in (("quiet", 0), ("busy", options.busy)):
        print(
            f"{name}: {number} busy processes of ours; load before {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        )
        with busy(number):
            found[name] = timed(arguments)
        print("  " + ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in found[name].items()), flush=True)
    print(f"busy / quiet: {found['busy']['total'] / found['quiet']['total']:.2f}")


if __name__ == "__main__":
    main()
