"""What is in the repository is in the package."""

from __future__ import annotations

import shutil
import subprocess
import tomllib

import pytest
from support import REPOSITORY

from pate.config import read_yaml


@pytest.mark.skipif(shutil.which("git") is None or not (REPOSITORY / ".git").exists(), reason="needs a git clone")
def test_no_module_is_ignored() -> None:
    """An ignored file is neither committed nor, by hatchling, put into the wheel: `runs/` once hid pate/runs/."""
    files = [str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "pate").rglob("*.py")]
    command = ["git", "-C", str(REPOSITORY), "check-ignore", "--no-index", "--stdin"]
    shown = subprocess.run(command, input="\n".join(files), capture_output=True, text=True, timeout=60)
    assert shown.returncode == 1, shown.stdout + shown.stderr  # 1: none of them


def test_every_config_that_the_package_reads_is_in_the_wheel() -> None:
    """In a checkout they are found beside the package, so nothing else would notice one that is missing."""
    wheel = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"configs": "pate/configs"}
    named = {"digits"}
    for file in ("rows", "baseline_rows"):
        for study in read_yaml(REPOSITORY / "pate" / "reproduce" / f"{file}.yaml").values():
            entries = [study, *study["rows"]]
            named |= {
                value for entry in entries for key in ("config", "votes") if isinstance(value := entry.get(key), str)
            }
    assert named <= {path.stem for path in (REPOSITORY / "configs").glob("*.yaml")}
