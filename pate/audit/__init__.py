"""Attacks: on a finished run, and on a mechanism. Each attack is one file, see `pate.audit.results`."""
