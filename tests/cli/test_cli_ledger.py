"""Budgets, mechanisms and secrets of whole runs, through the command line."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from support.command_line import in_process, pate
from support.small_data import LOGISTIC, STORED_VOTES, digits_with_votes, own_data

from pate import pipeline
from pate.config import parse_config
from pate.errors import PateError


def test_a_run_shows_and_verifies_its_ledger_and_finds_a_change(
    embedded: tuple[Path, subprocess.CompletedProcess[str]],
    tmp_path: Path,
    published: Callable[[Path], dict[str, str]],
) -> None:
    out = tmp_path / "run"
    shutil.copytree(embedded[0], out)
    asked = json.loads((out / "report.json").read_text())["queries"]["asked"]
    verified = in_process("ledger", "verify", str(out), "--json")
    assert json.loads(verified.stdout)["unchanged"]
    assert f"asked {asked} of {asked}" in in_process("ledger", "show", str(out)).stdout
    content = json.loads(in_process("ledger", "show", str(out), "--json").stdout)
    assert sum(charge["asked"] for charge in content["charges"]) == asked
    with sqlite3.connect(out / "ledger.db") as db:
        db.execute("DROP TRIGGER answers_no_update")
        query = db.execute("SELECT query FROM answers LIMIT 1").fetchone()[0]
        db.execute("UPDATE answers SET label = (label + 1) % 10 WHERE query = ?", (query,))
    changed = in_process("ledger", "verify", str(out))
    assert changed.returncode == 2
    assert "was changed" in changed.stderr
    assert in_process("ledger", "verify", str(tmp_path)).returncode == 2
    private = json.loads((out / "private" / "epsilon.json").read_text())
    text = "".join(published(out).values())
    assert private["epsilon_data_dependent"] > 0
    assert str(private["epsilon_data_dependent"])[:10] not in text  # so many digits are no coincidence


def test_runs_on_the_same_data_share_a_budget(tmp_path: Path) -> None:
    public, votes = digits_with_votes(20)
    made = in_process("ledger", "create", str(tmp_path / "configs" / "shared"), "--epsilon", "3.2")
    assert made.returncode == 0, made.stderr
    named = yaml.safe_load(made.stdout)["budget"]["ledger"]
    assert named["path"] == str(tmp_path / "configs" / "shared")

    def run(name: str, seed: int, **ledger: object) -> int:
        shared = {"ledger": {"path": "shared", "id": named["id"]} | ledger, "max_queries": 100}
        content = {"n_teachers": 20, "mechanism": {"name": "gnmax", "sigma": 20}, "seed": seed, "budget": shared}
        config = parse_config(content | STORED_VOTES | {"student": LOGISTIC})
        out = name if "://" in name else tmp_path / name
        outcome = pipeline.run(config, out, public=public, private=votes, config_dir=tmp_path / "configs", pages=False)
        return outcome.report.queries.asked

    assert run("one", 0) == 100
    assert not (tmp_path / "one" / "ledger.db").exists()
    assert 0 < run("two", 1) < 100  # it stopped where the shared budget ended
    total = json.loads(in_process("ledger", "show", str(tmp_path / "one"), "--json").stdout)
    assert 100 < sum(charge["asked"] for charge in total["charges"]) < 200
    assert len(total["runs"]) == 2
    spent = total["epsilon"]
    assert 0 < spent["left"] < 0.2 < spent["spent"] < spent["budget"] == 3.2
    assert spent["spent"] + spent["left"] == pytest.approx(3.2)
    own, shared = (in_process("ledger", "show", place).stdout for place in (tmp_path / "one", named["path"]))
    assert own == shared
    assert f"spent by all runs: ε {spent['spent']:.4g}; left: ε {spent['left']:.4g}" in shared
    with pytest.raises(PateError, match="budget"):
        run("three", 2)
    assert in_process("ledger", "verify", str(tmp_path / "two")).returncode == 0
    assert in_process("ledger", "verify", str(tmp_path / "configs" / "shared")).returncode == 0
    with pytest.raises(PateError, match="there is no shared ledger"):
        run("four", 3, path="elsewhere")
    assert not (tmp_path / "configs" / "elsewhere").exists()
    assert not (tmp_path / "four").exists()
    with pytest.raises(PateError, match=f"is the ledger {named['id']}, not ledger-00"):
        run("five", 4, id="ledger-00")
    with pytest.raises(PateError, match="stays on one machine"):
        run(f"file://{tmp_path}/six", 5)


@pytest.mark.parametrize(
    "mechanism",
    [
        {"name": "mstab", "epsilon": 1, "query_delta": 1e-7},
        {"name": "msvec", "epsilon": 40, "delta": 1e-6, "unstable": 10, "max_queries": 100},
    ],
    ids=lambda mechanism: mechanism["name"],
)
def test_a_run_by_stability(mechanism: dict[str, object], tmp_path: Path) -> None:
    content = {"n_teachers": 220, "mechanism": mechanism, "budget": {"max_queries": 30}}
    config = parse_config(content | STORED_VOTES | {"student": LOGISTIC})
    public, votes = digits_with_votes(220)
    report = pipeline.run(config, tmp_path / "run", public=public, private=votes, pages=False).report
    assert report.queries.asked == report.queries.answered == 30
    assert report.benchmark is not None
    assert report.benchmark.label_accuracy == 1.0
    assert report.privacy.sanitised is None
    assert in_process("ledger", "verify", str(tmp_path / "run")).returncode == 0


@pytest.mark.slow
def test_a_run_by_samples_of_the_records(tmp_path: Path) -> None:
    own_data(tmp_path, n_private=3000)
    mechanism = "mechanism={name: msamp, epsilon: 1, query_delta: 1e-7, sampling_rate: 0.012}"
    options = ["--set", mechanism, "--set", "n_teachers=80"]
    shown = pate("run", str(tmp_path / "own.yaml"), *options, "--out", str(tmp_path / "run"), "--json")
    assert shown.returncode == 0, shown.stderr
    queries = json.loads(shown.stdout)["queries"]
    assert 10 < queries["answered"] <= queries["asked"] <= 30
    assert pate("ledger", "verify", str(tmp_path / "run")).returncode == 0


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("mechanism={name: msvec, epsilon: 1, delta: 1e-6, unstable: 2, max_queries: 10}", "mechanism.max_queries"),
        ("mechanism={name: msvec, epsilon: 1, delta: 1e-3, unstable: 2, max_queries: 1000}", "budget.delta"),
        ("mechanism={name: mstab, epsilon: 1, query_delta: 1e-3}", "no finite ε"),
        ("budget.ledger=/tmp/nowhere.db", "must be a section"),
        ("budget.ledger={path: nowhere, id: ledger-0}", "nowhere: there is no shared ledger"),
        ("budget.sanitise={order: 5, beta: 0.4}", "must lie between"),
        ("budget.sanitise={order: 5, bta: 0.4}", "did you mean 'beta'"),
    ],
)
def test_impossible_budgets_are_one_line(setting: str, words: str, tmp_path: Path) -> None:
    shown = in_process("run", "--set", setting, "--out", str(tmp_path / "run"))
    assert shown.returncode == 2, shown.stderr
    assert words in shown.stderr
