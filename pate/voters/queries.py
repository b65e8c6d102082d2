"""Voters that answer one query at a time, each part with one vote: what teachers and stored votes have in common."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pate.accounting.composition import SAMPLER_SHARES, Guarantee, RdpGuarantee, rdp_epsilon
from pate.accounting.sanitise import WithRelease
from pate.accounting.worst_case import WorstCaseGuarantee
from pate.config.settings import QueryConfig
from pate.data.private import PrivateData
from pate.data.public import PublicData
from pate.errors import BudgetExceeded, ConfigError
from pate.ledger import Limits
from pate.planning.costs import with_sampler
from pate.voters.base import Cost, Release, Voters

if TYPE_CHECKING:
    from pate.boundary.aggregator import Aggregator
    from pate.runs.context import RunContext

Q = TypeVar("Q", bound=QueryConfig)


class QueryVoters(Voters[Q]):
    """Parts that vote once each on every query.

    Neighbouring relation: one record is added, removed, or changed under its id. Sensitivity: one part's vote moves in
    every query, so two counts change by 1 (L1 = 2, L2 = √2); with a mechanism whose parts overlap, so many votes move
    as its `votes_per_record` says.
    """

    @property
    def n_parts(self) -> int:
        return self.config.n_teachers

    # What it costs

    def guarantee(self) -> Guarantee:
        return self._guarantee(self.config.budget.max_queries)

    def _guarantee(self, asked: int) -> Guarantee:
        """What `asked` queries cost, and the sanitised figure where one is released."""
        budget = self.config.budget
        found, release = self.mechanism.worst_case(asked, min(asked, budget.answer_limit)), budget.sanitise
        if release is None:
            return found
        assert isinstance(found, WorstCaseGuarantee)  # the config takes no other mechanism
        return WithRelease.of(found, release.order, release.beta, release.sigma_ss, budget.delta)

    def count_draws(self, n_classes: int) -> int:
        return self.config.budget.max_queries * self.mechanism.noise_draws(n_classes)

    def cost(self, n_classes: int) -> Cost:
        return Cost(self._cost(self.config.budget.max_queries, n_classes))

    def _cost(self, asked: int, n_classes: int) -> float:
        return with_sampler(self._guarantee(asked), self.mechanism, asked, self.config.budget.delta, n_classes)

    def refuse_cost(self, cost: float, n_classes: int) -> ConfigError:
        budget, mechanism = self.config.budget, self.mechanism
        assert budget.epsilon is not None
        one = self._cost(1, n_classes)
        if one > budget.epsilon:
            return ConfigError(
                f"budget.epsilon = {budget.epsilon:g}: too small for one query, which costs {one:.3g} with "
                f"{mechanism}; add noise or raise it"
            )
        fits, too_many = 1, budget.max_queries
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            fits, too_many = (middle, too_many) if self._cost(middle, n_classes) <= budget.epsilon else (fits, middle)
        return ConfigError(
            f"budget.epsilon = {budget.epsilon:g}: {budget.max_queries} queries cost {cost:.3g} with {mechanism}; "
            f"{fits} would fit: lower budget.max_queries, add noise, or raise it"
        )

    @property
    def query_limits(self) -> tuple[int, int]:
        return self.config.budget.max_queries, self.config.budget.answer_limit

    @property
    def is_adaptive(self) -> bool:
        return self.config.adaptive

    def limits(self, order: float | None = None) -> Limits:
        limits = self.query_limits
        if order is None:
            return Limits(*limits, repr(self.mechanism))
        cost = self.mechanism.rdp_per_query(order, *limits)
        if cost is None:
            raise ConfigError(
                f"mechanism.name = {self.mechanism.name!r}: has no Rényi cost, so it cannot use a shared ledger"
            )
        return Limits(*limits, repr(self.mechanism), *cost)

    def epsilon_curves(self, n_classes: int) -> dict[str, dict[int, float]] | None:
        """ε of the first n queries, one curve for each way of counting; from public parameters alone.

        The tight bound is taken at the one Rényi order that is best for the limits (or fixed for a sanitised figure,
        whose own cost is left out): every order gives a valid bound, and each further one takes seconds.
        """
        budget, mechanism = self.config.budget, self.mechanism
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

    # Before anything is charged

    def order_public(self, public: PublicData) -> PublicData:
        budget = self.config.budget
        if budget.query_selection != "clusters":
            return public
        from pate.voters.query_loop import by_clusters

        return public.reordered(by_clusters(public.X_public, budget.max_queries, self.config.seed))

    def check_public(self, public: PublicData) -> None:
        if self.config.budget.max_queries > len(public.X_public):
            raise ConfigError(
                f"budget.max_queries = {self.config.budget.max_queries}: there are only {len(public.X_public)} public "
                "examples"
            )

    def try_student(self, student: Any, X: NDArray, labels: NDArray[np.int64]) -> None:
        from pate.voters.query_loop import require_confidence

        if self.config.budget.adaptive:
            require_confidence(student, self.config.budget.query_selection)

    def metrics(self) -> dict[str, float]:
        return {"queries": self.config.budget.max_queries}

    # Release

    def release(self, context: RunContext, private: PrivateData, aggregator: Aggregator) -> Release:
        """Have the parts vote on what is not answered yet, then ask; what is stored is not counted or asked again."""
        from pate.boundary.aggregator import votes_collected
        from pate.cluster.metrics import show
        from pate.voters.query_loop import ask, ask_actively

        config, public, run, console, clock = self.config, context.public, context.run, context.console, context.clock
        adaptive = config.budget.adaptive
        queries = public.X_public if adaptive else public.X_public[: config.budget.max_queries]
        published = run.labels
        if published is not None:
            aggregator.verify_published_labels(published.examples(public), published.labels)
        spent = aggregator.spent()
        show(queries_asked=spent.asked, queries_answered=spent.answered)
        if not spent.asked and not aggregator.room():
            raise BudgetExceeded("no query fits into the budget any more: other runs on the same data have used it up")
        answered = not adaptive and aggregator.stored_prefix(queries) == len(queries)
        collected = votes_collected(queries, run.private, run.key)
        self.collect_votes(context, private, aggregator, queries, answered or collected)
        run.sync()
        with clock.stage("label"):
            if adaptive:
                rows, labels = ask_actively(queries, config, lambda X: ask(aggregator, X, console), run, console)
                queries = queries[rows]
            else:
                rows, labels = np.arange(len(queries)), ask(aggregator, queries, console)
            spent = aggregator.spent()
        with clock.stage("account"), console.working("accounting"):
            sanitised = self._account(context, aggregator, queries)
        return Release(rows, labels, spent, spent.asked, spent.answered, aggregator.head(), sanitised)

    @abstractmethod
    def collect_votes(
        self, context: RunContext, private: PrivateData, aggregator: Aggregator, queries: NDArray, is_done: bool
    ) -> None:
        """Give the `aggregator` the votes on `queries`; where `is_done`, all of them are stored or answered."""

    def _account(self, context: RunContext, aggregator: Aggregator, queries: NDArray) -> dict[str, Any] | None:
        """Work out the private figures, and release the sanitised one where the config asks for it."""
        budget, options, public = self.config.budget, context.options, context.public
        if options.pages:
            aggregator.account(queries, budget.delta, self.config.adaptive)
        if options.evaluate_teachers:
            assert public.y_public is not None
            aggregator.evaluate(public.X_public, public.y_public)
        if budget.sanitise is None:
            return None
        sanitised = aggregator.sanitise(queries, budget.sanitise, budget.delta)
        if sanitised is None:
            context.console.info("note: no sanitised ε: votes behind some answers were erased by forgetting")
        return sanitised


@dataclass(frozen=True)
class _AtOneOrder(Guarantee):
    guarantee: WorstCaseGuarantee
    order: float

    def epsilon(self, delta: float) -> float:
        return rdp_epsilon(np.array([self.order]), np.array([self.guarantee.rdp_at(self.order)]), delta)[0]
