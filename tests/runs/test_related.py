"""A run on the same private data as others says so, and what all of them cost: nobody else would."""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.command_line import Ended, in_process

from pate import GNMax, LNMax
from pate.config import parse_config
from pate.ledger import SharedBudget, SharedLedger
from pate.planning.costs import ReleaseCost, compose, worst_case_epsilon
from pate.report.schema import RelatedRuns
from pate.runs.context import _Related, _related_runs

CONFIG: dict[str, Any] = {
    "name": "pets",
    "n_teachers": 4,
    "data": {"source": "csv", "private": "private.csv", "public": "public.csv", "label": "kind", "classes": ["a", "b"]},
    "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
    "mechanism": {"name": "gnmax", "sigma": 20},
    "budget": {"max_queries": 20},
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


def report_of(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "runs" / name / "report.json").read_text())
    return content


def note_of(ended: Ended) -> str:
    (told,) = (line for line in ended.stderr.splitlines() if SAYS in line)
    return told


def test_the_second_run_names_the_first_and_says_what_both_cost(folder: Path) -> None:
    assert SAYS not in run(folder, "zebra").stderr
    assert report_of(folder, "zebra")["privacy"]["together"] is None
    alone = report_of(folder, "zebra")["privacy"]["epsilon"]
    ended = run(folder, "second")
    together = report_of(folder, "second")["privacy"]["together"]
    assert alone < together["epsilon"] < 2 * alone, "less than the sum: the noise of both is Gaussian"
    assert together["delta"] == pytest.approx(2e-5)
    assert (together["others"], together["uncounted"], together["shared_ledger"]) == (1, 0, False)
    both = f"ε = {together['epsilon']:.3g} at δ = 2e-05 together for one record"
    assert note_of(ended).startswith(f"note: {SAYS}zebra (ε = {alone:.3g}): with this run that is {both}")
    assert "`pate ledger create`" in note_of(ended)
    words = f"Together with 1 other known run on the same private data it costs ε = {together['epsilon']:.4g}"
    assert words in " ".join(ended.stdout.split())
    for page in ("privacy.txt", "report.html"):
        text = (folder / "runs" / "second" / page).read_text()
        assert words in " ".join(text.split())
    published = [*(folder / "runs" / "second").glob("*.*"), *(folder / "runs" / "second" / "student").iterdir()]
    assert published
    assert not [path for path in published if path.suffix in (".json", ".html", ".txt") and "zebra" in path.read_text()]
    assert SAYS not in run(folder, "third", "--set", "data.private=another.csv").stderr


def put(folder: Path, name: str, epsilon: float | None = None, **changes: object) -> Path:
    """A folder as a run leaves it, finished where it has an `epsilon`."""
    place = folder / "runs" / name
    (place / "private").mkdir(parents=True)
    (place / "config.yaml").write_text(json.dumps(CONFIG | changes))
    (place / "private" / "places.json").write_text(json.dumps({"data_dir": None, "config_dir": str(folder)}))
    (place / "ledger.db").touch()
    if epsilon is not None:
        (place / "report.json").write_text(json.dumps({"privacy": {"epsilon": epsilon, "delta": 1e-5}}))
    return place


def related(folder: Path, shared: SharedBudget | None = None, **changes: object) -> _Related | None:
    """What a new run, of ε 1 by itself, would know."""
    return _related_runs(parse_config(CONFIG | changes), folder / "runs" / "new", None, folder, 1.0, 1e-5, shared)


def together(found: _Related | None) -> RelatedRuns:
    assert found is not None
    return found.together


def test_a_run_that_was_killed_counts_by_its_limits(folder: Path) -> None:
    """It has charged something, and nobody knows how much."""
    put(folder, "killed")
    killed = together(related(folder))
    shutil.rmtree(folder / "runs" / "killed")
    put(folder, "ended", epsilon=1.0)
    assert together(related(folder)) == killed
    assert killed.others == 1


def test_a_baseline_counts_by_what_it_published(folder: Path) -> None:
    baseline = {"baseline": {"name": "dp_erm"}, "budget": {"epsilon": 0.5}, "records": 100}
    place = put(folder, "erm", epsilon=0.5)
    (place / "config.yaml").write_text(json.dumps({key: CONFIG[key] for key in ("name", "data")} | baseline))
    assert together(related(folder)).epsilon == pytest.approx(1.5)
    put(folder, "zebra", epsilon=1.0)
    two = together(related(folder))
    assert two.others == 2
    assert 1.5 < two.epsilon < 2.5, "those that have Rényi costs compose by them"


def test_a_baseline_is_told_of_a_run(folder: Path) -> None:
    put(folder, "zebra", epsilon=1.0)
    baseline = {"baseline": {"name": "dp_erm"}, "budget": {"epsilon": 0.5}, "records": 100}
    (folder / "erm.yaml").write_text(json.dumps({key: CONFIG[key] for key in ("name", "data")} | baseline))
    ended = in_process("baseline", folder / "erm.yaml", "--out", folder / "runs" / "erm")
    assert ended.returncode == 0, ended.stderr
    found = report_of(folder, "erm")["privacy"]["together"]
    assert (found["epsilon"], found["delta"]) == (pytest.approx(1.5), pytest.approx(1e-5))
    assert "zebra (ε = 1)" in note_of(ended)


@pytest.mark.parametrize(
    ("first", "second", "unit"), [("who", "who", "id"), ("who", None, "record"), (None, "who", "record")]
)
def test_what_protects_an_id_and_what_a_record_protect_a_record_together(
    first: str | None, second: str | None, unit: str, folder: Path
) -> None:
    put(folder, "zebra", epsilon=1.0, data={**CONFIG["data"], "id": first})
    assert together(related(folder, data={**CONFIG["data"], "id": second})).unit == unit


def test_a_shared_ledger_counts_as_its_budget_with_those_outside_of_it(folder: Path) -> None:
    budget = SharedBudget(order=8.0, epsilon=8.0, delta=1e-5)
    made = SharedLedger.create(folder / "shared", budget)
    own = {"budget": {"max_queries": 20, "ledger": {"path": str(folder / "shared"), "id": made.id}}}
    put(folder, "inside", epsilon=1.0, **own)
    found = related(folder, budget, **own)
    assert (found and found.note) is None, "those that share it are counted by it"
    assert together(found) == RelatedRuns(
        epsilon=8.0, delta=1e-5, others=0, uncounted=0, shared_ledger=True, unit="record"
    )
    put(folder, "zebra", epsilon=1.0)
    found = related(folder, budget, **own)
    assert found is not None
    assert "used by zebra (ε = 1): with all runs of the shared ledger that is ε = 9 at δ = 2e-05" in (found.note or "")
    assert found.together.epsilon == pytest.approx(9)
    ended = run(folder, "third", "--set", f"budget.ledger={json.dumps(own['budget']['ledger'])}")
    assert report_of(folder, "third")["privacy"]["together"]["epsilon"] == pytest.approx(9)
    assert "zebra" in note_of(ended)


def test_a_folder_beside_it_that_is_no_run_stops_nothing(folder: Path) -> None:
    put(folder, "zebra", epsilon=1.0)
    for name, text in (("broken", "data: ["), ("other", "name: x"), ("list", "- 1")):
        place = put(folder, name)
        (place / "config.yaml").write_text(text)
        (place / "private" / "places.json").write_text("[]")
    for number, privacy in enumerate(({"epsilon": "NaN", "delta": 1e-5}, {"epsilon": -1, "delta": 2}, [], {})):
        (put(folder, f"odd{number}") / "report.json").write_text(json.dumps({"privacy": privacy}))
    found = related(folder)
    assert found is not None
    assert any(name.startswith("zebra (") for name in found.named)
    assert math.isfinite(found.together.epsilon)


def test_a_folder_beside_it_runs_no_code_and_tells_what_it_can(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crafted = put(folder, "crafted", mechanism={"name": "evil.Mechanism"})
    (crafted / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    (crafted / "private" / "places.json").write_text(json.dumps({"data_dir": str(folder), "config_dir": str(crafted)}))
    monkeypatch.syspath_prepend(crafted)  # even if it could be imported
    found = related(folder)
    assert found is not None
    assert found.named == ("crafted",)
    assert "of 1 the cost is not known" in (found.note or "")
    assert not (folder / "ran").exists()
    assert "evil" not in sys.modules


known = st.sampled_from([GNMax(20), GNMax(40), LNMax(20)])  # few, since each bound is worked out once


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(known, st.integers(1, 300)), min_size=1, max_size=4))
def test_together_they_cost_no_more_than_their_sum_and_no_less_than_any_alone(runs: list[Any]) -> None:
    delta = 1e-6
    parts = []
    for mechanism, asked in runs:
        found = mechanism.worst_case(asked, asked)
        parts.append(ReleaseCost(found.by_renyi().epsilon(delta), delta, found, asked * mechanism.noise_draws(2)))
    epsilon, joint_delta = compose(parts)
    assert joint_delta == pytest.approx(delta * len(parts))
    assert epsilon <= sum(part.epsilon for part in parts) * (1 + 1e-9)
    for mechanism, asked in runs:
        # what one of them costs at the joint δ, by its Rényi costs as well: more releases never cost less
        alone = mechanism.worst_case(asked, asked).by_renyi().epsilon(joint_delta)
        assert epsilon >= alone * (1 - 1e-2)


def test_gaussian_releases_compose_as_one_with_less_noise() -> None:
    """n runs with noise σ are one run with n times the queries: the same Rényi costs."""
    many = [ReleaseCost(9.0, 1e-6, GNMax(40).worst_case(50, 50), 50 * 2) for _ in range(3)]
    at_once = worst_case_epsilon(GNMax(40), 150, delta=3e-6, n_classes=2, roughly=True)
    assert compose(many)[0] == pytest.approx(at_once, rel=1e-3)


def test_a_baseline_with_ids_is_two_steps_for_one_record() -> None:
    """One record less of a person puts another of theirs in its place."""
    from pate.config import BaselineConfig, parse_config
    from pate.runs.context import _cost

    data = {"source": "csv", "private": "a.csv", "public": "b.csv", "label": "y", "classes": [0, 1]}
    content = {"name": "b", "data": data, "records": 99, "baseline": {"name": "dp_erm"}, "budget": {"epsilon": 1}}
    alone = _cost(parse_config(content, BaselineConfig), (1.0, 1e-6))
    assert (alone.epsilon, alone.delta) == (1.0, 1e-6)
    person = _cost(parse_config(content | {"data": data | {"id": "who"}}, BaselineConfig), (1.0, 1e-6))
    assert person.epsilon == 2.0
    assert person.delta == pytest.approx(1e-6 * (1 + math.e))
