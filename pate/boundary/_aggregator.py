"""The only door between private votes and the world.

An aggregator asks for counts, draws noise, commits label and charge, and only then answers. Counts stay with it and
under `private/`. `Aggregator` is a plain class, used as it is where there is no Ray; `RemoteAggregator` has the same
methods and calls an actor.
"""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import cached_property, partialmethod
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pate.accounting._parameters import TooWide
from pate.accounting.exact import exact_epsilon
from pate.accounting.sanitise import epsilon_sanitised
from pate.boundary import CountVotes, sum_counts
from pate.boundary._guard import error_kind, guarded_class, raised_by_pate
from pate.config import Sanitise
from pate.data.partition import keyed_digest
from pate.errors import PateError, RunError
from pate.ledger import Charge, Ledger, Pin
from pate.mechanisms import UNANSWERED, Mechanism, Stream
from pate.noise import Entropy
from pate.runs import _files as files
from pate.runs._run_ledger import anchor_of, ledger_opener
from pate.storage._files import write_arrays, write_atomically

if TYPE_CHECKING:
    from pate.runs.context import RunContext
    from pate.voters.neighbours._cells import CellVote
    from pate.voters.neighbours._rounds import VoteCounter


class Answers(NamedTuple):
    """Released labels, and how many more queries are sure to fit into the budget."""

    labels: NDArray[np.int64]
    room: int


@guarded_class("the aggregator", then="; nothing was released; go on with {resume}", resume=True)
class Aggregator:
    """Answers label queries within fixed limits. Asking again returns the stored answer, free."""

    def __init__(
        self,
        mechanism: Mechanism,
        open_ledger: Callable[[], Ledger],
        private: Path,
        key: bytes,
        n_parts: int,
        entropy: Entropy = os.urandom,
    ) -> None:
        self._mechanism = mechanism
        self._open_ledger = open_ledger
        self._stream: Stream | None = None
        self._private = private
        self._key = key
        self._n_parts = n_parts
        self._entropy = entropy
        self._votes = self._stored_votes()

    @cached_property
    def _ledger(self) -> Ledger:
        """Opened by the first call that needs it, so that the caller gets its errors."""
        return self._open_ledger()

    def collect(self, X: NDArray, count_votes: CountVotes) -> None:
        """Count the votes on `X` and keep them under `private/`, so that a resumed run needs no teachers."""
        counts = sum_counts(count_votes(X), self._n_parts)
        self._votes |= dict(zip(query_ids(X, self._key), counts, strict=True))
        ids = np.array([list(query) for query in self._votes], dtype=np.uint8)
        write_arrays(self._private / files.VOTES, {"ids": ids, "counts": [*self._votes.values()]})

    def label(self, X: NDArray) -> Answers:
        """Released labels of examples whose votes were collected, `UNANSWERED` where the mechanism declined.

        Refused whole if the new ones among them do not fit into the limits. Where the mechanism's stream ends on the
        way, what comes after it is not asked, costs nothing and is `UNANSWERED` too.
        """
        ids = query_ids(X, self._key)
        stored = self._ledger.stored(ids)
        new = [query for query in dict.fromkeys(ids) if query not in stored]
        if new:
            self._answer(new)
            stored = self._ledger.stored(ids)
        labels = np.array([stored.get(query, UNANSWERED) for query in ids], dtype=np.int64)
        return Answers(labels, self.room())

    def _answer(self, new: list[bytes]) -> None:
        """Draw noise and store, holding the ledger with room for the most it can cost."""
        missing = [query for query in new if query not in self._votes]
        if missing:
            raise RunError(f"{len(missing)} of {len(new)} examples have no votes yet: collect them first")
        counts = np.array([self._votes[query] for query in new])
        with self._ledger.batch(len(new)):
            labels, unstable = self._draw(counts)
            stream, self._stream = self._stream, None  # its count of ⊥ runs ahead of the ledger until this is stored
            cost = Charge(len(labels), int((labels != UNANSWERED).sum()), unstable)
            self._ledger.charge_and_store(new[: len(labels)], labels.tolist(), cost)
        self._stream = stream

    def _draw(self, counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
        """Labels, and how many more ⊥ they used up, where the mechanism limits those."""
        stream, self._stream = self._stream or self._resumed_stream(), None
        labels = stream.answer(counts, self._entropy)
        self._stream = stream
        return labels, stream.unstable - self._ledger.spent().unstable

    def _resumed_stream(self) -> Stream:
        """Go on from what the ledger holds; after a restart that may cost something (see `MSvec.begin`)."""
        spent = self._ledger.spent()
        return self._mechanism.begin(spent.unstable, spent.asked)

    def release_round(
        self, name: str, cell_vote: CellVote, mechanism: Mechanism, counter: VoteCounter
    ) -> NDArray[np.int64]:
        """What the round `name` of votes near public examples releases: noisy counts, or a label, of each cell.

        The first call counts, draws, charges and stores, all of it in one transaction; later ones read. Nothing is
        counted again then, so a stored round needs no records.
        """
        width = cell_vote.n_classes if mechanism.releases_counts else 1
        ids = [keyed_digest(self._key, b"round", f"{name}: {i}".encode()) for i in range(len(cell_vote.cells) * width)]
        if not self._ledger.stored(ids[:1]):
            counts = sum_counts(counter.count(cell_vote), counter.sources)
            with self._ledger.batch(1):
                if mechanism.releases_counts:
                    released = mechanism.release_counts(counts, self._entropy)
                else:
                    released = mechanism.release(counts, self._entropy)
                self._ledger.charge_and_store(ids, released.reshape(-1).tolist(), Charge(1, 1))
        stored = self._ledger.stored(ids)
        if len(stored) != len(ids):
            raise RunError(f"{name}: was stored in part only; the ledger is not the one of this run")
        return np.array([stored[i] for i in ids], dtype=np.int64).reshape(len(cell_vote.cells), width)

    def account(self, X: NDArray, delta: float, adaptive: bool = False) -> None:
        """The exact data-dependent ε of the examples asked so far: written under `private/`, returned to nobody.

        There is none where the list of queries was `adaptive`: it is defined for a list that was fixed beforehand.
        """
        ids = query_ids(X, self._key)
        stored = self._ledger.stored(ids)
        ids = [query for query in dict.fromkeys(ids) if query in stored and query in self._votes]
        figures: dict[str, Any] = {"private": "do not publish", "delta": delta, "queries": len(ids)}
        if adaptive:
            figures |= {"epsilon_data_dependent": None, "why": "queries were chosen by earlier answers"}
        elif self._ledger.from_earlier_ensembles():
            figures |= {"epsilon_data_dependent": None, "why": "votes behind some answers were erased by forgetting"}
        elif self._mechanism.has_exact_cost and ids:
            try:
                figures |= _exact_figures(self._mechanism, np.array([self._votes[query] for query in ids]), delta)
            except TooWide as error:  # the labels are paid for by then: the run goes on without this figure
                figures |= {"epsilon_data_dependent": None, "why": str(error)}
        write_atomically(self._private / files.EPSILON, json.dumps(figures, indent=2))

    def sanitise(self, X: NDArray, settings: Sanitise, delta: float) -> dict[str, Any] | None:
        """Release, once, an upper bound on the data-dependent ε of the examples asked; see `accounting.sanitise`.

        None where votes behind some answers were erased by forgetting before it was released.
        """

        def draw() -> dict[str, Any] | None:
            if self._ledger.from_earlier_ensembles():
                return None
            stored = self._ledger.stored(query_ids(X, self._key))
            counts = np.array([self._votes[query] for query in stored])
            answered = np.array([label != UNANSWERED for label in stored.values()])
            cost = self._mechanism.sanitised_cost(counts, answered, settings.order)
            figure = epsilon_sanitised(
                cost, beta=settings.beta, sigma_ss=settings.sigma_ss, delta=delta, entropy=self._entropy
            )
            return asdict(figure)

        try:
            return self._ledger.release_once(draw)
        except ValueError as error:
            if not raised_by_pate(error):
                raise
            raise RunError(f"budget.sanitise: {error}") from None

    def stored_prefix(self, X: NDArray) -> int:
        """How many examples from the first on have a stored answer."""
        ids = query_ids(X, self._key)
        stored = self._ledger.stored(ids)
        return next((i for i, query in enumerate(ids) if query not in stored), len(ids))

    def verify_published_labels(self, X: NDArray, labels: NDArray[np.int64]) -> None:
        """Raise RunError unless the labels published for these examples are those in the ledger."""
        ids = query_ids(X, self._key)
        stored = self._ledger.stored(ids)
        if [stored.get(query, UNANSWERED) for query in ids] != labels.tolist():
            raise RunError("labels.npz: differs from the answers in the ledger; put back what the run published")

    def head(self) -> Pin:
        """The ledger's last link, which files that are published now name."""
        return self._ledger.head()

    def room(self) -> int:
        """How many new queries are sure to fit into the limits."""
        stream = self._stream or self._resumed_stream()
        return 0 if stream.ended else self._ledger.room()

    def spent(self) -> Charge:
        """What was charged so far."""
        return self._ledger.spent()

    def pid(self) -> int:
        """The id of the process it runs in."""
        return os.getpid()

    def close(self) -> None:
        """Leave the ledger as one whole file."""
        self._ledger.close()

    def evaluate(self, X: NDArray, y: NDArray[np.int64]) -> None:
        """Accuracy of teachers and of their plurality, where there are votes on `X`: written under `private/`, returned
        to nobody."""
        votes = [self._votes.get(query) for query in query_ids(X, self._key)]
        counts = np.array([row for row in votes if row is not None])
        if not len(counts):
            return
        y = y[[row is not None for row in votes]]
        figures = {
            "private": "do not publish",
            "examples": len(y),
            "mean_teacher_accuracy": float(counts[np.arange(len(y)), y].mean() / self._n_parts),
            "plurality_accuracy": float((counts.argmax(1) == y).mean()),
        }
        write_atomically(self._private / files.EVALUATION, json.dumps(figures, indent=2))

    def _stored_votes(self) -> dict[bytes, NDArray[np.int64]]:
        path = self._private / files.VOTES
        if not path.exists():
            return {}
        with np.load(path, allow_pickle=False) as archive:
            return {bytes(i): counts for i, counts in zip(archive["ids"], archive["counts"], strict=True)}


def _exact_figures(mechanism: Mechanism, counts: NDArray[np.int64], delta: float) -> dict[str, Any]:
    """The exact data-dependent ε of all queries, and of the first n for some n: private."""
    exact = exact_epsilon(mechanism, counts, delta)
    shown = np.unique((np.linspace(1, len(counts) ** 0.5, 15) ** 2).round().astype(int))
    after = [_or_null(float(epsilon)) for epsilon in exact.rdp_after[shown - 1]]
    return {
        "epsilon_data_dependent": _or_null(exact.epsilon),
        "by_rdp": _or_null(exact.rdp),
        "by_pld": _or_null(exact.pld),
        "by_rdp_after": {"queries": shown.tolist(), "epsilon": after},
    }


def _or_null(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None


def query_ids(X: NDArray, key: bytes) -> list[bytes]:
    """What the ledger knows each public example by."""
    return [keyed_digest(key, b"query", row.tobytes()) for row in np.ascontiguousarray(X)]


def votes_collected(X: NDArray, private: Path, key: bytes) -> bool:
    """Whether votes on all of `X` are stored. Reads no votes."""
    path = private / files.VOTES
    if not path.exists():
        return False
    with np.load(path, allow_pickle=False) as archive:
        stored = {bytes(i) for i in archive["ids"]}
    return stored.issuperset(query_ids(X, key))


def _calls_the_actor(cls: type[RemoteAggregator]) -> type[RemoteAggregator]:
    """Replace each public method that a class inherits by one that calls it in the actor."""
    for name, _ in inspect.getmembers(Aggregator, inspect.isfunction):
        if not name.startswith("_") and name not in vars(cls):
            setattr(cls, name, partialmethod(cls._call, name))
    return cls


@_calls_the_actor
class RemoteAggregator(Aggregator):
    """An `Aggregator` as an actor on this node, where the run directory is: its methods, with votes in its process.

    Calls are served one at a time, in order. A restart comes back from the ledger; a call that Ray repeats finds its
    answers stored.
    """

    def __init__(self, name: str | None = None, **arguments: Any) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor = ray.remote(Aggregator).options(
            name=name, num_cpus=0, scheduling_strategy=here, max_restarts=3, max_task_retries=3
        )
        self._actor = actor.remote(**arguments)

    def close(self) -> None:
        """End the actor, also where Ray stays up: nobody asks it any more, and it holds votes."""
        self._call("close")
        self.kill()

    def kill(self) -> None:
        """End the actor at once; what it has stored is stored."""
        import ray

        ray.kill(self._actor)

    def _call(self, method: str, *arguments: Any) -> Any:
        """Errors that are fit to show: ours as they are, others by kind only."""
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        try:
            return ray.get(getattr(self._actor, method).remote(*arguments))
        except RayTaskError as error:
            if isinstance(error.cause, PateError):
                raise error.cause from None
            text = f"the aggregator failed ({error_kind(error.cause)}); go on with {{resume}}"
            raise RunError(text, resume=True) from None
        except RayActorError:
            raise RunError("the aggregator died and could not be restarted; go on with {resume}", resume=True) from None


def open_aggregator(context: RunContext, until_end: ExitStack | None) -> Aggregator:
    """The door to a run's votes: an actor of a Ray that stays up `until_end`, or in this process where that is None.

    Its ledger is opened by its first call.
    """
    from pate.cluster._session import check_visible, ray_session
    from pate.voters import voters_of

    run, config, options, given = context.run, context.config, context.options, context.given
    anchor = anchor_of(given, run, options.config_dir, options.anchor, context.console.info)
    context.is_anchored = anchor.place is not None
    arguments: dict[str, Any] = {
        "mechanism": context.voters.mechanism,
        "open_ledger": ledger_opener(voters_of(given), run, options.config_dir, anchor),
        "private": run.private.resolve(),
        "key": run.key,
        "n_parts": context.voters.n_parts,
    }
    if until_end is None:
        return Aggregator(**arguments)
    with context.clock.stage("start"), context.console.working("starting Ray"):
        until_end.enter_context(ray_session(options.address, config.ray))
        check_visible(arguments["private"])
        name = f"aggregator-{blake2b(run.key, digest_size=8).hexdigest()}"
        return RemoteAggregator(name, **arguments)
