"""Tables on standard output: columns as wide as what they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Header and rows, one line each."""
    from pate.runs.console import printable

    widths = [max(len(printable(row[i])) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(printable(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def in_a_line(mechanism: Mapping[str, Any]) -> str:
    """The parameters of a mechanism that are given; counts are whole numbers, however large.

    >>> in_a_line({"name": "msvec", "epsilon": 2.0, "max_queries": 1_234_567, "n_teachers": None})
    'epsilon 2, max_queries 1234567'
    """
    given = {key: value for key, value in mechanism.items() if key != "name" and value is not None}
    return ", ".join(f"{key} {f'{value:g}' if isinstance(value, float) else value}" for key, value in given.items())
