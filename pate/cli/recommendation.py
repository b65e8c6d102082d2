"""What `pate plan --records` says: a recommendation, the YAML to paste, and the alternatives in one table."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from pate.planning.recommend import describe_parameters
from pate.runs.console import Console

if TYPE_CHECKING:
    from pate.planning.recommend import Choice, Recommendation


def print_recommendation(
    records: int, classes: int, target_epsilon: float, delta: float | None, public: int | None, as_json: bool
) -> None:
    """Voters, mechanism and budget for so many records and a target ε."""
    from pate.planning.recommend import recommend, usual_delta

    delta = usual_delta(max(1, records)) if delta is None else delta
    with Console().trying(f"what {records:,} records allow at ε = {target_epsilon:g}"):
        found = recommend(records, classes, target_epsilon, delta, public)
    if as_json:
        print(json.dumps(_as_object(found, classes, delta)))
    else:
        _print(found, classes, delta)


def _as_object(found: Recommendation, classes: int, delta: float) -> dict[str, Any]:
    return {
        "recommended": dataclasses.asdict(found.choice),
        "why": found.why,
        "config": found.choice.settings(delta),
        "chances": [
            {"agree": share, "answered": answered, "plurality": right}
            for share, (answered, right) in found.choice.chances(classes).items()
        ],
        "alternatives": [dataclasses.asdict(choice) for choice in found.others],
        "delta": delta,
    }


def _print(found: Recommendation, classes: int, delta: float) -> None:
    from pate.config.yaml_loader import dump_yaml

    choice = found.choice
    print(f"recommended: {choice.described}, because {found.why}")
    print(f"  ε to publish       at most {choice.epsilon:.4g} at δ = {delta:g}")
    print("\n".join(choice.explained(classes)))
    print("\npaste into the config:\n")
    for line in dump_yaml(choice.settings(delta)).splitlines():
        print(f"  {line}")
    print("\nalternatives, each within that ε:\n")
    print_table(
        ("voters", "mechanism", "asked", "labels", "records each", "ε"),
        [_row(other) for other in (choice, *found.others)],
        marked=0,
    )


def print_table(header: tuple[str, ...], rows: list[tuple[str, ...]], marked: int | None = None) -> None:
    """Columns as wide as they must be; a marked row begins with an arrow."""
    widths = [max(len(line[i]) for line in (header, *rows)) for i in range(len(header))]
    for number, line in enumerate((header, *rows)):
        sign = "→" if marked is not None and number == marked + 1 else " "
        print(f"{sign} " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _row(choice: Choice) -> tuple[str, ...]:
    voters, asked, labels = choice.row()
    mechanism = f"{choice.mechanism['name']} ({describe_parameters(choice.mechanism)})"
    return voters, mechanism, asked, labels, f"{choice.records_each:,}", f"{choice.epsilon:.3g}"
