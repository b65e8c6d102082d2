"""From a config's budget to what may be published about its cost: what a plan says, a run publishes and charges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.command_line import Ended, in_process
from support.small_data import LOGISTIC, own_data

from pate.accounting.composition import SAMPLER_SHARES, RdpGuarantee
from pate.accounting.sanitise import WithRelease
from pate.accounting.worst_case import WorstCaseGuarantee
from pate.config import Config, parse_config
from pate.errors import ConfigError
from pate.ledger import SharedBudget, SharedLedger
from pate.mechanisms import mechanism_class, mechanism_classes
from pate.planning.costs import worst_case_epsilon
from pate.report._files import read_report
from pate.runs._run_ledger import ledger_opener
from pate.runs.run import Run
from pate.voters import kind_names, voters_of

MECHANISMS: dict[str, dict[str, Any]] = {
    "lnmax": {"scale": 8},
    "gnmax": {"sigma": 9},
    "confident_gnmax": {"threshold": 30, "sigma1": 12, "sigma2": 9},
    "histogram": {"scale": 4},
    "permute_and_flip": {"scale": 6},
    "mstab": {"epsilon": 0.1, "query_delta": 1e-9},
    "gaussian_mstab": {"sigma": 9, "query_delta": 1e-9},
    "msamp": {"epsilon": 0.1, "query_delta": 1e-9, "sampling_rate": 0.1},
    "gaussian_msamp": {"sigma": 9, "query_delta": 1e-9, "sampling_rate": 0.1},
    "msvec": {"epsilon": 1, "unstable": 5, "max_queries": 60, "delta": 1e-7},
    "lecture_msvec": {"epsilon": 1, "unstable": 5, "max_queries": 60, "delta": 1e-7},
}
LIMITS = {"max_queries": 16, "max_answers": 3, "delta": 1e-6}
KINDS: dict[str, dict[str, Any]] = {
    "teachers": {"teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}], "n_teachers": 50, "budget": LIMITS},
    "stored": {"stored": {"file": "given.npy"}, "n_teachers": 50, "budget": LIMITS},
    "neighbours": {"neighbours": {"cells": 5, "votes_per_record": 2}, "budget": {"delta": 1e-6}},
}
FIGURE = {"order": 8.0, "beta": 0.02, "sigma_ss": 4.0}


def content_of(kind: str, mechanism: str, **changes: Any) -> dict[str, Any]:
    """A config on the table of `own_data`; with a limit on answers where a mechanism may give fewer than are asked."""
    named = {"name": mechanism, **MECHANISMS[mechanism]}
    files = {"private": "private.csv", "public": "public.csv", "test": "test.csv"}
    data = {"source": "csv", **files, "label": "kind", "id": "who", "classes": ["cat", "dog"]}
    whole = {"name": "planned", "data": data, "student": LOGISTIC, "mechanism": named, "backend": "local"}
    content = whole | {"voters": kind, **KINDS[kind]} | changes
    if not mechanism_class(named).may_decline:
        content["budget"] = {key: value for key, value in content["budget"].items() if key != "max_answers"}
    return content


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planned")
    own_data(folder)
    np.save(folder / "given.npy", np.tile([50, 0], (40, 1)))
    return folder


def with_config(folder: Path, content: dict[str, Any], command: str, *options: object) -> Ended:
    (folder / "config.yaml").write_text(yaml.safe_dump(content))
    return in_process(command, folder / "config.yaml", *options)


def test_every_mechanism_and_every_kind_of_voters_is_planned_here() -> None:
    assert set(MECHANISMS) == {cls.name for cls in mechanism_classes()}
    assert set(KINDS) == set(kind_names())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_plan_says_what_a_run_of_the_config_publishes_and_is_limited_to(
    mechanism: str, kind: str, folder: Path
) -> None:
    """Or both refuse it, in the same words."""
    content = content_of(kind, mechanism)
    ended = with_config(folder, content, "plan", "--json")
    if ended.returncode:
        with pytest.raises(ConfigError) as caught:
            parse_config(content)
        assert str(caught.value).partition(":")[2] in ended.stderr
        return
    voters = voters_of(parse_config(content))
    planned, (asked, answered) = json.loads(ended.stdout), voters.query_limits
    assert planned["epsilon"] == voters.publishable_epsilon(2)
    assert planned["delta"] == 1e-6
    if kind == "neighbours":
        assert sum(one["cells"] for one in planned["rounds"]) == asked
    else:
        assert (planned["max_queries"], planned["max_answers"] or asked) == (asked, answered)
        assert (asked, answered) == (16, 3 if voters.mechanism.may_decline else 16)
        assert planned["unanimous"]["n_teachers"] == 50
        assert (voters.limits().max_queries, voters.limits().max_answers) == (asked, answered)


RUNS = {
    "teachers, confident_gnmax": {},
    "teachers, lnmax": {"teacher_rounds": [{"queries": 9}, {"queries": 3}], "budget": {"delta": 1e-6}},
    "teachers, gnmax": {"budget": LIMITS | {"sanitise": FIGURE}},
    "stored, permute_and_flip": {},
    "neighbours, histogram": {},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_publishes_and_is_held_to_what_its_plan_said(name: str, folder: Path, tmp_path: Path) -> None:
    """Also with a sanitised figure, whose cost is part of what is published, and with rounds."""
    content, out = content_of(*name.split(", "), **RUNS[name]), tmp_path / "run"
    planned = json.loads(with_config(folder, content, "plan", "--json").stdout)
    ended = with_config(folder, content, "run", "--out", out)
    assert ended.returncode == 0, ended.stderr
    privacy = read_report(out).privacy
    assert (privacy.epsilon, privacy.delta) == (planned["epsilon"], planned["delta"])
    ledger = json.loads(in_process("ledger", "show", out, "--json").stdout)
    (limits,), charges = ledger["runs"], ledger["charges"]
    if "max_queries" in planned:
        assert sum(one["asked"] for one in charges) <= limits["max_queries"] == planned["max_queries"]
        assert sum(one["answered"] for one in charges) <= limits["max_answers"]
        assert limits["max_answers"] == (planned["max_answers"] or planned["max_queries"])
    else:
        assert limits["max_queries"] == len(planned["rounds"]) == len(charges)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_shared_ledger_charges_what_the_limits_cost(mechanism: str, kind: str) -> None:
    try:
        voters = voters_of(parse_config(content_of(kind, mechanism)))
    except ConfigError:
        return
    for order in (2.0, 8.0):
        guarantee = voters.guarantee()
        if not isinstance(guarantee, RdpGuarantee) or voters.mechanism.priced_as_stream:
            with pytest.raises(ConfigError, match="cannot use a shared ledger"):
                voters.limits(order)
            continue
        limits = voters.limits(order)
        charged = limits.max_queries * limits.rdp_asked + limits.max_answers * limits.rdp_answered
        assert charged == pytest.approx(guarantee.rdp_at(order), rel=1e-6)


def test_a_shared_ledger_charges_rounds_of_unlike_noise_as_much_as_they_cost_at_least() -> None:
    rounds = [{"cells": 5, "scale": 9.0}, {"cells": 7, "scale": 3.0}, {"cells": 4, "scale": 9.0}]
    voters = voters_of(parse_config(content_of("neighbours", "lnmax", neighbours={"rounds": rounds})))
    limits, guarantee = voters.limits(8.0), voters.guarantee()
    assert isinstance(guarantee, RdpGuarantee)
    assert limits.max_queries == limits.max_answers == 3  # a round is one charge
    assert 3 * (limits.rdp_asked + limits.rdp_answered) >= guarantee.rdp_at(8.0)


@pytest.mark.parametrize("kind", KINDS)
def test_of_several_runs_each_counts_with_its_own_delta_and_all_its_draws(kind: str) -> None:
    voters = voters_of(parse_config(content_of(kind, "gnmax")))
    part, per_query = voters.part(2), voters.mechanism.noise_draws(2)
    assert part.delta == 1e-6
    assert part.epsilon >= voters.publishable_epsilon(2)
    assert part.draws > voters.query_limits[0] * per_query


def test_training_is_timed_by_the_public_number_of_records_of_one_part(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are 300 records, which is not for the terminal; what the config says, anybody may know."""
    monkeypatch.setattr("pate.voters.teachers._trials.expected_seconds", lambda config, X, n, n_classes: n)
    content = content_of("teachers", "lnmax")
    for count, seconds in ((None, None), (200, 4)):
        content["data"] = content["data"] | ({} if count is None else {"public_record_count": count})
        planned = json.loads(with_config(folder, content, "plan", "--json").stdout)
        assert planned["seconds_of_training"] == seconds


def test_a_target_is_kept_to_by_the_rounds_of_a_plan(folder: Path) -> None:
    content = content_of("neighbours", "gnmax")
    planned = json.loads(with_config(folder, content, "plan", "--target-epsilon", 3, "--json").stdout)
    sigma = float(planned["rounds"][0]["mechanism"].removeprefix("GNMax(sigma=").removesuffix(")"))
    content["mechanism"] = content["mechanism"] | {"sigma": sigma}
    run = voters_of(parse_config(content)).publishable_epsilon(2)
    assert run == pytest.approx(planned["epsilon"], rel=1e-3)
    assert 2.98 < planned["epsilon"] <= 3


@pytest.mark.parametrize("mechanism", ["lnmax", "gnmax", "mstab"])
def test_a_target_is_kept_to_by_a_run_of_the_plan(mechanism: str, folder: Path) -> None:
    content = content_of("teachers", mechanism)
    free = str(mechanism_class({"name": mechanism}).free_parameter)
    planned = json.loads(with_config(folder, content, "plan", "--target-epsilon", 3, "--json").stdout)
    content["mechanism"] = content["mechanism"] | {free: planned["mechanism"][free]}
    assert 2.8 < planned["epsilon"] == voters_of(parse_config(content)).publishable_epsilon(2) <= 3


def test_options_stand_for_keys_of_the_config_that_is_planned(folder: Path) -> None:
    """The mechanism's own too, for every kind; what the config alone can say is refused, not left out."""
    for kind, option, value in (("stored", "scale", 11), ("neighbours", "scale", 7), ("teachers", "max_answers", 5)):
        content = content_of(kind, "lnmax" if kind != "teachers" else "confident_gnmax")
        planned = json.loads(
            with_config(folder, content, "plan", f"--{option.replace('_', '-')}", value, "--json").stdout
        )
        section = "budget" if option in LIMITS else "mechanism"
        content[section] = content[section] | {option: value}
        assert planned["epsilon"] == voters_of(parse_config(content)).publishable_epsilon(2)
    for refused in (["--teachers", 9], ["--classes", 3], ["--mechanism", "gnmax", "--sigma", 4]):
        ended = with_config(folder, content_of("stored", "lnmax"), "plan", *refused)
        assert ended.returncode == 2
        assert f"{refused[0]} {refused[1]}: " in ended.stderr


def test_a_target_that_the_sanitised_figure_would_break_is_refused(folder: Path) -> None:
    content = content_of("teachers", "gnmax", budget=LIMITS | {"sanitise": FIGURE})
    ended = with_config(folder, content, "plan", "--target-epsilon", 3)
    assert ended.returncode == 2
    assert "--target-epsilon 3: does not count the figure of budget.sanitise" in ended.stderr


def config_of(mechanism: str, **budget: Any) -> Config:
    return parse_config(content_of("teachers", mechanism, budget=LIMITS | budget))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_curves_end_at_the_publishable_epsilon(mechanism: str) -> None:
    voters = voters_of(config_of(mechanism))
    curves = voters.epsilon_curves(2)
    assert curves is not None
    first, *others = curves.values()
    assert list(first)[:: len(first) - 1] == [1, 16]
    assert first[16] == pytest.approx(voters.publishable_epsilon(2), rel=1e-9)
    assert (np.diff(list(first.values())) >= 0).all()
    for other in others:
        assert all(first[n] <= other[n] for n in first)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_samplers_error_is_part_of_what_is_published(mechanism: str) -> None:
    config = config_of(mechanism)
    worst_case, delta = config.build_mechanism().worst_case(*voters_of(config).query_limits), config.budget.delta
    at_what_is_left = worst_case.epsilon(delta * (1 - SAMPLER_SHARES[0]))
    assert voters_of(config).publishable_epsilon(2) == at_what_is_left >= worst_case.epsilon(delta)


@pytest.mark.parametrize("mechanism", ["gnmax", "lnmax"])
def test_a_sanitised_figure_is_part_of_what_is_published(mechanism: str) -> None:
    """At its order; the curves, which leave it out, are Rényi's at that order too."""
    config, plain = config_of(mechanism, sanitise=FIGURE), config_of(mechanism)
    labels, delta = config.build_mechanism().worst_case(16, 16), config.budget.delta
    assert isinstance(labels, WorstCaseGuarantee)
    together = WithRelease.of(labels, 8.0, 0.02, 4.0, delta)
    epsilon = voters_of(config).publishable_epsilon(2)
    assert epsilon == together.epsilon(delta * (1 - SAMPLER_SHARES[0])) > voters_of(plain).publishable_epsilon(2)
    at_one_order, closed_form = (voters_of(config).epsilon_curves(2) or {}).values()
    assert worst_case_epsilon(config.build_mechanism(), 16, 16, delta) < at_one_order[16] <= closed_form[16]


def test_a_budget_is_kept_and_says_how_many_queries_fit() -> None:
    def cost(**budget: Any) -> float:
        return voters_of(config_of("gnmax", **budget)).publishable_epsilon(2)

    of_9, of_10, of_12 = (cost(max_queries=n) for n in (9, 10, 12))
    with pytest.raises(ConfigError, match=" 9 would fit"):
        cost(max_queries=12, epsilon=(of_9 + of_10) / 2)
    with pytest.raises(ConfigError, match="would fit"):
        cost(max_queries=12, epsilon=0.999 * of_12)
    assert cost(max_queries=12, epsilon=1.001 * of_12) == of_12


def test_a_shared_ledger_has_set_delta_aside_for_so_much_noise_only(tmp_path: Path) -> None:
    shared = SharedLedger.create(tmp_path / "joint", SharedBudget(order=8.0, epsilon=20.0, delta=1e-5))
    config = config_of("gnmax", ledger={"path": "joint", "id": shared.id})
    with Run.create(tmp_path / "run", config, resume=False) as directory:
        limits = ledger_opener(voters_of(config), directory, tmp_path)().limits
    assert limits == voters_of(config).limits(order=8.0)
    assert limits.rdp_answered > 0
    assert voters_of(config).publishable_epsilon(10) > 0
    with pytest.raises(ConfigError, match=r"budget\.ledger: this run draws noise"):
        voters_of(config).publishable_epsilon(2**40 // 16)
