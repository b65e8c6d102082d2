"""Voters that answer one query at a time, each part with one vote: what teachers and stored votes have in common."""

from __future__ import annotations

import json
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
from pate.config._settings import QueryConfig
from pate.data.private import PrivateData
from pate.data.public import PublicData
from pate.errors import BudgetExceeded, ConfigError
from pate.ledger import Limits
from pate.mechanisms import UNANSWERED
from pate.planning.costs import with_sampler
from pate.voters.base import Cost, Release, Voters

if TYPE_CHECKING:
    from pate.boundary._aggregator import Aggregator
    from pate.report.schema import Queries, TeacherKind, VotersFacts
    from pate.runs._console import Console
    from pate.runs.context import RunContext
    from pate.runs.run import Run

_Q = TypeVar("_Q", bound=QueryConfig)


class QueryVoters(Voters[_Q]):
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
        return public.reordered(_by_clusters(public.X_public, budget.max_queries, self.config.seed))

    def check_public(self, public: PublicData) -> None:
        if self.config.budget.max_queries > len(public.X_public):
            raise ConfigError(
                f"budget.max_queries = {self.config.budget.max_queries}: there are only {len(public.X_public)} public "
                "examples"
            )

    def try_student(self, student: Any, X: NDArray, labels: NDArray[np.int64]) -> None:
        if self.config.budget.adaptive:
            _require_confidence(student, self.config.budget.query_selection)

    def announcement(self, public: PublicData) -> str:
        budget, rounds = self.config.budget, self.queries_by_round
        answered = f", at most {budget.answer_limit} answered" if self.mechanism.may_decline else ""
        by_round = f" in rounds of {' and '.join(map(str, rounds))}" if rounds else ""
        return f"{self.config.n_teachers} teachers, {self.mechanism}, {budget.max_queries} queries{by_round}{answered}"

    def metrics(self) -> dict[str, float]:
        return {"queries": self.config.budget.max_queries, "teachers": self.config.n_teachers}

    # Release

    def release(self, context: RunContext, private: PrivateData, aggregator: Aggregator) -> Release:
        """Have the parts vote on what is not answered yet, then ask; what is stored is not counted or asked again."""
        from pate.boundary._aggregator import votes_collected
        from pate.cluster._metrics import show

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

    # What is said of it

    @property
    def families(self) -> tuple[TeacherKind, ...]:
        """How many teachers each family has, in each round; () where their votes were counted elsewhere."""
        return ()

    def facts(self, public: PublicData, queries: Queries, labelled: int) -> VotersFacts:
        from pate.report.schema import VotersFacts

        families = self.families
        n, asked, answered, title = self.config.n_teachers, queries.asked, queries.answered, self.mechanism.title
        unanswered = asked - answered
        declined = f"; {unanswered:,} got no answer" if unanswered else ""
        answers = f"released; {unanswered:,} unanswered (⊥)" if unanswered else "released; every query was answered"
        trained = f"{len(families)} families, one part each" if len(families) > 1 else "one family, one part each"
        how = "each trained on its own part of the private records"
        sensitivity = (
            f"PATE. Private records are split into {n} disjoint parts by a keyed hash of their identity; a teacher is "
            "trained on each part. A record touches one teacher, so it moves at most one vote per query."
        )
        if self.mechanism.split(n).rate is not None:
            how = "each trained on a random subset of the private records"
            sensitivity = (
                f"PATE. {n} teachers are trained on random subsets of the private records; a record is kept in at most "
                "a fixed number of them, which the mechanism's noise is made for."
            )
        elif not families:
            how, trained = "whose votes were counted elsewhere", "counted elsewhere, votes stored"
            sensitivity = (
                f"PATE. Votes of {n} teachers were counted elsewhere and read from a file. The guarantee holds if a "
                "record could move at most one vote per query there."
            )
        rounds = " and ".join(map(str, queries.rounds))
        in_rounds = f" They are asked in rounds of {rounds}, all with one partition of the records." if rounds else ""
        return VotersFacts(
            kind=self.config.voters,
            method=f"PATE, {self.mechanism.name}, {n} teachers",
            n_teachers=n,
            teachers=families,
            labelled=answered,
            figures=(("teachers", f"{n}"), ("queries", f"{asked} asked, {answered} answered")),
            counts=((f"labels released, of {asked:,} asked", f"{answered:,}"), ("teachers", f"{n:,}")),
            steps=(
                ("Private records", "their number is not published; each is in one part"),
                (f"{n:,} teachers", trained),
                (f"{asked:,} queries", f"votes and noise: {title}"),
                (f"{answered:,} labels", answers),
            ),
            summary=(
                f"{n} teachers, {how}, voted on {asked} public examples. Noise hid the exact votes, and {answered} "
                f"labels were released{declined}. The student learned from those labels and from public examples alone."
            ),
            sensitivity=sensitivity,
            limits=(
                f"Fixed before the first query: at most {queries.max_queries} queries, at most {queries.max_answers} "
                f"of them answered. Used: {asked} asked, {answered} answered. ε is the cost of the limits, whatever "
                f"was used. A batch that does not fit is refused.{in_rounds}",
                "Asking again about the same public example returns the stored answer and costs nothing.",
            ),
            labels=f"labels.npz: labels of public examples, {answered} of {asked} asked",
        )


@dataclass(frozen=True)
class _AtOneOrder(Guarantee):
    guarantee: WorstCaseGuarantee
    order: float

    def epsilon(self, delta: float) -> float:
        return rdp_epsilon(np.array([self.order]), np.array([self.guarantee.rdp_at(self.order)]), delta)[0]


_BATCH = 50
_DOUBTFUL = 3  # a round of n examples chooses among the 3·n most doubtful ones, for examples unlike each other

_Ask = Callable[[NDArray], NDArray[np.int64]]


def ask(aggregator: Aggregator, queries: NDArray, console: Console) -> NDArray[np.int64]:
    """Ask in batches that are sure to fit; a batch shrinks where the limit on answers comes near.

    Examples that were never asked, because the limit on answers was reached, count as unanswered.
    """
    from pate.cluster._metrics import show

    labels = np.full(len(queries), UNANSWERED, dtype=np.int64)
    done = 0
    with console.track("labelling", len(queries)) as update:
        while done < len(queries):
            stored = aggregator.stored_prefix(queries[done:])
            size = stored or min(_BATCH, aggregator.room(), len(queries) - done)
            if size == 0:
                break
            labels[done : done + size] = aggregator.label(queries[done : done + size]).labels
            done += size
            update(done)
            spent = aggregator.spent()
            show(queries_asked=spent.asked, queries_answered=spent.answered)
    return labels


def ask_actively(
    X: NDArray, config: QueryConfig, ask_about: _Ask, directory: Run, console: Console
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of `X` that were asked about, and their labels.

    The first round asks about the centres of clusters, each further one about what a student of the answers so far
    doubts most, or, for balance, about as many examples of each class as it can tell, the surest first. Queries then
    depend on released labels: the cost of the limits holds all the same, by adaptive composition, a data-dependent ε
    does not. The rows of a round are stored before it is asked, so that a resumed run asks about the same ones.
    """
    path = directory.rounds_file
    chosen: list[list[int]] = json.loads(path.read_text()) if path.exists() else []
    edges = np.linspace(0, config.budget.max_queries, config.budget.active_rounds + 1).astype(int)
    rows, labels = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    for number, size in enumerate(np.diff(edges)):
        if number == len(chosen):
            shares = _shares(X, rows, labels, config, console)
            chosen.append(_next_rows(X, rows, shares, int(size), config).tolist())
            directory.note(path.name, chosen)
            directory.sync()
        new = np.array(chosen[number], dtype=np.int64)
        rows, labels = np.concatenate([rows, new]), np.concatenate([labels, ask_about(X[new])])
    return rows, labels


def _shares(
    X: NDArray, rows: NDArray[np.int64], labels: NDArray[np.int64], config: QueryConfig, console: Console
) -> NDArray[np.float64] | None:
    """How likely a student of the labels so far finds each class for each example; None where there are none yet."""
    from pate.students._stage import new_student

    if (labels == UNANSWERED).all():
        return None
    student = new_student(config)
    _require_confidence(student, config.budget.query_selection)
    with console.working(f"training a student on {len(rows)} answers, to see what to ask next"):
        student.fit(X[rows], labels, np.delete(X, rows, axis=0))
        return np.asarray(student.predict_proba(X), dtype=np.float64)


def _next_rows(
    X: NDArray, asked: NDArray[np.int64], shares: NDArray[np.float64] | None, size: int, config: QueryConfig
) -> NDArray[np.int64]:
    """Rows not yet asked about, unlike each other.

    Any of them while a student tells no classes apart; then those whose first guess leads least; or for balance, as
    many for each class, of those that have the largest share of it.
    """

    def unlike(rows: NDArray[np.int64], n: int) -> NDArray[np.int64]:
        return rows[_by_clusters(X[rows], n, config.seed)[:n]]

    if shares is None or shares.shape[1] < 2:
        return unlike(np.setdiff1d(np.arange(len(X)), asked), size)
    if config.budget.query_selection == "uncertainty":
        second, first = np.sort(shares, axis=1)[:, -2:].T
        return unlike(_first(second - first, asked, _DOUBTFUL * size), size)
    chosen = np.zeros(0, dtype=np.int64)
    ends = np.linspace(0, size, shares.shape[1] + 1).astype(int)
    for label, wanted in enumerate(np.diff(ends).tolist()):
        likely = _first(shares[:, label], np.concatenate([asked, chosen]), _DOUBTFUL * wanted)
        chosen = np.concatenate([chosen, unlike(likely, wanted)])
    return chosen


def _first(scores: NDArray[np.float64], asked: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Rows not yet asked about, those with the largest scores; all of them where scores do not differ."""
    rest = np.setdiff1d(np.arange(len(scores)), asked)
    if (scores == scores[0]).all():
        return rest
    return rest[np.argsort(-scores[rest], kind="stable")][:most]


def _require_confidence(student: Any, order: str = "uncertainty") -> None:
    """Raise ConfigError where a student cannot say how sure it is."""
    if not hasattr(student, "predict_proba"):
        raise ConfigError(
            f"budget.query_selection = {order!r}: the student has no predict_proba; use another, or "
            "query_selection: clusters"
        )


_COMPONENTS = 50


def _by_clusters(X: NDArray, asked: int, seed: int) -> NDArray[np.int64]:
    """Row numbers: first the example nearest to the centre of each of `asked` k-means clusters, then all others.

    Columns of a table count by their spread, so that no unit of measurement outweighs the others. No label and nothing
    private enters, so the list of queries is fixed before the first vote.
    """
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.decomposition import PCA

    flat = X.reshape(len(X), -1)
    if X.ndim == 2:
        spread = flat.std(axis=0)
        flat = flat / np.where(spread > 0, spread, 1)
    if flat.shape[1] > _COMPONENTS < len(flat):
        flat = PCA(_COMPONENTS, random_state=seed).fit_transform(flat)
    distances = MiniBatchKMeans(min(asked, len(X)), n_init=3, random_state=seed).fit_transform(flat)
    nearest = np.unique(distances.argmin(0))
    return np.concatenate([nearest, np.setdiff1d(np.arange(len(X)), nearest)])
