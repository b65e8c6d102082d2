"""The published theorems bound the forward direction of the exact cost, for noise of 5 votes or more."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from pate.accounting import published_bounds
from pate.accounting.exact import exact_cost
from pate.accounting.worst_case import worst_case_rdp
from pate.mechanisms import ConfidentGNMax, GNMax, LNMax, Mechanism

ORDERS = np.array([1.5, 2.0, 4.0, 9.0, 20.0])


@st.composite
def histograms(draw: DrawFn) -> np.ndarray:
    """A few histograms of up to 500 teachers and 20 classes, from unanimous to even."""
    n_teachers, n_classes = draw(st.integers(1, 500)), draw(st.integers(2, 20))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shares = rng.dirichlet(np.full(n_classes, draw(st.sampled_from([0.02, 0.2, 1.0, 20.0]))), size=3)
    return rng.multinomial(n_teachers, shares)


@given(counts=histograms(), scale=st.floats(5, 60))
@settings(max_examples=25, deadline=None)
def test_lnmax_forward_is_within_theorem_3(counts: np.ndarray, scale: float) -> None:
    cost = exact_cost(LNMax(scale), counts, np.arange(2.0, 10.0))
    moments = np.arange(1, 9)
    published = published_bounds.lnmax_moments(counts, scale, 8) / moments
    assert (cost.forward <= published * (1 + 1e-9) + 1e-12).all()
    _is_a_divergence(cost.forward)
    _is_a_divergence(cost.backward)


@given(counts=histograms(), sigma=st.floats(5, 80))
@settings(max_examples=25, deadline=None)
def test_gnmax_forward_is_within_theorem_6(counts: np.ndarray, sigma: float) -> None:
    cost = exact_cost(GNMax(sigma), counts, ORDERS)
    assert (cost.forward <= published_bounds.gnmax_rdp(counts, sigma, ORDERS) * (1 + 1e-9) + 1e-12).all()
    _is_a_divergence(cost.forward)


@given(counts=histograms(), name=st.sampled_from(["lnmax", "gnmax", "confident"]), noise=st.floats(5, 40))
@settings(max_examples=25, deadline=None)
def test_no_histogram_costs_more_than_the_worst_case(counts: np.ndarray, name: str, noise: float) -> None:
    """Both directions, any number of classes: what makes ε publishable."""
    noise = round(noise)
    mechanisms: dict[str, Mechanism] = {
        "lnmax": LNMax(noise),
        "gnmax": GNMax(noise),
        "confident": ConfidentGNMax(threshold=0.6 * counts.sum(axis=1)[0], sigma1=2.0 * noise, sigma2=noise),
    }
    mechanism = mechanisms[name]
    cost = exact_cost(mechanism, counts, np.array([2.0, 9.0]))
    for i, order in enumerate((2.0, 9.0)):
        claimed = mechanism.worst_case(1, 1).rdp_at(order)  # type: ignore[attr-defined]
        assert max(cost.forward[:, i].max(), cost.backward[:, i].max()) <= claimed * (1 + 1e-9)


def test_the_worst_case_is_nearly_met_by_a_tie() -> None:
    """So it is not only valid but tight: two classes at a tie are within 2 % of it."""
    for mechanism in (LNMax(20.0), GNMax(20.0)):
        counts = np.array([[125, 125], [126, 124], [127, 123], [130, 120], [135, 115]])
        cost = exact_cost(mechanism, counts, np.array([4.0]))
        met = max(cost.forward.max(), cost.backward.max())
        assert met == pytest.approx(worst_case_rdp(mechanism.noise, 4.0), rel=0.02)


def test_the_other_direction_does_exceed_the_published_bound() -> None:
    """A unanimous vote: Theorem 3 prices it forward; from the neighbour back it costs more than that."""
    counts = np.array([[250] + [0] * 9])
    cost = exact_cost(LNMax(20.0), counts, np.array([2.0, 9.0]))
    published = published_bounds.lnmax_moments(counts, 20.0, 8)[:, [0, 7]] / np.array([1, 8])
    assert (cost.forward <= published).all()
    assert (cost.backward / cost.forward).max() > 1


def _is_a_divergence(rdp: np.ndarray) -> None:
    assert (rdp >= 0).all()
    assert (np.diff(rdp, axis=1) >= -1e-12).all()
