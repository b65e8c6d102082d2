"""The only door between private votes and the world.

`Aggregator` is a plain class, tested without Ray; `aggregator_actor` wraps it. It asks for counts, draws noise,
commits label and charge, and only then answers. Counts stay with it and under `private/`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.data.partition import keyed_digest
from pate.ensemble import PartialCounts, sum_counts
from pate.ledger import Charge, Ledger, Limits
from pate.mechanisms import UNANSWERED, Mechanism
from pate.mechanisms.noise import Entropy
from pate.run_directory import write_atomically

CountVotes = Callable[[NDArray], Sequence[PartialCounts]]


class Aggregator:
    """Answers label queries within fixed limits. Asking again returns the stored answer, free."""

    def __init__(
        self,
        mechanism: Mechanism,
        limits: Limits,
        ledger_path: Path,
        private: Path,
        key: bytes,
        n_teachers: int,
        entropy: Entropy = os.urandom,
    ) -> None:
        self._mechanism = mechanism
        self._ledger = Ledger(ledger_path, limits)
        self._private = private
        self._key = key
        self._n_teachers = n_teachers
        self._entropy = entropy
        self._votes = self._stored_votes()

    def collect(self, X: NDArray, count_votes: CountVotes) -> None:
        """Count the votes on `X` and keep them under `private/`, so that a resumed run needs no teachers."""
        counts = sum_counts(count_votes(X), self._n_teachers)
        self._votes |= dict(zip(query_ids(X, self._key), counts, strict=True))

        def write(path: Path) -> None:
            with path.open("wb") as file:
                np.savez(
                    file,
                    ids=np.array([list(i) for i in self._votes], dtype=np.uint8),
                    counts=[*self._votes.values()],
                )

        write_atomically(self._private / "votes.npz", write)

    def label(self, X: NDArray) -> NDArray[np.int64]:
        """Released labels of examples whose votes were collected, `UNANSWERED` where the mechanism declined.

        Refused whole if the new ones among them do not fit into the limits.
        """
        ids = query_ids(X, self._key)
        stored = self._ledger.stored(ids)
        new = [query for query in dict.fromkeys(ids) if query not in stored]
        if new:
            self._ledger.check(Charge(asked=len(new), answered=len(new)))
            labels = self._mechanism.release(np.array([self._votes[query] for query in new]), self._entropy)
            cost = Charge(asked=len(new), answered=int((labels != UNANSWERED).sum()))
            self._ledger.charge_and_store(new, labels.tolist(), cost)
            stored = self._ledger.stored(ids)
        return np.array([stored[query] for query in ids], dtype=np.int64)

    def stored_prefix(self, X: NDArray) -> int:
        """How many examples from the first on have a stored answer."""
        ids = query_ids(X, self._key)
        stored = self._ledger.stored(ids)
        return next((i for i, query in enumerate(ids) if query not in stored), len(ids))

    def room(self) -> int:
        """How many new queries are sure to fit into the limits."""
        return self._ledger.room()

    def spent(self) -> Charge:
        """What was charged so far."""
        return self._ledger.spent()

    def evaluate(self, X: NDArray, y: NDArray[np.int64], count_votes: CountVotes) -> None:
        """Accuracy of teachers and of their plurality: written under `private/`, returned to nobody."""
        counts = sum_counts(count_votes(X), self._n_teachers)
        figures = {
            "private": "do not publish",
            "mean_teacher_accuracy": float(counts[np.arange(len(y)), y].mean() / self._n_teachers),
            "plurality_accuracy": float((counts.argmax(1) == y).mean()),
        }
        write_atomically(self._private / "evaluation.json", lambda path: path.write_text(json.dumps(figures, indent=2)))

    def _stored_votes(self) -> dict[bytes, NDArray[np.int64]]:
        path = self._private / "votes.npz"
        if not path.exists():
            return {}
        with np.load(path, allow_pickle=False) as archive:
            return {bytes(i): counts for i, counts in zip(archive["ids"], archive["counts"], strict=True)}


def query_ids(X: NDArray, key: bytes) -> list[bytes]:
    """What the ledger knows each public example by."""
    return [keyed_digest(key, b"query", row.tobytes()) for row in np.ascontiguousarray(X)]


def votes_collected(X: NDArray, private: Path, key: bytes) -> bool:
    """Whether votes on all of `X` are stored. Reads no votes."""
    path = private / "votes.npz"
    if not path.exists():
        return False
    with np.load(path, allow_pickle=False) as archive:
        stored = {bytes(i) for i in archive["ids"]}
    return stored.issuperset(query_ids(X, key))


class AskWorkers:
    """Counts votes by asking worker actors."""

    def __init__(self, workers: Sequence[Any]) -> None:
        self._workers = workers

    def __call__(self, X: NDArray) -> list[PartialCounts]:
        import ray

        data = ray.put(X)
        partials: list[PartialCounts] = ray.get([worker.count.remote(data) for worker in self._workers])
        return partials


def aggregator_actor(**arguments: Any) -> Any:
    """An `Aggregator` as an actor on this node, where the run directory is. A restart comes back from the ledger."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(Aggregator).options(num_cpus=0, scheduling_strategy=here, max_restarts=3, max_task_retries=3)
    return actor.remote(**arguments)
