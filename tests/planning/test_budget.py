"""From a config's budget to what may be published about its cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate.accounting.composition import SAMPLER_SHARES
from pate.accounting.sanitise import WithRelease
from pate.config import Config, parse_config
from pate.errors import ConfigError
from pate.ledger import SharedBudget, SharedLedger
from pate.planning.costs import worst_case_epsilon
from pate.runs._run_ledger import ledger_opener
from pate.runs.run import Run
from pate.voters import voters_of

_MECHANISMS: list[dict[str, Any]] = [
    {"name": "lnmax", "scale": 8},
    {"name": "gnmax", "sigma": 9},
    {"name": "confident_gnmax", "threshold": 30, "sigma1": 12, "sigma2": 9},
    {"name": "mstab", "epsilon": 0.1, "query_delta": 1e-8},
    {"name": "msamp", "epsilon": 0.1, "query_delta": 1e-8, "sampling_rate": 0.1},
    {"name": "msvec", "epsilon": 1, "unstable": 5, "max_queries": 60, "delta": 1e-6},
]


def config_of(mechanism: dict[str, Any], **budget: Any) -> Config:
    return parse_config(
        {
            "n_teachers": 50,
            "data": {"source": "digits"},
            "teachers": [{"name": "sklearn.svm.SVC"}],
            "mechanism": mechanism,
            "budget": {"max_queries": 40, "max_answers": 30, **budget},
            "student": {"name": "supervised"},
        }
    )


@pytest.mark.parametrize("settings", _MECHANISMS, ids=lambda settings: settings["name"])
def test_curves_end_at_the_publishable_epsilon(settings: dict[str, Any]) -> None:
    voters = voters_of(config_of(settings))
    curves = voters.epsilon_curves(10)
    assert curves is not None
    epsilon = voters.publishable_epsilon(10)
    first, *others = curves.values()
    assert next(iter(first)) == 1
    assert list(first)[-1] == 40
    assert first[40] == pytest.approx(epsilon, rel=1e-9)
    assert (np.diff(list(first.values())) >= 0).all()
    for other in others:
        assert all(first[n] <= other[n] for n in first)


@pytest.mark.parametrize("settings", _MECHANISMS, ids=lambda settings: settings["name"])
def test_the_samplers_error_is_part_of_what_is_published(settings: dict[str, Any]) -> None:
    config = config_of(settings)
    mechanism, delta = config.build_mechanism(), config.budget.delta
    at_what_is_left = mechanism.worst_case(40, 30).epsilon(delta * (1 - SAMPLER_SHARES[0]))
    assert voters_of(config).publishable_epsilon(10) == at_what_is_left >= mechanism.worst_case(40, 30).epsilon(delta)


@pytest.mark.parametrize("settings", [{"name": "gnmax", "sigma": 20}, {"name": "lnmax", "scale": 10}], ids=str)
def test_curves_of_a_run_with_a_sanitised_figure_are_renyis_at_its_order(settings: dict[str, Any]) -> None:
    config = config_of(settings, max_answers=40, sanitise={"order": 10, "beta": 0.01, "sigma_ss": 10})
    curves = voters_of(config).epsilon_curves(10)
    assert curves is not None
    at_one_order = curves["for every data set, as counted here"]
    assert at_one_order[40] <= curves["for every data set, closed form"][40]
    assert at_one_order[40] > worst_case_epsilon(config.build_mechanism(), 40, None, config.budget.delta)


def test_a_sanitised_figure_is_part_of_what_is_published() -> None:
    gnmax, figure = {"name": "gnmax", "sigma": 20}, {"order": 8.0, "beta": 0.02, "sigma_ss": 4.0}
    config = config_of(gnmax, sanitise=figure)
    mechanism, delta = config.build_mechanism(), config.budget.delta
    together = WithRelease.of(mechanism.worst_case(40, 30), 8.0, 0.02, 4.0, delta)  # type: ignore[arg-type]
    epsilon = voters_of(config).publishable_epsilon(10)
    assert epsilon == together.epsilon(delta * (1 - SAMPLER_SHARES[0]))
    assert epsilon > voters_of(config_of(gnmax)).publishable_epsilon(10)


def test_a_budget_is_kept_and_says_how_many_queries_fit() -> None:
    def cost(**budget: Any) -> float:
        return voters_of(config_of(_MECHANISMS[1], **budget)).publishable_epsilon(10)

    of_17, of_18, of_20 = (cost(max_queries=n) for n in (17, 18, 20))
    with pytest.raises(ConfigError, match=" 17 would fit"):
        cost(max_queries=20, epsilon=(of_17 + of_18) / 2)
    with pytest.raises(ConfigError, match="would fit"):
        cost(max_queries=20, epsilon=0.999 * of_20)
    assert cost(max_queries=20, epsilon=1.001 * of_20) == of_20


@pytest.mark.parametrize(("mechanism", "charged"), [(_MECHANISMS[2], "rdp_asked"), (_MECHANISMS[1], "rdp_answered")])
def test_a_shared_ledger_charges_tests_and_answers(mechanism: dict, charged: str, tmp_path: Path) -> None:
    """A test before each answer pays for both; without one, the answer pays."""
    shared = SharedLedger.create(tmp_path / "joint", SharedBudget(order=8.0, epsilon=20.0, delta=1e-5))
    config = config_of(mechanism, ledger={"path": "joint", "id": shared.id})
    with Run.create(tmp_path / "run", config, resume=False) as directory:
        limits = ledger_opener(voters_of(config), directory, tmp_path)().limits
    asked, answered = config.build_mechanism().rdp_per_query(8.0, 40, config.budget.answer_limit)
    assert (limits.rdp_asked, limits.rdp_answered) == (asked, answered)
    assert getattr(limits, charged) > 0


def test_a_shared_ledger_has_set_delta_aside_for_so_much_noise_only(tmp_path: Path) -> None:
    shared = SharedLedger.create(tmp_path / "joint", SharedBudget(order=8.0, epsilon=20.0, delta=1e-5))
    config = config_of(_MECHANISMS[1], ledger={"path": "joint", "id": shared.id})
    assert voters_of(config).publishable_epsilon(10) > 0
    with pytest.raises(ConfigError, match=r"budget\.ledger: this run draws noise"):
        voters_of(config).publishable_epsilon(2**40 // 40)
