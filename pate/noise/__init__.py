"""Noise: exact integers for votes, continuous for the baselines. A leaf: nothing of the package is imported here."""
