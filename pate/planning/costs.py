"""What a list of queries costs by every method: the figures behind `pate account`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from pate.accounting import _parameters as parameters
from pate.accounting.composition import Guarantee, RdpGuarantee, with_sampling_error
from pate.accounting.exact import ExactEpsilon, exact_cost, exact_epsilon
from pate.accounting.worst_case import WorstCaseGuarantee
from pate.errors import ConfigError
from pate.mechanisms import Counts, Mechanism

_FEW = 5  # releases whose tight bounds are looked for together: each may take seconds


@dataclass(frozen=True)
class CostSummary:
    """ε by method; None where a method has no finite figure. All but `data_independent` are private."""

    queries: int
    answered: float
    delta: float
    data_independent: float | None
    published_bound: float | None
    exact_rdp: float | None
    exact_pld: float | None


def summarise(mechanism: Mechanism, counts: Counts, delta: float, max_answers: int | None, moments: int) -> CostSummary:
    """The cost of answering every row of `counts`. `max_answers` is a limit fixed beforehand, if there is one."""
    delta, counts = parameters.delta(delta), parameters.votes(counts)
    moments = parameters.whole(moments, "moments", least=1, most=1000)
    if mechanism.votes_per_record != 1:
        text = "{mechanism}: a votes file cannot say what it costs; see `pate plan`"
        raise ConfigError(text, mechanism=mechanism.name)
    exact_rdp, exact_pld = math.inf, math.inf
    if mechanism.has_exact_cost:
        draws = len(counts) * mechanism.noise_draws(counts.shape[1])

        @cache
        def exact(ideal_delta: float) -> ExactEpsilon:
            return exact_epsilon(mechanism, counts, ideal_delta)

        with suppress(parameters.TooWide):  # then there is no exact figure; the others need none
            exact_rdp = with_sampling_error(lambda d: exact(d).rdp, delta, draws)
            exact_pld = with_sampling_error(lambda d: exact(d).pld, delta, draws)
    return CostSummary(
        queries=len(counts),
        answered=mechanism.expected_answered(counts),
        delta=delta,
        data_independent=_finite(worst_case_epsilon(mechanism, len(counts), max_answers, delta, counts.shape[1])),
        published_bound=_finite(published_epsilon(mechanism, counts, delta, moments)),
        exact_rdp=_finite(exact_rdp),
        exact_pld=_finite(exact_pld),
    )


def worst_case_epsilon(
    mechanism: Mechanism,
    max_queries: int,
    max_answers: int | None = None,
    delta: float = 1e-5,
    n_classes: int = 10,
    roughly: bool = False,
) -> float:
    """ε for every data set, with the sampler's error charged to δ: the one to publish.

    Parameters
    ----------
    mechanism : Mechanism
        The mechanism, with its noise.
    max_queries : int
        The most queries that will be asked, fixed before the first.
    max_answers : int, default=None
        The most of them that will be answered, fixed before the first; all if None.
    delta : float, default=1e-5
        The δ of everything that is released.
    n_classes : int, default=10
        Number of classes; it matters for the sampler's error alone.
    roughly : bool, default=False
        By Rényi costs alone, which take no seconds: proven too, but up to a tenth more.

    >>> from pate import GNMax, LNMax
    >>> round(worst_case_epsilon(LNMax(20), max_queries=100), 3)
    2.004
    >>> round(worst_case_epsilon(GNMax(40), max_queries=1000), 2)
    4.17
    """
    max_queries = parameters.queries(max_queries, "max_queries")
    answered = max_queries if max_answers is None else min(max_queries, parameters.queries(max_answers, "max_answers"))
    guarantee = mechanism.worst_case(max_queries, answered)
    if roughly and isinstance(guarantee, WorstCaseGuarantee):
        guarantee = guarantee.by_renyi()
    return with_sampler(guarantee, mechanism, max_queries, delta, n_classes)


def with_sampler(guarantee: Guarantee, mechanism: Mechanism, max_queries: int, delta: float, n_classes: int) -> float:
    """ε of a guarantee about `max_queries` queries, with the error of all their draws charged to δ."""
    draws = parameters.queries(max_queries, "max_queries") * mechanism.noise_draws(parameters.classes(n_classes)) + 1
    return with_sampling_error(guarantee.epsilon, delta, draws)


@dataclass(frozen=True)
class ReleaseCost:
    """One of several releases from the same data: what it costs alone, and in Rényi terms where those are known.

    `draws` of noise are all that its samplers take.
    """

    epsilon: float
    delta: float
    renyi: RdpGuarantee | None = None
    draws: int = 0


def compose(parts: Sequence[ReleaseCost]) -> tuple[float, float]:
    """(ε, δ) of all releases together, whose limits do not depend on what the others released.

    δ is the sum of theirs. Two ways to count are proven: ε add up (Dwork, Roth 2014, Theorem 3.16), or Rényi costs do,
    of those that have one, and the rest is added. The smaller ε stands.
    """
    delta = math.fsum(part.delta for part in parts)
    simple = math.fsum(part.epsilon for part in parts)
    guarantees = [part.renyi for part in parts if part.renyi is not None]
    if len(guarantees) < 2 or delta >= 1:
        return simple, delta
    joint = RdpGuarantee(lambda orders: np.sum([found.rdp(orders) for found in guarantees], axis=0))
    tight = [found for found in guarantees if isinstance(found, WorstCaseGuarantee)]
    if len(tight) == len(guarantees) <= _FEW:
        joint = WorstCaseGuarantee.of(*(cost for found in tight for cost in found.costs)).by_renyi()
    counted = [part for part in parts if part.renyi is not None]
    own_delta, draws = math.fsum(part.delta for part in counted), sum(part.draws for part in counted)
    rest = math.fsum(part.epsilon for part in parts if part.renyi is None)
    return min(simple, rest + with_sampling_error(joint.epsilon, own_delta, draws)), delta


def published_epsilon(mechanism: Mechanism, counts: Counts, delta: float, moments: int = 8) -> float:
    """ε as the mechanism's own paper counts it, for continuous noise and in the forward direction."""
    return mechanism.published_epsilon(parameters.votes(counts), parameters.delta(delta), moments)


def cumulative_epsilons(
    mechanism: Mechanism, counts: Counts, delta: float, at: NDArray[np.int64]
) -> dict[str, NDArray[np.float64]]:
    """ε after `at` queries, one curve per method, for a plot."""
    n_classes = counts.shape[1]
    worst = [worst_case_epsilon(mechanism, int(n), None, delta, n_classes) for n in at]
    curves = {"every data set (publishable)": np.array(worst)}
    published = np.array([mechanism.published_epsilon(counts[:n], delta) for n in at])
    if np.isfinite(published).any():
        curves["published bound (private)"] = published
    if not mechanism.has_exact_cost:
        return curves
    with suppress(parameters.TooWide):
        curves["exact, RDP (private)"] = exact_cost(mechanism, counts).cumulative_epsilon(delta)[at - 1]
    return curves


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None
