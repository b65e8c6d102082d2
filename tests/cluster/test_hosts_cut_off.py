"""A worker host falls silent while it trains: the run goes on without it. Real network namespaces, token and TLS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import REPOSITORY
from support.processes import folder_for_root

pytestmark = pytest.mark.root


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_for_root("ip", "unshare") as folder:
        yield folder


def test_a_silent_worker_is_given_up_and_strangers_are_refused(folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{environment['PATH']}", "OMP_NUM_THREADS": "1"}
    own = ["unshare", "--pid", "--net", "--mount-proc", "--fork", "--kill-child"]
    command = [*own, sys.executable, str(Path(__file__).parent / "three_hosts.py"), str(folder), str(REPOSITORY)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment)
    logs = "".join(f"== {path}\n{path.read_text()[-3000:]}" for path in folder.glob("*/log"))
    assert shown.returncode == 0, shown.stdout + shown.stderr + logs
    result = json.loads((folder / "result.json").read_text())
    print({key: value for key, value in result.items() if key != "doctor"})
    assert result["status"] == 0, logs
    assert result["alive"]
    assert 15 <= result["trained_before"] < 45
    assert result["seconds_to_go_on"] <= 20
    assert result["clients"]["right"] == 0, logs
    assert all(status != 0 for kind, status in result["clients"].items() if kind != "right"), result["clients"]
    findings = {finding["what"]: finding for finding in result["doctor"]}
    assert [finding for finding in result["doctor"] if finding["level"] == "fail"] == []
    assert findings["TLS"]["text"] == "between all nodes"
    assert findings["dashboard"]["text"] == "on 127.0.0.1:8265 only"
