"""`pate plan --records`: what it recommends keeps to ε, can be run, and says what it can answer."""

from __future__ import annotations

import json

import pytest
import yaml
from support.command_line import in_process

from pate.config import parse_config
from pate.errors import ConfigError
from pate.planning.plan import Workload, epsilon_of, recommend, solve_queries, usual_delta
from pate.voters import voters_of
from pate.voters.teachers._trials import TeachersChoice

DATA = {"source": "csv", "private": "a.csv", "public": "b.csv", "label": "kind", "classes": ["cat", "dog"]}


@pytest.mark.parametrize(("records", "voters"), [(20_000, "teachers"), (5_000, "neighbours")])
def test_every_choice_keeps_to_the_target_as_a_run_would_count_it(records: int, voters: str) -> None:
    found = recommend(records, 2, 2.0, 1e-6)
    assert found.choice.voters == voters
    assert len(found.others) >= 3
    for choice in (found.choice, *found.others):
        content = {"data": DATA | {"public_record_count": records}, "student": {"name": "supervised"}}
        content |= choice.settings(1e-6)
        if choice.voters == "teachers":
            content["teachers"] = [{"name": "sklearn.naive_bayes.GaussianNB"}]
        published = voters_of(parse_config(content)).publishable_epsilon(2)
        assert 0.9 * choice.epsilon < published <= choice.epsilon * (1 + 1e-9) <= 2.0 * (1 + 1e-9)


def test_noise_is_chosen_so_that_four_of_five_teachers_win() -> None:
    choice = recommend(20_000, 2, 2.0, 1e-6).choice
    assert isinstance(choice, TeachersChoice)
    by_share = choice.chances(2)
    assert by_share[0.8][1] == pytest.approx(0.95, abs=0.01)
    assert by_share[1.0][1] > 0.99
    assert choice.records_each >= 80


def test_queries_are_solved_for_where_the_noise_is_given() -> None:
    mechanism, workload = solve_queries({"name": "gnmax", "sigma": 30}, 1.5, Workload(1, None, 1e-5, 2))
    assert epsilon_of(mechanism, workload) <= 1.5
    assert epsilon_of(mechanism, Workload(int(1.02 * workload.max_queries) + 1, None, 1e-5, 2)) > 1.5
    with pytest.raises(ConfigError, match="too small for one query"):
        solve_queries({"name": "lnmax", "scale": 2}, 0.5, Workload(1, None, 1e-5, 2))


def test_what_is_out_of_reach_is_said() -> None:
    with pytest.raises(ConfigError, match="out of reach with 100 records"):
        recommend(100, 10, 0.1, 1e-6)
    with pytest.raises(ConfigError, match=r"delta = 0\.001: more than one over the about 20,000"):
        recommend(20_000, 2, 2.0, 1e-3)
    assert usual_delta(20_000) == 1e-6


def test_on_the_command_line() -> None:
    ended = in_process("plan", "--records", 5000, "--target-epsilon", 2, "--classes", 2)
    assert ended.returncode == 0
    _, _, rest = ended.stdout.partition("paste into the config:")
    pasted = yaml.safe_load(rest.partition("alternatives")[0])
    content = json.loads(in_process("plan", "--records", 5000, "--target-epsilon", 2, "--classes", 2, "--json").stdout)
    assert pasted == content["config"]
    assert pasted["voters"] == "neighbours"
    assert "62 teachers" in rest
    solved = in_process("plan", "--mechanism", "gnmax", "--sigma", 30, "--target-epsilon", 1.5, "--json")
    assert json.loads(solved.stdout)["mechanism"]["sigma"] == 30
    assert json.loads(solved.stdout)["max_queries"] > 50


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--records", 100], "--records: needs --target-epsilon"),
        (["--records", 100, "--target-epsilon", 1, "--sigma", 5], "leave out --sigma, or --records"),
        (["--records", 0, "--target-epsilon", 1], "--records 0: must be a whole number"),
        (["--records", 100, "--target-epsilon", -1], "--target-epsilon -1"),
        (
            ["--mechanism", "gnmax", "--sigma", 5, "--target-epsilon", 1, "--max-queries", 9],
            "leave out one of the three",
        ),
    ],
)
def test_mistakes(arguments: list[object], words: str) -> None:
    ended = in_process("plan", *arguments)
    assert ended.returncode == 2
    assert words in ended.stderr
