"""The light client: the same source, without torch, scikit-learn and whatever else only training needs."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import numpy as np
import pytest
from support import REPOSITORY

from pate.cli import _NOT_IN_CLIENT, __version__

_BLOCKED = f"""import sys
for name in {sorted(_NOT_IN_CLIENT | {"pandas", "pyarrow", "jinja2"})}:
    sys.modules[name] = None
"""
_COMMANDS = (
    _BLOCKED
    + """
from pathlib import Path
from support.command_line import in_process

config, votes = sys.argv[1:]
for words, told in {
    "--help": "submit",
    f"account {votes} --mechanism gnmax --sigma 20 --delta 1e-5": "exact, PLD",
    "plan --mechanism gnmax --sigma 20 --max-queries 10": "ε to publish",
    f"plan {config}": "ε to publish",
    f"account {votes} --mechanism gnmax --sigma 20 --delta 1e-5 --plot x.png": "this takes matplotlib",
    "jobs --address http://127.0.0.1:9": "no Ray head answers there",
    f"submit {config} --address http://127.0.0.1:9": "no Ray head answers there",
    "submit audit ~/run --address http://127.0.0.1:9": "no Ray head answers there",
    "fetch JOB --address http://127.0.0.1:9": "no Ray head answers there",
    "doctor --address http://127.0.0.1:9": "no Ray head answers there",
    "run": "No such command 'run'",
}.items():
    shown = in_process(*words.split(), entry="client")
    assert told in shown.stdout + shown.stderr, (words, shown)

from pate.cluster import bundle, checks, trial
from pate.config import load_baseline_config, load_config
from pate.report import reading, terminal

for path in sorted(Path(config).parent.glob("*.yaml")):
    (load_baseline_config if "baseline:" in path.read_text() else load_config)(path)
"""
)


def test_its_commands_import_nothing_that_it_leaves_out(tmp_path: Path) -> None:
    np.save(tmp_path / "votes.npy", [[30, 5, 1]])
    arguments = [str(REPOSITORY / "configs" / "digits.yaml"), str(tmp_path / "votes.npy")]
    environment = os.environ | {"PYTHONPATH": f"{REPOSITORY / 'tests'}:{REPOSITORY}"}
    shown = subprocess.run(
        [sys.executable, "-c", _COMMANDS, *arguments], capture_output=True, text=True, timeout=300, env=environment
    )
    assert shown.returncode == 0, shown.stderr


def test_its_requirements_are_some_of_ours() -> None:
    """The same floors: one source, so one truth about what it needs."""
    whole, light = (
        tomllib.loads((REPOSITORY / name).read_text())["project"]
        for name in ("pyproject.toml", "client/pyproject.toml")
    )
    assert light["version"] == whole["version"] == __version__
    floors = {one.split(">=")[0].split("[")[0]: one.split(">=")[1] for one in whole["dependencies"]}
    of_ray = {"aiohttp", "requests"}  # what ray[default] brings, and sending jobs needs
    for one in light["dependencies"]:
        name, floor = one.split(">=")
        assert name in of_ray or floors[name] == floor, one


@pytest.mark.slow
def test_the_wheel_installs_and_works_by_itself(tmp_path: Path) -> None:
    """In an environment of its own, from the package index: 432 MB without bytecode when this was written."""
    venv.create(tmp_path / "venv", with_pip=True)
    pip = [str(tmp_path / "venv" / "bin" / "pip")]
    built = subprocess.run(
        [*pip, "wheel", "--no-deps", "-w", str(tmp_path), str(REPOSITORY / "client")],
        capture_output=True,
        text=True,
        timeout=600,
    )
    if "No matching distribution found for hatchling" in built.stderr:
        pytest.skip("needs the package index")
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    installed = subprocess.run(
        [*pip, "install", "--no-compile", "-q", str(wheel)], capture_output=True, text=True, timeout=1200
    )
    assert installed.returncode == 0, installed.stderr
    np.save(tmp_path / "votes.npy", [[30, 5, 1]])
    for words, told in {
        "--help": "submit",
        "account votes.npy --mechanism gnmax --sigma 20 --delta 1e-5": "exact, PLD",
        "plan --mechanism gnmax --sigma 20 --max-queries 10": "ε to publish",
        "jobs --address http://127.0.0.1:9": "no Ray head answers there",
    }.items():
        command = [str(tmp_path / "venv" / "bin" / "pate"), *words.split()]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
        assert told in shown.stdout + shown.stderr, shown
    site = next((tmp_path / "venv" / "lib").glob("python3*/site-packages"))
    assert not {path.name for path in site.iterdir()} & {"torch", "sklearn", "torchvision"}
    assert (site / "pate" / "students").is_dir()  # for --pack
    assert (site / "pate" / "configs" / "mnist.yaml").exists()
    size = sum(path.stat().st_size for path in (tmp_path / "venv").rglob("*") if path.is_file())
    assert size < 600e6, f"{size / 1e6:.0f} MB"
