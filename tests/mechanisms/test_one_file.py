"""A mechanism is one file: dropped into the folder, or beside a config, it works everywhere without another edit."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import pate
from pate.cli import app
from pate.errors import PateError

COIN = '''"""The plurality, or by a coin any class: randomised response."""

import math
import os
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pate.accounting import _parameters as parameters
from pate.accounting.composition import RepeatedGuarantee
from pate.mechanisms.base import Mechanism, parameter


@dataclass(frozen=True)
class Coin(Mechanism):
    """With probability `honesty` the plurality, else any of `options` classes.

    Neighbouring relation: one vote moves. Guarantee: the probability of each answer changes by a factor of at most
    1 + options * honesty / (1 - honesty).

    Parameters
    ----------
    honesty : float
        How often the plurality is told.
    options : int
        Number of classes.
    """

    name: ClassVar[str] = "coin"
    honesty: float = parameter(parameters.open_probability)
    options: int

    def release(self, counts, entropy=os.urandom):
        chances = np.exp(self.log_outcomes(counts))
        uniform = np.frombuffer(entropy(8 * len(counts)), dtype="<u8") / 2.0**64
        return (np.cumsum(chances[:, :-1], axis=1) <= uniform[:, None]).sum(axis=1).clip(max=counts.shape[1] - 1)

    def log_outcomes(self, counts):
        best = counts == counts.max(axis=1, keepdims=True)
        told = self.honesty * best / best.sum(axis=1, keepdims=True) + (1 - self.honesty) / counts.shape[1]
        return np.pad(np.log(told), ((0, 0), (0, 1)), constant_values=-np.inf)

    def worst_case(self, max_queries, max_answers):
        epsilon = math.log1p(self.options * self.honesty / (1 - self.honesty))
        return RepeatedGuarantee(epsilon, 0.0, max_queries)

    def noise_draws(self, n_classes):
        return 1

    def describe(self):
        return f"the class with most votes, or, {1 - self.honesty:.0%} of the time, any class"
'''

USE = """
import json, sys
from pathlib import Path

before = set(sys.modules)
import numpy as np

import pate
from pate import pipeline
from pate.cli import app
from pate.config import load_config
from pate.data.private import Votes
from pate.data.public import PublicData

here, name, alone = Path(sys.argv[1]), sys.argv[2], "ray" not in sys.modules
rng = np.random.default_rng(0)
y = rng.integers(3, size=60)
X = (np.eye(3)[y] + 0.1 * rng.random((60, 3))).astype(np.float32)
votes = (np.eye(3, dtype=np.int64) * 20)[y[:40]]
np.save(here / "votes.npy", votes)
public = PublicData(X[:40], ("a", "b", "c"), y[:40], X[40:], y[40:])

content = {
    "name": "coin", "n_teachers": 20, "data": {"source": "arrays"}, "voters": "stored", "stored": {"file": "votes.npy"},
    "mechanism": {"name": name, "honesty": 0.2, "options": 3}, "budget": {"max_queries": 40},
    "student": {"name": "supervised", "params": {"estimator": "sklearn.neighbors.KNeighborsClassifier"}},
}
(here / "config.yaml").write_text(json.dumps(content))
given = {"public": public, "private": Votes(votes), "config_dir": here}
outcome = pipeline.run(load_config(here / "config.yaml"), here / "out", **given, pages=False)
assert outcome.report.queries.answered == 40
assert not {"ray", "torch"} & (sys.modules.keys() - before), "nothing needs them, and they take seconds to import"
app(["report", str(here / "out")], standalone_mode=False)
options = ["--mechanism", name, "--honesty", "0.2", "--options", "3", "--delta", "1e-5", "--json"]
app(["account", str(here / "votes.npy"), *options], standalone_mode=False)
app(["plan", *options, "--teachers", "20", "--max-queries", "40"], standalone_mode=False)
print(pate.__file__)
"""


def used(folder: Path, package_parent: Path, name: str) -> tuple[str, str]:
    """What another copy of the program says when everything is asked of the mechanism; the privacy statement."""
    (folder / "use.py").write_text(USE)
    done = subprocess.run(
        [sys.executable, str(folder / "use.py"), str(folder), name],
        env={"PYTHONPATH": str(package_parent), "PATH": "/usr/bin:/bin", "HOME": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, (folder / "out" / "privacy.txt").read_text()


def check(said: str, statement: str) -> None:
    figures = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    account, plan = figures
    assert account["epsilon"]["exact_pld"] is not None
    assert account["epsilon"]["published_bound"] is None
    assert account["epsilon"]["exact_pld"] <= account["epsilon"]["data_independent"] * (1 + 1e-6)
    assert plan["epsilon"] == pytest.approx(account["epsilon"]["data_independent"])
    assert plan["unanimous"]["probability"] == pytest.approx(0.2 + 0.8 / 10)
    assert plan["unanimous"]["teachers_for_half"] is None
    words = " ".join(statement.split())
    assert "Mechanism: Coin (honesty 0.2, options 3). A query releases the class with most votes, or, 80% of" in words


def test_a_file_in_the_folder(tmp_path: Path) -> None:
    package = tmp_path / "copy" / "pate"
    shutil.copytree(Path(pate.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "mechanisms" / "coin.py").write_text(COIN)
    said, statement = used(tmp_path, package.parent, "coin")
    assert str(package) in said, "the copy was used"
    check(said, statement)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "any class" in page


def test_a_file_beside_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_coin.py").write_text(COIN)
    (tmp_path / "use.py").write_text(USE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["use.py", str(tmp_path), "my_coin.Coin"])
    runpy.run_path("use.py")
    check(capsys.readouterr().out, (tmp_path / "out" / "privacy.txt").read_text())
    monkeypatch.undo()  # from here on nothing knows of the folder
    sys.modules.pop("my_coin")
    for command in (["ledger", "show"], ["ledger", "verify"], ["compare", "--out", str(tmp_path / "compared")]):
        looked = CliRunner().invoke(app, [*command, str(tmp_path / "out")])
        assert looked.exit_code == 0, looked.exception
    assert "my_coin" not in sys.modules, "to look at a run imports nothing that it names"


def test_its_options_are_listed_and_a_misspelt_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "listed_coin.py").write_text(COIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    options = ["--mechanism", "listed_coin.Coin"]
    shown = CliRunner().invoke(app, ["plan", *options, "--help"]).output
    assert "--honesty" in shown
    assert "How often the plurality is told" in shown
    assert "--sampling-rate" in shown, "those of the folder are there too"
    assert "--n-teachers" not in shown, "that is --teachers for every mechanism"
    wrong = CliRunner().invoke(app, ["plan", *options, "--honesti", "0.5"])
    assert wrong.exit_code == 2
    assert "--honesty" in wrong.output
    np.save("votes.npy", np.array([[3, 1], [2, 2]]))
    foreign = CliRunner().invoke(
        app, ["account", "votes.npy", "--mechanism", "gnmax", "--scale", "2", "--delta", "1e-5"]
    )
    assert isinstance(foreign.exception, PateError)
    assert str(foreign.exception) == (
        "2 problems: (1) --scale: gnmax has no such parameter; known are 'sigma'; (2) --sigma: missing; gnmax needs it"
    )


def test_an_option_before_the_votes_is_not_taken_for_them(tmp_path: Path) -> None:
    np.save(tmp_path / "votes.npy", np.array([[30, 10], [20, 20]]))
    arguments = ["account", "--sigma", "5", "--mechanism", "gnmax", str(tmp_path / "votes.npy"), "--delta", "1e-5"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
