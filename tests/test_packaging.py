"""What is in the repository is in the package."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from support import REPOSITORY


@pytest.mark.skipif(shutil.which("git") is None or not (REPOSITORY / ".git").exists(), reason="needs a git clone")
def test_no_module_is_ignored() -> None:
    """An ignored file is neither committed nor, by hatchling, put into the wheel: `runs/` once hid pate/runs/."""
    files = [str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "pate").rglob("*.py")]
    command = ["git", "-C", str(REPOSITORY), "check-ignore", "--no-index", "--stdin"]
    shown = subprocess.run(command, input="\n".join(files), capture_output=True, text=True, timeout=60)
    assert shown.returncode == 1, shown.stdout + shown.stderr  # 1: none of them
