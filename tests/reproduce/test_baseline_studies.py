"""Papers about baselines, run again: rows are ordinary runs, kept when they are finished; a figure shows them all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.command_line import in_process

from pate.errors import ConfigError
from pate.reproduce import Study, studies
from pate.reproduce import _run as reproduction
from pate.reproduce import _table as table
from pate.reproduce import study as study_of
from pate.reproduce._run import reproduce
from pate.reproduce._table import baseline_lines
from pate.runs._console import Quiet

ROWS = """
small:
  source: nobody's paper
  config: mnist_dp_sgd
  differs: digits instead
  params: {preprocessing: [], features: none, model: linear, model_params: {}, lot_size: 300, epochs: 2, momentum: 0.0}
  panels:
    curves: {title: over time, x: epochs, kind: curves}
    noise: {title: noise, x: σ, scale: log}
    empty: {title: no row is here, x: nothing}
  rows:
    - name: one
      panel: curves
      line: ε = 8
      paper: 0.9
      data: {source: digits}
      budget: {epsilon: 8, delta: 1.0e-4}
      curve: true
      quick: true
    - name: much
      panel: noise
      at: 4
      data: {source: digits}
      params: {sigma: 4.0}
      budget: {epsilon: null, delta: 1.0e-4}
      differs: much noise
"""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    (tmp_path / "rows.yaml").write_text(ROWS)
    return study_of("small", files=[tmp_path / "rows.yaml"])


def test_rows_are_run_once_and_collected(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, begun = tmp_path / "out", []
    run = reproduction.run_baseline

    def counted(config, *arguments, **settings):  # type: ignore[no-untyped-def]
        begun.append(config.name)
        return run(config, *arguments, **settings)

    monkeypatch.setattr(reproduction, "run_baseline", counted)
    result = reproduce(study, out, 2, data_dir=None, address=None, console=Quiet()).public
    assert begun == ["small-one", "small-much"] * 2
    one, much = result["rows"]
    assert (one["epsilon"], one["tested_on"], len(one["each"])) == (pytest.approx(8, abs=0.05), 600, 2)
    assert one["differs"] == "digits instead"
    assert much["differs"] == "digits instead; much noise"
    assert 0 < much["epsilon"] < 2
    assert much["curve"] is None
    assert [set(shares) for _, shares in one["curve"]] == [{"training", "test"}] * len(one["curve"])
    last = one["curve"][-1][1]["test"]  # of all 600, as the row's own figure
    assert last == pytest.approx(one["each"][0], abs=1e-9)
    assert json.loads((out / "results.json").read_text()) == json.loads(json.dumps(result))
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "90.0 %" in (out / "table.txt").read_text()
    assert "much" in "\n".join(baseline_lines(result))
    begun.clear()
    again = reproduce(study, out, 2, data_dir=None, address=None, console=Quiet()).public
    assert begun == []
    assert again == result


def test_a_panel_of_names_shows_lines_side_by_side_and_the_papers_figures() -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows: list[dict[str, object]] = [
        {"line": "linear", "at": 1, "accuracy": 0.9, "deviation": 0.01, "paper": 0.8},
        {"line": "CNN", "at": 1, "accuracy": 0.95, "deviation": None, "paper": None},
        {"line": "CNN", "at": 2, "accuracy": 0.7, "deviation": None, "paper": 0.75},
    ]
    figure, axes = plt.subplots()
    table._named(axes, rows, ["digits", "letters"])
    crosses = [line.get_xydata().tolist() for line in axes.get_lines() if line.get_marker() == "x"]
    assert crosses[0] == [[pytest.approx(0.9), pytest.approx(80)]]
    assert crosses[1][1] == [pytest.approx(2.1), pytest.approx(75)]
    dots = [line.get_xydata().tolist() for line in axes.get_lines() if line.get_marker() == "o"]
    assert dots == [[[pytest.approx(0.9), 90]], [[pytest.approx(1.1), 95], [pytest.approx(2.1), pytest.approx(70)]]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["digits", "letters"]
    assert sorted(axes.get_legend_handles_labels()[1]) == ["CNN", "linear", "the paper"]
    plt.close(figure)


def test_examples_that_taught_the_network_something_are_no_test(study: Study, tmp_path: Path) -> None:
    """Digits have 400 public examples and 200 to test: all 600 are a test only where training saw none of them."""
    seen = replace(study.only(["one"]), public_was_seen=True)
    found = reproduce(seen, tmp_path / "out", 1, data_dir=None, address=None, console=Quiet())
    (row,) = found.public["rows"]
    assert row["tested_on"] == 200
    assert row["curve"][-1][1]["test"] == pytest.approx(row["each"][0], abs=1e-9)
    assert study_of("abadi-cifar10").public_was_seen


def test_some_rows_by_name_and_quick_ones(study: Study, tmp_path: Path) -> None:
    assert [row.name for row in study.only(["much"]).rows] == ["much"]
    with pytest.raises(ConfigError, match=r"small has no 'mush'; did you mean 'much'.* There are one, "):
        study.only(["mush"])
    assert [row.name for row in study_of("small", quick=True, files=[tmp_path / "rows.yaml"]).rows] == ["one"]
    named = study_of("small", quick=True, names=["much"], files=[tmp_path / "rows.yaml"])
    assert [row.name for row in named.rows] == ["much"], "who names a row gets it, quick or not"


@pytest.mark.parametrize("name", [name for name, known in studies().items() if "panels" in known])
def test_every_row_that_comes_with_it_is_a_config(name: str) -> None:
    study = study_of(name)
    assert len({row.name for row in study.rows}) == len(study.rows)
    assert {row.panel for row in study.rows} == set(study.panels)
    for row in study.rows:
        assert row.config(1).seed == 1
        assert row.curve == (study.panels[row.panel].get("kind") == "curves")
        assert row.curve or row.at is not None
        names = study.panels[row.panel].get("names")
        assert names is None or row.at in range(1, len(names) + 1)


def test_votes_are_for_teachers(tmp_path: Path) -> None:
    shown = in_process("reproduce", "abadi", "--votes", "--out", tmp_path / "out")
    assert (shown.returncode, "no stored votes" in shown.stderr) == (2, True)
    shown = in_process("reproduce", "abadi", "--rows", "paper-9", "--out", tmp_path / "out")
    assert (shown.returncode, "did you mean 'paper-" in shown.stderr) == (2, True)
