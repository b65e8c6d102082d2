"""What do these votes cost? Exactly (private), and whatever the votes are (publishable). Needs neither Ray nor torch.

python examples/account_votes.py [VOTES.npy]
"""

import sys

import numpy as np

from pate import LNMax
from pate.accounting.exact import exact_epsilon
from pate.planning.costs import worst_case_epsilon

DELTA = 1e-5


def made_up_votes() -> np.ndarray:
    """100 queries, 10 classes, 250 teachers that mostly agree: int[queries, classes], each row sums to 250."""
    rng = np.random.default_rng(0)
    agreeing = rng.integers(180, 251, size=100)
    votes = np.array([rng.multinomial(250 - n, np.full(10, 0.1)) for n in agreeing])
    votes[np.arange(100), rng.integers(10, size=100)] += agreeing
    return votes


def main() -> None:
    votes = np.load(sys.argv[1], allow_pickle=False) if len(sys.argv) > 1 else made_up_votes()
    queries, classes = votes.shape
    mechanism = LNMax(scale=20)
    to_publish = worst_case_epsilon(mechanism, queries, None, DELTA, classes)
    exact = exact_epsilon(mechanism, votes, DELTA)
    print(f"{mechanism}, {queries} queries, δ = {DELTA}")
    print(f"ε to publish: {to_publish:.3f}, for every data set")
    print(f"ε exact:      {exact.epsilon:.3f}, of these votes (private: do not publish)")


if __name__ == "__main__":
    main()
