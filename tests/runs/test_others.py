"""A second run on the same private data is told of the first: their ε add up, and nobody else would say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Ended, in_process

from pate.ledger import SharedBudget
from pate.ledger.shared import create

CONFIG: dict[str, Any] = {
    "name": "pets",
    "n_teachers": 4,
    "data": {"source": "csv", "private": "private.csv", "public": "public.csv", "label": "kind", "classes": ["a", "b"]},
    "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
    "mechanism": {"name": "gnmax", "sigma": 20},
    "budget": {"asked": 20},
    "student": {"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}},
    "backend": "local",
}
SAYS = "the same private data was used by "


def run(folder: Path, out: str, *further: str) -> Ended:
    ended = in_process("run", folder / "pets.yaml", "--out", folder / "runs" / out, *further)
    assert ended.returncode == 0, ended.stderr
    return ended


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [f"{i % 2 + i / 1000},{i % 7}" for i in range(100)]
    labelled = [f"{row},{'ab'[i % 2]}" for i, row in enumerate(rows)]
    for name in ("private.csv", "another.csv"):
        (tmp_path / name).write_text("\n".join(["x,z,kind", *labelled]) + "\n")
    (tmp_path / "public.csv").write_text("\n".join(["x,z", *rows[:30]]) + "\n")
    (tmp_path / "pets.yaml").write_text(json.dumps(CONFIG))
    return tmp_path


def test_the_second_run_names_the_first_and_its_epsilon(folder: Path) -> None:
    assert SAYS not in run(folder, "zebra").stderr
    report = json.loads((folder / "runs" / "zebra" / "report.json").read_text())
    (told,) = (line for line in run(folder, "second").stderr.splitlines() if SAYS in line)
    assert told.startswith(f"note: {SAYS}zebra (ε = {report['privacy']['epsilon']:.3g}): ε of runs on the same data")
    assert "`pate ledger create`" in told
    published = [*(folder / "runs" / "second").glob("*.*"), *(folder / "runs" / "second" / "student").iterdir()]
    assert published
    assert not [path for path in published if path.suffix in (".json", ".html", ".txt") and "zebra" in path.read_text()]
    assert SAYS not in run(folder, "third", "--set", "data.private=another.csv").stderr


def test_who_shares_a_ledger_is_not_told(folder: Path) -> None:
    run(folder, "zebra")
    made = create(folder / "shared", SharedBudget(order=8.0, epsilon=8.0, delta=1e-5))
    shared = f"budget.ledger={{path: {folder / 'shared'}, id: {made.id}}}"
    assert SAYS not in run(folder, "second", "--set", shared).stderr


def test_a_folder_beside_it_that_is_no_run_stops_nothing(folder: Path) -> None:
    run(folder, "zebra")
    for name, text in (("broken", "data: ["), ("other", "name: x"), ("list", "- 1")):
        (folder / "runs" / name / "private").mkdir(parents=True)
        (folder / "runs" / name / "config.yaml").write_text(text)
        (folder / "runs" / name / "ledger.db").touch()
        (folder / "runs" / name / "private" / "places.json").write_text("[]")
    assert f"{SAYS}zebra (" in run(folder, "second").stderr
