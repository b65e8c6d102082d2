"""A mechanism of somebody's own: the documented one works, and one that is wrong is blamed with file and line."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import REPOSITORY
from support.command_line import Ended, in_process
from typer.testing import CliRunner

import pate
from pate.accounting.exact import exact_epsilon
from pate.cli import app
from pate.errors import ConfigError, PateError
from pate.mechanisms import build
from pate.planning.costs import worst_case_epsilon

PAGE = (REPOSITORY / "docs" / "mechanisms.md").read_text(encoding="utf-8")
(LOTTERY,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan(name: str, *options: str) -> Ended:
    return in_process("plan", "--mechanism", name, *options, "--teachers", "20", "--max-queries", "9")


def test_the_documented_mechanism_is_short_works_and_costs_what_it_claims(folder: Path) -> None:
    body = LOTTERY[LOTTERY.index("@dataclass") :]
    assert len([line for line in body.splitlines() if line.strip()]) <= 25
    (folder / "lottery.py").write_text(LOTTERY)
    told = plan("lottery.Lottery", "--odds", "20", "--json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["unanimous"]["probability"] == pytest.approx(21 / 30)
    mechanism = build({"name": "lottery.Lottery", "odds": 3})
    votes = np.repeat([[6, 3, 1], [0, 0, 10]], 20_000, axis=0)
    drawn = mechanism.release(votes, np.random.default_rng(0).bytes)
    for rows, shares in ((drawn[:20_000], [4 / 6, 1 / 6, 1 / 6]), (drawn[20_000:], [1 / 6, 1 / 6, 4 / 6])):
        # nine standard errors of a share: chance alone fails one time in 10¹⁸
        assert np.bincount(rows, minlength=3) / 20_000 == pytest.approx(shares, abs=0.03)
    assert np.exp(mechanism.log_outcomes(votes[:1]))[0] == pytest.approx([4 / 6, 1 / 6, 1 / 6, 0])
    tied = np.array([[5, 5]])
    assert exact_epsilon(mechanism, tied, 1e-9).pld == pytest.approx(np.log(4), rel=1e-3)
    assert worst_case_epsilon(mechanism, 1, delta=1e-9) == pytest.approx(np.log(4), rel=1e-6)


WRONG = {
    "no comma": ("counts, entropy=os.urandom", "counts entropy=os.urandom", "SyntaxError"),
    "a name that is nowhere": ("name: ClassVar[str] =", "name: ClassVarr[str] =", "NameError"),
    "an import that is not there": ("import math, os", "import mathh, os", "No module named 'mathh'"),
    "a method left out": ("def worst_case(", "def worst_cost(", "abstract class, not a mechanism; define worst_case"),
    "no dataclass": ("@dataclass(frozen=True)", "", "is no frozen dataclass; write @dataclass(frozen=True)"),
    "not frozen": ("@dataclass(frozen=True)", "@dataclass", "is no frozen dataclass"),
    "no name": ('name: ClassVar[str] = "lottery"', "", "has no name"),
    "made of nothing": ('"odds", parameters', '"odds", parametters', "NameError: name 'parametters' is not defined"),
    "a number for a Guarantee": (
        "PureGuarantee.of(math.log1p(self.odds), max_queries)",
        "max_queries * math.log1p(self.odds)",
        "worst_case must give a Guarantee, such as RdpGuarantee or FixedGuarantee",
    ),
    "a cost that raises": ("math.log1p(self.odds)", "math.log1p(self.oddz)", "worst_case: AttributeError"),
    "a cost that falls": (
        "(math.log1p(self.odds), max_queries)",
        "(math.log1p(self.odds), 3 - max_queries)",
        "cannot cost less",
    ),
    "a cost too low": (
        "PureGuarantee.of(math.log1p(self.odds)",
        "PureGuarantee.of(math.log1p(self.odds) / 2",
        "log_outcomes and worst_case disagree: where a vote moves, ε = 1.522 holds with δ = ",
    ),
    "probabilities, no logarithms": ("np.log(lots /", "np.exp(lots /", "probabilities that sum to 1, not to"),
    "no column for ⊥": ("((0, 0), (0, 1))", "((0, 0), (0, 0))", "must give logarithms float[3 queries, 2 classes"),
    "⊥ unannounced": ("np.ones(counts.shape), ((0, 0), (0, 1))", "np.ones(counts.shape), ((0, 0), (0, 1)), "
                      "constant_values=1", "gives ⊥ a probability, though may_decline is not set"),
    "a share for an answer": ("np.array([lot if", "1 / np.array([3 + lot if", "release must give one whole number"),
    "a class that is not there": ("np.array([lot if", "7 + np.array([lot if", "numbers of classes from 0 to 1, not"),
    "one answer for all": ("return np.array([lot if", "return np.array([0]) if 1 else ([lot if", "1 answers to 3 quer"),
    "no number of draws": ("return 1  #", "return None  #", "noise_draws must give a whole number of at least 0"),
}  # fmt: skip
"""What people write, and what they are told."""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_mechanism_is_blamed_in_one_line_with_file_and_line(name: str, folder: Path) -> None:
    old, new, words = WRONG[name]
    assert old in LOTTERY
    (folder / "wrong.py").write_text(LOTTERY.replace(old, new))
    told = plan("wrong.Lottery", "--odds", "20")
    assert (told.returncode, told.stdout) == (2, ""), told
    (line,) = told.stderr.splitlines()
    assert re.match(r"pate: error: (mechanism\.name =|--mechanism) 'wrong\.Lottery': .*wrong\.py, line \d+", line), line
    assert words in line
    assert "mistake in pate" not in line


def test_the_line_is_the_one_that_is_wrong(folder: Path) -> None:
    (folder / "wrong.py").write_text(LOTTERY.replace("math.log1p(self.odds)", "math.log1p(self.oddz)"))
    (number,) = [i for i, line in enumerate(LOTTERY.splitlines(), 1) if "log1p(self.odds), max_queries" in line]
    assert f"wrong.py, line {number}: worst_case: AttributeError" in plan("wrong.Lottery", "--odds", "20").stderr


def test_what_it_refuses_itself_is_told_in_its_own_words(folder: Path) -> None:
    (folder / "lottery.py").write_text(LOTTERY)
    told = plan("lottery.Lottery", "--odds", "-3").stderr
    assert told == ("pate: error: --odds -3.0: must be a whole number, at least 1 and at most 1,000,000\n")


def test_every_choice_of_its_parameters_is_tried(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    low_for_many = LOTTERY.replace("math.log1p(self.odds)", "math.log1p(min(self.odds, 3))")
    (folder / "low.py").write_text(low_for_many)
    assert build({"name": "low.Lottery", "odds": 3}).name == "lottery"
    with pytest.raises(ConfigError, match="log_outcomes and worst_case disagree"):
        build({"name": "low.Lottery", "odds": 20})


def test_a_run_is_refused_before_anything_is_made(folder: Path) -> None:
    (folder / "wrong.py").write_text(LOTTERY.replace("return 1  #", "return 1.5  #"))
    (folder / "own.yaml").write_text(
        json.dumps(
            {
                "name": "own",
                "n_teachers": 5,
                "data": {"source": "digits"},
                "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
                "mechanism": {"name": "wrong.Lottery", "odds": 2},
                "budget": {"max_queries": 5},
                "student": {"name": "supervised"},
                "backend": "local",
            }
        )
    )
    told = in_process("run", "own.yaml", "--out", folder / "run")
    assert (told.returncode, "wrong.py, line" in told.stderr) == (2, True), told.stderr
    assert not (folder / "run").exists()


def test_what_fails_later_is_blamed_too_and_quotes_nothing_in_a_log(folder: Path) -> None:
    later = LOTTERY + "    def answer_probability(self, *given):\n        raise KeyError('canary 0.8675309')\n"
    (folder / "late.py").write_text(later)
    told = plan("late.Lottery", "--odds", "20")
    assert told.returncode == 2
    assert told.stderr == f"pate: error: late.py, line {len(later.splitlines())}: KeyError\n"


# One file is all that it takes


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
    "name": "own", "n_teachers": 20, "data": {"source": "arrays"}, "voters": "stored", "stored": {"file": "votes.npy"},
    "mechanism": {"name": name, "odds": 1}, "budget": {"max_queries": 40},
    "student": {"name": "supervised", "params": {"estimator": "sklearn.neighbors.KNeighborsClassifier"}},
}
(here / "config.yaml").write_text(json.dumps(content))
given = {"public": public, "private": Votes(votes), "config_dir": here}
outcome = pipeline.run(load_config(here / "config.yaml"), here / "out", **given, pages=False)
assert outcome.report.queries.answered == 40
assert not {"ray", "torch"} & (sys.modules.keys() - before), "nothing needs them, and they take seconds to import"
app(["report", str(here / "out")], standalone_mode=False)
options = ["--mechanism", name, "--odds", "1", "--delta", "1e-5", "--json"]
app(["account", str(here / "votes.npy"), *options], standalone_mode=False)
app(["plan", *options, "--teachers", "20", "--max-queries", "40"], standalone_mode=False)
print(pate.__file__)
"""


def check(said: str, statement: str) -> None:
    figures = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    account, plan = figures
    assert account["epsilon"]["exact_pld"] is not None
    assert account["epsilon"]["published_bound"] is None
    assert account["epsilon"]["exact_pld"] <= account["epsilon"]["data_independent"] * (1 + 1e-6)
    assert plan["epsilon"] == pytest.approx(account["epsilon"]["data_independent"])
    assert plan["unanimous"]["probability"] == pytest.approx(2 / 11)
    assert plan["unanimous"]["teachers_for_half"] is None
    assert "Mechanism: Lottery (odds 1). A query releases what the mechanism lottery releases" in " ".join(
        statement.split()
    )


def test_a_file_in_the_folder_needs_no_other_edit(tmp_path: Path) -> None:
    """In a copy of the package, by its short name."""
    package = tmp_path / "pate"
    shutil.copytree(Path(pate.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "mechanisms" / "lottery.py").write_text(LOTTERY)
    options = ["--odds", "1", "--teachers", "20", "--max-queries", "40", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "pate.cli", "plan", "--mechanism", "lottery", *options],
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["unanimous"]["probability"] == pytest.approx(2 / 11)


def test_a_file_beside_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_lottery.py").write_text(LOTTERY)
    (tmp_path / "use.py").write_text(USE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["use.py", str(tmp_path), "my_lottery.Lottery"])
    runpy.run_path("use.py")
    check(capsys.readouterr().out, (tmp_path / "out" / "privacy.txt").read_text())
    monkeypatch.undo()  # from here on nothing knows of the folder
    sys.modules.pop("my_lottery")
    for command in (["ledger", "show"], ["ledger", "verify"], ["compare", "--out", str(tmp_path / "compared")]):
        looked = CliRunner().invoke(app, [*command, str(tmp_path / "out")])
        assert looked.exit_code == 0, looked.exception
    assert "my_lottery" not in sys.modules, "to look at a run imports nothing that it names"


def test_its_options_are_listed_and_a_misspelt_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "listed.py").write_text(LOTTERY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    options = ["--mechanism", "listed.Lottery"]
    shown = CliRunner().invoke(app, ["plan", *options, "--help"]).output
    assert "--odds" in shown
    assert "Lots of the plurality besides its own" in shown
    assert "--sampling-rate" in shown, "those of the folder are there too"
    assert "--n-teachers" not in shown, "that is --teachers for every mechanism"
    wrong = CliRunner().invoke(app, ["plan", *options, "--ods", "5"])
    assert wrong.exit_code == 2
    assert "--odds" in wrong.output
    np.save("votes.npy", np.array([[3, 1], [2, 2]]))
    foreign = CliRunner().invoke(
        app, ["account", "votes.npy", "--mechanism", "gnmax", "--scale", "2", "--delta", "1e-5"]
    )
    assert isinstance(foreign.exception, PateError)
    assert str(foreign.exception) == (
        "2 problems: (1) --scale: gnmax has no such parameter; known are 'sigma'; (2) --sigma: missing; gnmax needs it"
    )
