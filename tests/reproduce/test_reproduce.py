"""The reproduction's own code on the bundled digits: two rows, twenty teachers."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from support.command_line import in_process

from pate.errors import ConfigError
from pate.mechanisms import LNMax
from pate.reproduce import Study, study
from pate.reproduce import _table as table
from pate.reproduce._run import Reproduction, _digest, _ensemble, reproduce
from pate.runs._console import Console

CONFIG = {
    "n_teachers": 20,
    "data": {"source": "digits"},
    "teachers": [{"name": "sklearn.naive_bayes.GaussianNB", "params": {"var_smoothing": 0.01}}],
    "mechanism": {"name": "gnmax", "sigma": 5},
    "budget": {"delta": 1e-5, "max_queries": 10},
    "student": {"name": "supervised", "params": {"estimator": "sklearn.svm.SVC", "params": {"C": 10}}},
    "nonprivate": {"name": "sklearn.svm.SVC"},
}
ROWS = {
    "small": {
        "config": "small",
        "figure_teachers": [5, 20],
        "differs": {"own": "everything"},
        "rows": [
            {
                "name": "lnmax",
                "paper": {"method": "LNMax", "epsilon": 2.04},
                "mechanism": {"name": "lnmax", "scale": 4},
                "budget": {"max_queries": 60},
                "quick": True,
            },
            {
                "name": "ours",
                "mechanism": {"name": "confident_gnmax", "threshold": 8, "sigma1": 6, "sigma2": 5},
                "budget": {
                    "max_queries": 80,
                    "max_answers": 60,
                    "query_selection": "clusters",
                    "sanitise": {"order": 4, "beta": 0.1},
                },
            },
        ],
    }
}
PAPER = {"data": "small", "method": "LNMax", "epsilon": 2.04, "delta": 1e-5, "accuracy": 0.98, "nonprivate": 0.99}
PRIVATE_WORDS = ("data_dependent", "gap", "vote_accuracy", "mean_teacher", "plurality", "seconds", 'bound"')


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("rows")
    files = {"rows": ROWS, "small": CONFIG, "papers": {"rows": [PAPER]}}
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return study("small", votes=False, quick=False, files=[folder / "rows.yaml"], papers=folder / "papers.yaml")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduction") / "run"


@pytest.fixture(scope="module")
def result(local_ray: None, small: Study, out: Path) -> Reproduction:
    return reproduce(small, out, seeds=1, data_dir=None, address=None, console=Console())


def test_rows_stand_beside_the_papers(result: Reproduction) -> None:
    lnmax, ours = result.public["rows"]
    assert lnmax["paper"]["epsilon"] == 2.04
    assert ours["paper"] is None
    assert (lnmax["asked"]["mean"], lnmax["answered"]["mean"]) == (60, 60)
    assert ours["answered"]["mean"] <= 60
    assert ours["epsilon_sanitised"]["mean"] > 0
    assert lnmax["student_accuracy"]["mean"] > 0.5
    assert result.public["nonprivate_accuracy"] > 0.9
    inside = result.private["rows"][0]
    assert 0 < inside["epsilon_data_dependent"]["mean"] < lnmax["epsilon"]
    assert [found["teachers"] for found in result.private["ensembles"]] == [5, 20]


def test_only_publishable_figures_are_outside(result: Reproduction, out: Path) -> None:
    for name in ("results.json", "table.txt"):
        text = (out / name).read_text()
        assert not [word for word in PRIVATE_WORDS if word in text]
    inside = result.private["rows"][0]
    exact = f"{inside['epsilon_data_dependent']['mean']:.3f}"
    assert exact not in (out / "table.txt").read_text()
    assert exact in (out / "private" / "table.txt").read_text()
    assert (out / "private").stat().st_mode & 0o077 == 0
    assert (out / "private" / "figures_2_and_3.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "results.json").read_text()) == json.loads(json.dumps(result.public))


def test_every_row_is_a_run_with_a_ledger(result: Reproduction, out: Path) -> None:
    from pate.cli._look import verify

    for row in result.public["rows"]:
        for folder in row["runs"]:
            verify(out / folder)


def test_a_repeated_call_runs_nothing_again(
    result: Reproduction, small: Study, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pate import pipeline
    from pate.cluster import _session as ray_session

    monkeypatch.setattr(pipeline, "run", None)
    monkeypatch.setattr(ray_session, "ray_session", None)
    again = reproduce(small, out, seeds=1, data_dir=None, address=None, console=Console())
    assert again == result


def test_tables_name_what_is_private(result: Reproduction) -> None:
    assert not [line for line in table.public_lines(result.public) if "private:" in line]
    inside = table.private_lines(result.public, result.private)
    assert "private: do not publish" in inside[0]
    assert any("5, seed 0" in line for line in inside)


def test_the_noisy_vote_is_right_as_often_as_drawn() -> None:
    votes, y = np.array([[12, 8, 0]]), np.array([0])
    exact = table.noisy_accuracy(votes, y, 5.0)
    entropy = np.random.default_rng(0).bytes
    drawn = LNMax(5.0).release(np.repeat(votes, 20_000, axis=0), entropy)
    assert (drawn == 0).mean() == pytest.approx(exact, abs=0.02)  # five and a half standard errors


@pytest.mark.parametrize(
    ("data", "votes"),
    [("mnist", False), ("mnist", True), ("svhn", False), ("svhn", True), ("adult", False), ("digits", False)],
)
@pytest.mark.parametrize("quick", [False, True])
def test_shipped_rows_are_valid_runs(data: str, votes: bool, quick: bool) -> None:
    shipped = study(data, votes, quick)
    assert shipped.rows
    for row in shipped.rows:
        config = row.config(seed=1)
        assert config.seed == 1
        assert row.differs
        if row.paper is not None:
            assert row.paper["delta"] in (config.budget.delta, None)
        assert not (votes and row.has_own_config)


def test_some_rows_alone(small: Study) -> None:
    alone = small.only(["ours"])
    assert [row.name for row in alone.rows] == ["ours"]
    assert (alone.figure_teachers, alone.nonprivate) == ((), None), "nothing else is trained for them"
    with pytest.raises(ConfigError, match="did you mean 'ours'"):
        small.only(["ous"])


@pytest.mark.parametrize("quick", [False, True])
def test_the_example_of_the_help_runs_with_any_other_option(quick: bool) -> None:
    (listed,) = re.findall(r"by name: ([\w,-]+);", in_process("reproduce", "--help").stdout.replace("\n", " "))
    names = listed.split(",")
    assert [row.name for row in study("mnist", votes=False, quick=quick, names=names).rows] == names


def test_figures_alone_release_nothing(result: Reproduction, small: Study, out: Path, tmp_path: Path) -> None:
    """On votes that are there already, so that no teachers are trained."""
    shutil.copytree(out, tmp_path / "run", ignore=shutil.ignore_patterns("rows", "figures_2_and_3.png"))
    found = reproduce(small.figures_alone(), tmp_path / "run", seeds=1, data_dir=None, address=None, console=Console())
    assert [ensemble["teachers"] for ensemble in found.private["ensembles"]] == [5, 20]
    assert (tmp_path / "run" / "private" / "figures_2_and_3.png").exists()
    assert not (tmp_path / "run" / "rows").exists()
    assert found.public["rows"] == []
    assert found.private["ensembles"] == result.private["ensembles"]
    assert "Figures 2 and 3" in "\n".join(table.private_lines(found.public, found.private))
    with pytest.raises(ConfigError, match="no teachers to draw"):
        small.only(["ours"]).figures_alone()


def test_sampled_teachers_share_no_votes_with_teachers_on_parts(small: Study) -> None:
    config = small.rows[0].config(0)
    sampled = {"name": "gaussian_msamp", "sigma": 1, "query_delta": 1e-3}
    configs = [config] + [
        config.model_copy(update={"mechanism": sampled | {"sampling_rate": rate}}) for rate in (0.1, 0.3)
    ]
    assert len({_ensemble(one) for one in configs}) == 3
    assert len({_digest(one, np.arange(5)) for one in configs}) == 3
    louder = config.model_copy(update={"mechanism": {"name": "gnmax", "sigma": 9}})
    assert _digest(louder, np.arange(5)) == _digest(config, np.arange(5)), "noise does not change who voted"


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(ConfigError, match="no stored votes for adult"):
        study("adult", votes=True, quick=False)
    with pytest.raises(ConfigError, match="mnist"):
        study("mnst", votes=False, quick=False)
