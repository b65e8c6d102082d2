"""A short version of benchmarks/chaos.py: real kills of real processes in the labelling stage."""

from __future__ import annotations

import subprocess
import sys

from support import REPOSITORY


def test_a_few_kills_lose_nothing() -> None:
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "chaos.py"), "--kills", "4", "--seed", "3"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "4 kills" in shown.stdout
    for line in ("0 queries with two different answers", "0 answers without a charge", "0 charges lost"):
        assert line in shown.stdout
