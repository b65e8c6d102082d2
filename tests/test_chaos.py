"""A short version of benchmarks/chaos.py: real kills of real processes in the labelling stage."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support import REPOSITORY


@pytest.mark.usefixtures("local_ray")
def test_a_few_kills_lose_nothing() -> None:
    """A teacher worker, the aggregator, and both together with their driver, in the Ray that tests share."""
    import ray

    command = [sys.executable, str(REPOSITORY / "benchmarks" / "chaos.py"), "--kills", "3", "--seed", "3"]
    environment = os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    shown = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "3 kills" in shown.stdout
    for line in ("0 queries with two different answers", "0 answers without a charge", "0 charges lost"):
        assert line in shown.stdout
