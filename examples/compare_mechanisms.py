"""Two mechanisms for the same ε: how often each releases the plurality; then an audit of one of them by sampling.

python examples/compare_mechanisms.py
"""

import numpy as np

from pate import GNMax, LNMax
from pate.audit.confidence_bounds import epsilon_from_samples
from pate.audit.mechanism import sample_answers
from pate.planning.costs import worst_case_epsilon
from pate.planning.plan import Workload, solve_noise

VOTES = np.array([[60, 30, 10]])
TIE, NEIGHBOUR = np.array([50, 50, 0]), np.array([49, 51, 0])  # one record changed: one vote moved
DELTA, QUERIES, TARGET = 1e-5, 200, 4.0


def main() -> None:
    limits = Workload(max_queries=QUERIES, max_answers=None, delta=DELTA, n_classes=VOTES.shape[1])
    for settings in ({"name": "gnmax"}, {"name": "lnmax"}):
        mechanism = solve_noise(settings, TARGET, limits)  # least noise for the target
        assert isinstance(mechanism, GNMax | LNMax)
        epsilon = worst_case_epsilon(mechanism, QUERIES, None, DELTA, VOTES.shape[1])
        right = np.exp(mechanism.log_outcomes(VOTES)[0, 0])
        print(
            f"{mechanism}: ε = {epsilon:.2f} for {QUERIES} queries; releases the plurality with probability {right:.2f}"
        )

    # An audit samples two neighbours. It can prove that ε is at least something, never that it is at most something.
    noise = LNMax(scale=2)
    samples = [sample_answers(noise, votes, runs=20_000) for votes in (TIE, NEIGHBOUR)]
    found = epsilon_from_samples(samples[0], samples[1], delta=0.0)
    print(f"{noise}: promises ε = {2 / noise.scale}; the audit shows at least {found.epsilon_lower_bound:.3f}")
    assert found.epsilon_lower_bound <= 2 / noise.scale  # wrong with probability 1e-6 at most


if __name__ == "__main__":
    main()
