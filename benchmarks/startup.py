"""How long a command takes that trains nothing, beside Python with numpy alone: people call these in loops.

python benchmarks/startup.py [--repeat 7]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

_PATE = [sys.executable, "-m", "pate.cli"]
_PLAN = ["--mechanism", "mstab", "--epsilon", "1", "--query-delta", "1e-9"]
_ACCOUNT = ["--mechanism", "lnmax", "--scale", "20", "--delta", "1e-5"]


def best(command: list[str], repeat: int) -> float:
    """Seconds, the best of some: the others measure the machine."""
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    return min(times)


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
            "pate account, 20 queries": [*_PATE, "account", str(votes), *_ACCOUNT],
        }
        numpy_alone = best([sys.executable, "-c", "import numpy"], repeat)
        print(f"{'python -c import numpy':<30} {numpy_alone:6.2f} s")
        for name, command in commands.items():
            seconds = best(command, repeat)
            print(f"{name:<30} {seconds:6.2f} s   {seconds / numpy_alone:5.1f} ×")


if __name__ == "__main__":
    main()
