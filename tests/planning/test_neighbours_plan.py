"""What `pate plan` says of records that vote themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pate.errors import ConfigError
from pate.mechanisms import GNMax, Histogram
from pate.mechanisms._cell_costs import Round, cost_of
from pate.voters.neighbours._choice import plan_of_rounds, with_target

CONFIG = Path(__file__).parents[2] / "configs" / "digits_neighbours.yaml"


@pytest.mark.parametrize("target", [0.05, 1.0])
def test_noise_for_a_target_is_the_least_that_reaches_it(target: float) -> None:
    rounds = [Round(100, Histogram(3.0)), Round(500, GNMax(9.0), by_student=True)]
    found = with_target(rounds, 1, target, 1e-5, 10)
    assert [round.cells for round in found] == [100, 500]
    assert found[1].by_student
    histogram, gnmax = (round.mechanism for round in found)
    assert isinstance(histogram, Histogram)
    assert isinstance(gnmax, GNMax)
    assert gnmax.sigma / histogram.scale == pytest.approx(3.0)
    assert 0.98 * target < cost_of(found, 1, 1e-5, 10).epsilon <= target


def test_a_target_out_of_reach_is_refused() -> None:
    with pytest.raises(ConfigError, match="target_epsilon"):
        with_target([Round(10, Histogram(3.0))], 1, 1e-6, 1e-5, 10)


def test_more_noise_needs_a_larger_lead() -> None:
    quiet, loud = (
        plan_of_rounds([Round(9, Histogram(scale))], 1, 1e-5, 10)["rounds"][0]["lead_needed"] for scale in (2.0, 20.0)
    )
    assert 5 < quiet < 20
    assert 8 * quiet < loud < 12 * quiet


def test_the_command_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    from pate.cli import app

    app(["plan", str(CONFIG), "--json"], standalone_mode=False)
    result = json.loads(capsys.readouterr().out)
    assert result["epsilon"] == pytest.approx(1.0, rel=1e-3)
    assert result["rounds"][0]["cells"] == 30
    app(["plan", str(CONFIG), "--target-epsilon", "0.5"], standalone_mode=False)
    said = capsys.readouterr().out
    assert "0.5 at δ = 1e-05, for a record added, removed or changed" in said
    assert "teachers do better" in said
