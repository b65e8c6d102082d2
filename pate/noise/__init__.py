"""Noise, and nothing else: everything that counts privacy stands on this folder, which imports no other.

LEAST_NOISE and MOST_NOISE are scales in votes. Less is none: a count changes with probability exp(-1000). More takes
too large a sampling table.
"""

LEAST_NOISE, MOST_NOISE = 1e-3, 10_000.0
