"""Noise, and nothing else: all privacy accounting builds on this folder, which imports no other.

MIN_NOISE and MAX_NOISE are scales in votes. Less noise than that would be none: it changes a count with probability
exp(-1000). More would need too large a sampling table.
"""

MIN_NOISE, MAX_NOISE = 1e-3, 10_000.0
