"""Tables on standard output: columns as wide as what they hold."""

from __future__ import annotations

from collections.abc import Sequence


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Header and rows, one line each."""
    from pate.runs.console import printable

    widths = [max(len(printable(row[i])) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(printable(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
