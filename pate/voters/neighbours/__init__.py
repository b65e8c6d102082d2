"""Voters without teachers: every private record votes, with its own label, in the cells of public examples near it."""
