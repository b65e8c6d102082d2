"""From a config's budget to the publishable ε, and to the ledger that keeps to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pate.accounting.composition import SAMPLER_SHARES, Guarantee, RdpGuarantee, rdp_epsilon, with_sampling_error
from pate.accounting.sanitise import WithRelease
from pate.accounting.worst_case import WorstCaseGuarantee
from pate.config import Config
from pate.errors import ConfigError
from pate.ledger import Ledger, Limits
from pate.ledger.chain import identity
from pate.ledger.ledger import DRAWS_PER_RUN
from pate.ledger.shared import SharedLedger
from pate.ledger.stored import StoredLedger
from pate.mechanisms import Mechanism
from pate.mechanisms.cell_rounds import RoundsCost, cost_of, guarantee
from pate.noise.integer import TV_ERROR_PER_DRAW
from pate.planning.costs import Part, with_sampler
from pate.runs.anchoring import NO_ANCHOR, ChosenAnchor, choose_anchor
from pate.runs.published import published_pins
from pate.runs.run import Run
from pate.runs.version import Version
from pate.storage import is_url


def publishable_epsilon(config: Config, mechanism: Mechanism, n_classes: int) -> float:
    """ε of the limits, which holds for every data set; refused if it exceeds `budget.epsilon`."""
    budget = config.budget
    _check_draws(config, mechanism, n_classes)
    if config.voters == "neighbours":
        return _epsilon_of_rounds(config, n_classes)

    def cost(asked: int) -> float:
        return with_sampler(_guarantee(config, mechanism, asked), mechanism, asked, budget.delta, n_classes)

    epsilon = cost(budget.max_queries)
    if not np.isfinite(epsilon):
        raise ConfigError(f"mechanism: no finite ε for {budget.max_queries} queries at δ = {budget.delta:g}; add noise")
    if budget.epsilon is None or epsilon <= budget.epsilon:
        return epsilon
    if cost(1) > budget.epsilon:
        raise ConfigError(
            f"budget.epsilon = {budget.epsilon:g}: too small for one query, which costs {cost(1):.3g} with "
            f"{mechanism}; add noise or raise it"
        )
    fits, too_many = 1, budget.max_queries
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if cost(middle) <= budget.epsilon else (fits, middle)
    raise ConfigError(
        f"budget.epsilon = {budget.epsilon:g}: {budget.max_queries} queries cost {epsilon:.3g} with {mechanism}; "
        f"{fits} would fit: lower budget.max_queries, add noise, or raise it"
    )


def _guarantee(config: Config, mechanism: Mechanism, asked: int) -> Guarantee:
    """What `asked` queries of a run with teachers cost, and its sanitised figure where it releases one."""
    guarantee, release = mechanism.worst_case(asked, min(asked, config.budget.answer_limit)), config.budget.sanitise
    if release is None:
        return guarantee
    assert isinstance(guarantee, WorstCaseGuarantee)  # the config takes no other mechanism
    return WithRelease.of(guarantee, release.order, release.beta, release.sigma_ss, config.budget.delta)


def part_of(config: Config, mechanism: Mechanism, n_classes: int, epsilon: float | None = None) -> Part:
    """A run as one of several on the same data; `epsilon` is what it costs alone, worked out by Rényi costs if None."""
    delta, draws = config.budget.delta, _draws(config, mechanism, n_classes) + 1
    if config.voters == "neighbours":
        assert config.neighbours is not None
        found: Guarantee = guarantee(config.build_rounds(), config.neighbours.votes_per_record)
    else:
        found = _guarantee(config, mechanism, config.budget.max_queries)
    if epsilon is None:
        quick = found.by_renyi() if isinstance(found, WorstCaseGuarantee) else found
        epsilon = with_sampling_error(quick.epsilon, delta, draws, TV_ERROR_PER_DRAW)
    return Part(epsilon, delta, found if isinstance(found, RdpGuarantee) else None, draws)


def _draws(config: Config, mechanism: Mechanism, n_classes: int) -> int:
    """How often a run draws noise, at most."""
    if config.voters == "neighbours":
        return sum(one.cells * one.mechanism.noise_draws(n_classes) for one in config.build_rounds())
    return config.budget.max_queries * mechanism.noise_draws(n_classes)


def _check_draws(config: Config, mechanism: Mechanism, n_classes: int) -> None:
    """Raise ConfigError where a shared ledger has not set enough of its δ aside for the noise of this run."""
    draws = _draws(config, mechanism, n_classes)
    if config.budget.ledger is not None and draws > DRAWS_PER_RUN:
        raise ConfigError(
            f"budget.ledger: this run draws noise {draws:,} times, of a shared ledger {DRAWS_PER_RUN:,}; ask fewer"
        )


def neighbours_cost(config: Config, n_classes: int) -> RoundsCost:
    """What all rounds of votes near public examples cost."""
    assert config.neighbours is not None
    return cost_of(config.build_rounds(), config.neighbours.votes_per_record, config.budget.delta, n_classes)


def _epsilon_of_rounds(config: Config, n_classes: int) -> float:
    epsilon, budget = neighbours_cost(config, n_classes).epsilon, config.budget
    if not np.isfinite(epsilon):
        raise ConfigError(f"mechanism: no finite ε for these rounds at δ = {budget.delta:g}; add noise")
    if budget.epsilon is not None and epsilon > budget.epsilon:
        raise ConfigError(
            f"budget.epsilon = {budget.epsilon:g}: the rounds cost {epsilon:.3g}; add noise, or lower "
            "neighbours.votes_per_record"
        )
    return epsilon


def epsilon_curves(config: Config, mechanism: Mechanism, n_classes: int) -> dict[str, dict[int, float]]:
    """ε of the first n queries for every data set, one curve per way of counting; from public parameters alone.

    The tight bound is taken at the one Rényi order that is best for the limits (or fixed for a sanitised figure, whose
    own cost is left out): every order gives a valid bound, and each further one takes seconds.
    """
    budget = config.budget
    at = [int(n) for n in np.unique((np.linspace(1, budget.max_queries**0.5, 15) ** 2).round().astype(int))]

    def curve(usable: Callable[[Guarantee], Guarantee]) -> dict[int, float]:
        guarantees = {n: mechanism.worst_case(n, min(n, budget.answer_limit)) for n in at}
        return {n: with_sampler(usable(g), mechanism, n, budget.delta, n_classes) for n, g in guarantees.items()}

    whole = mechanism.worst_case(budget.max_queries, budget.answer_limit)
    if not isinstance(whole, WorstCaseGuarantee):
        return {"for every data set": curve(lambda guarantee: guarantee)}
    closed_form = curve(lambda guarantee: RdpGuarantee(guarantee.rdp))  # type: ignore[attr-defined]
    if budget.sanitise is not None:
        epsilon, order = math.inf, budget.sanitise.order  # the sanitised figure is about Rényi costs at its order
    else:
        epsilon, order = whole.epsilon_and_order(budget.delta * (1 - SAMPLER_SHARES[0]))
        if epsilon >= closed_form[budget.max_queries]:
            return {"for every data set, closed form": closed_form}
    tight = curve(lambda guarantee: _AtOneOrder(guarantee, order))  # type: ignore[arg-type]
    played = dict(zip(at, whole.epsilons_along(at, budget.delta * (1 - SAMPLER_SHARES[0]), epsilon), strict=True))
    smaller = {n: min(tight[n], closed_form[n], played[n]) for n in at}
    return {"for every data set, as counted here": smaller, "for every data set, closed form": closed_form}


@dataclass(frozen=True)
class _AtOneOrder(Guarantee):
    guarantee: WorstCaseGuarantee
    order: float

    def epsilon(self, delta: float) -> float:
        return rdp_epsilon(np.array([self.order]), np.array([self.guarantee.rdp_at(self.order)]), delta)[0]


def shared_ledger(config: Config, out: Path | str, config_dir: Path) -> SharedLedger | None:
    """The ledger that a run in `out` shares with others, None if it has its own; an error if it cannot be used."""
    named = config.budget.ledger
    if named is None:
        return None
    if is_url(out):
        text = "budget.ledger: a ledger that runs share stays on one machine; give {out} as a folder there"
        raise ConfigError(text, out=None)
    return SharedLedger.at((config_dir / named.path).resolve(), named.id)


def anchor_of(
    config: Config, directory: Run, config_dir: Path, wanted: str | None, say: Callable[[str], None]
) -> ChosenAnchor:
    """Where the links of the run's ledger, its own or a shared one, are also kept; `wanted` as `choose_anchor` takes
    it."""
    shared = shared_ledger(config, directory.place, config_dir)
    return choose_anchor(directory, identity(directory.key) if shared is None else shared.id, wanted, say)


def _limits(config: Config, mechanism: Mechanism) -> Limits:
    """What the ledger keeps to. A round of votes near public examples is one charge, whatever the number of cells."""
    if config.voters == "teachers":
        return Limits(config.budget.max_queries, config.budget.answer_limit, repr(mechanism))
    assert config.neighbours is not None
    rounds = config.build_rounds()
    return Limits(len(rounds), len(rounds), f"{config.neighbours.votes_per_record} votes in {rounds!r}")


def _dearest_round(config: Config, order: float) -> float:
    """What a shared ledger charges for any round: the largest Rényi cost of them."""
    assert config.neighbours is not None
    return max(guarantee([round], config.neighbours.votes_per_record).rdp_at(order) for round in config.build_rounds())


def ledger_opener(
    config: Config,
    mechanism: Mechanism,
    directory: Run,
    config_dir: Path = Path(),
    anchor: ChosenAnchor = NO_ANCHOR,
) -> Callable[[], Ledger]:
    """How the aggregator opens its ledger: the run's own, or one that runs on the same data share.

    What the run has published must come from that ledger, and the links that `anchor` holds must be its own.
    """
    limits = _limits(config, mechanism)
    options: dict[str, Any] = {"ensemble": Version.of(directory).version}
    options |= {"anchor": anchor.place, "new_anchor": anchor.new}
    options["pins"] = published_pins(directory.path)
    shared = shared_ledger(config, directory.place, config_dir)
    if shared is None:
        head = directory.ledger_head.resolve()
        own = (directory.ledger_file.resolve(), directory.key, head, "run", limits)
        if directory.storage is None:
            return partial(Ledger, *own, **options)
        return partial(StoredLedger, directory.storage.url, *own, **options)
    joint = shared.budget()
    if config.voters == "neighbours":
        limits = replace(limits, rdp_answered=_dearest_round(config, joint.order))
    else:
        cost = mechanism.rdp_per_query(joint.order, limits.max_queries, limits.max_answers)
        if cost is None:
            raise ConfigError(
                f"mechanism.name = {mechanism.name!r}: has no Rényi cost, so it cannot use a shared ledger"
            )
        limits = replace(limits, rdp_asked=cost[0], rdp_answered=cost[1])
    name = directory.id  # copies of a run are one run: they share its answers
    return partial(Ledger, shared.db, shared.key, shared.head, name, limits, joint, **options)
