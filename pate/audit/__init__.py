"""Attacks: on a finished run, and on a mechanism."""
