"""How long a command takes that trains nothing, beside Python with numpy alone: people call these in loops.

python benchmarks/startup.py [--repeat 7]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

_PATE = [sys.executable, "-m", "pate.cli"]
_PLAN = ["--mechanism", "mstab", "--epsilon", "1", "--query-delta", "1e-9"]
_ACCOUNT = ["--mechanism", "lnmax", "--scale", "20", "--delta", "1e-5"]


def best(command: list[str], repeat: int) -> tuple[float, float]:
    """Seconds by the clock and of the processor, each the best of some: the others measure the machine."""
    clock, processor = [], []
    for _ in range(repeat):
        started, before = time.perf_counter(), _seconds_of_children()
        subprocess.run(command, check=True, capture_output=True)
        clock.append(time.perf_counter() - started)
        processor.append(_seconds_of_children() - before)
    return min(clock), min(processor)


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=7)
    repeat = parser.parse_args().repeat
    with tempfile.TemporaryDirectory() as folder:
        votes = Path(folder) / "votes.npy"
        np.save(votes, np.tile([200, 30, 20], (20, 1)))
        shared = Path(folder) / "shared"
        subprocess.run([*_PATE, "ledger", "create", str(shared), "--epsilon", "3"], check=True, capture_output=True)
        commands = {
            "pate --help": [*_PATE, "--help"],
            "pate ledger show": [*_PATE, "ledger", "show", str(shared)],
            "pate plan --mechanism mstab": [*_PATE, "plan", *_PLAN],
            "pate plan --mechanism gnmax": [*_PATE, "plan", "--mechanism", "gnmax", "--sigma", "40"],
            "pate account, 20 queries": [*_PATE, "account", str(votes), *_ACCOUNT],
        }
        numpy_alone = best([sys.executable, "-c", "import numpy"], repeat)[1]
        print(f"{'':<30} {'clock':>8} {'processor':>11}")
        for name, command in {"python -c import numpy": [sys.executable, "-c", "import numpy"], **commands}.items():
            clock, processor = best(command, repeat)
            print(f"{name:<30} {clock:6.2f} s  {processor:7.2f} s   {processor / numpy_alone:5.1f} ×")


if __name__ == "__main__":
    main()
