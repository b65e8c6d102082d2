"""`pate plan --records`: what it recommends keeps to ε, can be run, and says what it can answer."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest
import yaml
from support.command_line import in_process

from pate.config import parse_config
from pate.errors import ConfigError
from pate.mechanisms import build
from pate.planning.plan import Workload, epsilon_of, recommend, shared_budget, solve_queries, usual_delta
from pate.voters import voters_of
from pate.voters.teachers._trials import TeachersChoice

DATA = {"source": "csv", "private": "a.csv", "public": "b.csv", "label": "kind", "classes": ["cat", "dog"]}


@pytest.mark.parametrize(("records", "voters"), [(20_000, "teachers"), (5_000, "neighbours")])
def test_every_choice_keeps_to_the_target_as_a_run_would_count_it(records: int, voters: str) -> None:
    found = recommend(records, 2, 2.0, 1e-6)
    assert found.choice.voters == voters
    assert len(found.others) >= 3
    order = 8.0
    for choice in (found.choice, *found.others):
        content = {"data": DATA | {"public_record_count": records}, "student": {"name": "supervised"}}
        content |= choice.settings(1e-6)
        if choice.voters == "teachers":
            content["teachers"] = [{"name": "sklearn.naive_bayes.GaussianNB"}]
        run = voters_of(parse_config(content))
        assert 0.9 * choice.epsilon < run.publishable_epsilon(2) <= choice.epsilon * (1 + 1e-9) <= 2.0 * (1 + 1e-9)
        limits = run.limits(order)
        charged = limits.max_queries * limits.rdp_asked + limits.max_answers * limits.rdp_answered
        assert choice.rdp(order) == pytest.approx(charged, rel=1e-9)


def test_a_choice_asks_about_public_examples_alone_and_wastes_no_budget() -> None:
    """Where it asks fewer than there are examples, a few more would not be paid for."""
    for records, n_public in ((20_000, None), (20_000, 300), (1_000, None)):
        found = recommend(records, 2, 2.0, 1e-6, n_public)
        for choice in (found.choice, *found.others):
            most = min(2_000, n_public or 2_000)
            assert choice.labels <= choice.asked <= most
            assert choice.records_each == records // (choice.n_teachers or choice.asked)
            mechanism = build(choice.mechanism, choice.n_teachers)
            if choice.voters == "teachers" and choice.asked < most:
                more = math.ceil(1.1 * choice.asked)
                workload = Workload(more, None if choice.answered is None else more // 2, 1e-6, 2)
                assert epsilon_of(mechanism, workload, roughly=True) > 2
            elif choice.voters == "neighbours":
                assert choice.asked <= (n_public or 4_000) / 4
                needed = mechanism.teachers_needed(0.95, 2)
                assert needed is not None
                assert choice.records_each > 2 * needed


@pytest.mark.parametrize("records", [20_000, 5_000])
def test_a_shared_budget_has_room_for_so_many_runs_and_not_for_twice_as_many(records: int) -> None:
    choice = recommend(records, 2, 1.0, 1e-6).choice
    for runs in (1, 4):
        budget = shared_budget(choice, 1e-6, runs)
        assert budget is not None
        cost = choice.rdp(budget.order)
        assert runs * cost <= budget.rdp < 2 * runs * cost
        assert budget.epsilon_of(runs * cost) <= budget.epsilon
        assert budget.delta == 1e-6


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
    test = {"name": "confident_gnmax", "threshold": 30, "sigma1": 90, "sigma2": 20}
    mechanism, workload = solve_queries(test, 2.0, Workload(1, 10, 1e-5, 2))
    assert workload.max_answers == 10  # a limit on answers stays
    assert epsilon_of(mechanism, workload) <= 2
    assert workload.max_queries > 1.3 * solve_queries(test, 2.0, Workload(1, None, 1e-5, 2))[1].max_queries
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
    for options, n_public in (([], None), (["--public", 300], 300)):
        given = ["--records", 20_000, "--target-epsilon", 2, "--classes", 2, "--delta", 1e-6, *options]
        shown, found = (
            json.loads(in_process("plan", *given, "--json").stdout),
            recommend(20_000, 2, 2.0, 1e-6, n_public),
        )
        assert shown["recommended"] == asdict(found.choice)
        assert shown["config"] == found.choice.settings(1e-6)
        assert shown["alternatives"] == [asdict(other) for other in found.others]
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
